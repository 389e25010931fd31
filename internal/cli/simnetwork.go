//go:build linux

package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/sim"
	"github.com/dxpu-project/dxpu/pcie"
)

// simNetworkRow is one measurement. Rates are in bytes per second.
type simNetworkRow struct {
	GPUs      int     `json:"gpus"`
	Hosts     int     `json:"hosts"`
	Equation1 float64 `json:"equation1"`
	Least     float64 `json:"least_per_gpu"`
	Most      float64 `json:"most_per_gpu"`
	Total     float64 `json:"total"`
	P50       int64   `json:"copy_p50_ns"`
	P99       int64   `json:"copy_p99_ns"`
	Dropped   uint64  `json:"dropped"`
	Marked    uint64  `json:"marked"`
}

func newSimNetworkCommand() *cobra.Command {
	var gpus, rtt string
	var hosts, mrrs int
	var boxLink, hostLink float64
	spec := sim.SharedSpec{Requester: perf.V100, Time: time.Millisecond}
	cmd := valueCommand(&cobra.Command{
		Use: "network", Short: "Copy with several GPUs behind one box proxy", Args: cobra.NoArgs,
		Long: `Run the engines of hosts and of a box with several GPUs over a simulated switch, and
measure the bandwidth of each GPU and of all. All GPUs copy at the same time: they read
host memory, or write to it with --to-host. Each host and the box have one link to the
switch, with the same bandwidth both ways; the switch drops datagrams that find the
buffer of a port full. With --mark it marks those that find this number of bytes in it (ECN), and
their senders slow down; handshakes and others that may not be marked are dropped then.

With --compute each GPU waits that long after each copy, as a program does that computes.
Without it, two copies are always under way.`,
		Example: `  dxpu sim network --gpus 1,2,4,8 --box-link 100
  dxpu sim network --gpus 8 --hosts 8 --box-link 100 --buffer 256KiB --json`,
	}, func(cmd *cobra.Command, _ []string) ([]simNetworkRow, error) {
		var err error
		if spec.RTT, err = perf.ParseRTT(rtt); err != nil {
			return nil, usagef("--rtt: %v", err)
		}
		spec.MRRS = pcie.PayloadSize(clamp(mrrs, 65535))
		spec.BoxLink, spec.HostLink = boxLink*1e9/8, hostLink*1e9/8
		if spec.Chunk == 0 {
			spec.Chunk = max(4096, 100*int(spec.Window()))
		}
		return simNetwork(cmd.Context(), spec, gpus, hosts)
	}, printSimNetwork)
	f := cmd.Flags()
	f.StringVar(&gpus, "gpus", "1,2,4,8", "numbers of GPUs behind the proxy, separated by commas")
	f.IntVar(&hosts, "hosts", 1, "number of hosts that share the box; at most one for each GPU")
	f.StringVar(&rtt, "rtt", "6.8us", "round trip of a PCIe memory read")
	f.Float64Var(&boxLink, "box-link", 100, "link of the box in Gb/s")
	f.Float64Var(&hostLink, "host-link", 400, "link of each host in Gb/s")
	sizeVar(f, &spec.Buffer, "buffer", "buffer of each port of the switch, such as 256KiB (default: no bound)")
	sizeVar(f, &spec.Mark, "mark", "bytes in a port's buffer from which on the switch marks datagrams (default: none)")
	f.Float64Var(&spec.Loss, "loss", 0, "share of datagrams that the network loses")
	f.IntVar(&spec.Tags, "tags", spec.Tags, "number of requests that each GPU keeps in flight")
	f.IntVar(&mrrs, "mrrs", int(spec.MRRS), "Max_Read_Request_Size in bytes")
	sizeVar(f, &spec.Chunk, "size", "size of one copy (default: 100 times what a GPU has in flight)")
	f.DurationVar(&spec.Compute, "compute", 0, "time between the end of a copy and the next one")
	f.DurationVar(&spec.Time, "time", spec.Time, "virtual time of the measurement")
	f.BoolVar(&spec.ToHost, "to-host", false, "copy to the hosts")
	return cmd
}

func simNetwork(ctx context.Context, spec sim.SharedSpec, gpus string, hosts int) ([]simNetworkRow, error) {
	var rows []simNetworkRow
	for text := range strings.SplitSeq(gpus, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return nil, usagef("--gpus: %q is not a number", text)
		}
		spec.GPUs, spec.Hosts = n, min(hosts, n)
		if err := spec.Validate(); err != nil {
			return nil, usage(err)
		}
		r, err := spec.Measure(ctx)
		if err != nil {
			return nil, fmt.Errorf("sim network: %w", err)
		}
		rows = append(rows, simNetworkRow{
			GPUs: n, Hosts: spec.Hosts, Equation1: float64(spec.ReadThroughput(spec.RTT)),
			Least: float64(slices.Min(r.PerGPU)), Most: float64(slices.Max(r.PerGPU)), Total: float64(r.Total),
			P50: r.P50.Nanoseconds(), P99: r.P99.Nanoseconds(), Dropped: r.Dropped, Marked: r.Marked,
		})
	}
	return rows, nil
}

func printSimNetwork(w io.Writer, rows []simNetworkRow) {
	t := newTable(w, "GPUS", "HOSTS", "EQUATION 1", "PER GPU", "TOTAL", "COPY", "99 %", "DROPPED", "MARKED")
	for _, r := range rows {
		each := perf.BytesPerSecond(r.Least).String()
		if most := perf.BytesPerSecond(r.Most).String(); most != each {
			each += " to " + most
		}
		t.row(r.GPUs, r.Hosts, perf.BytesPerSecond(r.Equation1), each, perf.BytesPerSecond(r.Total), time.Duration(r.P50), time.Duration(r.P99), r.Dropped, r.Marked)
	}
	t.flush()
}
