//go:build linux

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/model/network"
	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/pcie"
)

// simPacketsRow is one measurement. Rates are in bytes per second, In towards the GPUs.
type simPacketsRow struct {
	GPUs      int     `json:"gpus"`
	Hosts     int     `json:"hosts"`
	Boxes     int     `json:"boxes"`
	Equation1 float64 `json:"equation1"`
	Least     float64 `json:"least_per_gpu"` // both directions
	Most      float64 `json:"most_per_gpu"`
	In        float64 `json:"in"`
	Out       float64 `json:"out"`
	P50       int64   `json:"packet_p50_ns"`
	P99       int64   `json:"packet_p99_ns"`
	Packets   uint64  `json:"packets"`
	Lost      uint64  `json:"lost"`
	Dropped   uint64  `json:"dropped"`
	Marked    uint64  `json:"marked"`
	// Of all GPUs and both directions, before and after the failure of a path; 0 without it.
	Before float64 `json:"before_failure"`
	After  float64 `json:"after_failure"`
	Gap    int64   `json:"gap_ns"` // the longest time without data of a GPU in a direction
}

// packetFlags are the flags of "sim packets" that need a conversion.
type packetFlags struct {
	gpus                        string
	mrrs                        int
	hostLink, boxLink, rackLink float64
	boxGPUs, hostGPUs           int
	rootWrite                   float64 // GB/s
}

func newSimPacketsCommand() *cobra.Command {
	var flags packetFlags
	spec := network.Spec{
		Requester: perf.V100, MPS: 128, GPULink: float64(perf.Gen3x16.Write()), Memory: 1204, Wire: 1896, Conversion: 925, Time: time.Millisecond, Paths: 1,
	}
	cmd := valueCommand(&cobra.Command{
		Use: "packets", Short: "Follow the packets of many GPUs through proxies and switches", Args: cobra.NoArgs,
		Long: `Follow each packet of GPUs that copy from host memory or to it: through the proxies, which
convert a limited number of packets at the same time (--in-process), the links, and the
ports of the switch with their buffers. The model has no TLPs, ciphers or timers, so it
simulates more than a million packets a second. "dxpu sim network" does the same for a few GPUs
with the engines of the proxies.

A window bounds what each GPU has in flight beside its tags. It shrinks by losses and by the
marks of ports whose buffers are longer than --mark (ECN), as that of DCTCP does.

With --paths the links are parallel networks, which the GPUs use in turn. --fail-after lets
the first one lose all packets from then on; senders leave it --detect after the first loss
that they notice.

The default is the system of the paper: a round trip of 6.8us with the parts of its
Table 7 (1.2us in the host, 1.9us in the network, four conversions of 925ns), each TLP in
a packet of its own, and two links of 100 Gb/s to each proxy.`,
		Example: `  dxpu sim packets --gpus 1,2,4,8
  dxpu sim packets --gpus 512 --box-gpus 8 --host-gpus 8 --time 100us
  dxpu sim packets --gpus 16 --box-gpus 1 --in 0 --out 1MiB --buffer 256KiB --mark 64KiB
  dxpu sim packets --gpus 8 --paths 2 --fail-after 1ms --detect 100us --time 2ms`,
	}, func(cmd *cobra.Command, _ []string) ([]simPacketsRow, error) {
		spec.MRRS = pcie.PayloadSize(clamp(flags.mrrs, 65535))
		spec.RootWrite = flags.rootWrite * 1e9
		spec.HostLink, spec.BoxLink, spec.Uplink = flags.hostLink*1e9/8, flags.boxLink*1e9/8, flags.rackLink*1e9/8
		return simPackets(cmd.Context(), spec, flags)
	}, printSimPackets)
	f := cmd.Flags()
	f.StringVar(&flags.gpus, "gpus", "1,2,4,8", "numbers of GPUs, separated by commas")
	f.IntVar(&flags.boxGPUs, "box-gpus", 8, "GPUs in each box at most; boxes have them in turn")
	f.IntVar(&flags.hostGPUs, "host-gpus", 8, "GPUs of each host at most")
	f.IntVar(&spec.Racks, "racks", 1, "racks, to which hosts and boxes are dealt in turn")
	f.Float64Var(&flags.boxLink, "box-link", 200, "link of each box in Gb/s")
	f.Float64Var(&flags.hostLink, "host-link", 200, "link of each host in Gb/s")
	f.Float64Var(&flags.rackLink, "rack-link", 0, "link of each rack to the others in Gb/s (default: no bound)")
	sizeVar(f, &spec.Buffer, "buffer", "buffer of each port of the switches (default: no bound)")
	sizeVar(f, &spec.Mark, "mark", "bytes in a port's buffer from which on it marks packets (default: never)")
	f.IntVar(&spec.Paths, "paths", 1, "parallel networks, each with an equal part of the rates of links")
	f.DurationVar(&spec.FailAfter, "fail-after", 0, "time in the measurement after which the first path loses all packets (default: never)")
	f.DurationVar(&spec.Detect, "detect", 100*time.Microsecond, "time from the first loss that a sender notices until it leaves the failed path")
	f.Float64Var(&spec.Loss, "loss", 0, "share of packets that the network loses")
	f.IntVar(&spec.InProcess, "in-process", 0, "packets that a proxy converts at the same time (default: no bound)")
	f.DurationVar(&spec.Memory, "memory-time", spec.Memory, "part of the round trip in the host")
	f.DurationVar(&spec.Wire, "wire-time", spec.Wire, "part of the round trip in the network")
	f.DurationVar(&spec.Conversion, "conversion", spec.Conversion, "time in a proxy for each packet")
	f.IntVar(&spec.TLPs, "tlps", 1, "TLPs in a packet at most")
	f.IntVar(&spec.Header, "header", 32, "bytes of a packet beside its payload")
	f.IntVar(&spec.Tags, "tags", spec.Tags, "number of requests that each GPU keeps in flight")
	f.IntVar(&flags.mrrs, "mrrs", int(spec.MRRS), "Max_Read_Request_Size in bytes")
	spec.In = 1 << 20
	sizeVar(f, &spec.In, "in", "bytes that each GPU copies from the host in each step")
	sizeVar(f, &spec.Out, "out", "bytes that each GPU copies to the host in each step, at the same time")
	sizeVar(f, &spec.SharedIn, "shared-in", "bytes that the GPUs of a host copy from it between them in each step, beside --in (default: none)")
	sizeVar(f, &spec.SharedOut, "shared-out", "bytes that the GPUs of a host copy to it between them in each step, beside --out (default: none)")
	f.BoolVar(&spec.Peer, "peer", false, "--out goes to the next GPU, through the host if that is in another box")
	f.Float64Var(&flags.rootWrite, "root-write", 0, "with --peer: the host has a proxy for each box, and its root complex writes to each at this rate in GB/s (default: one proxy forwards)")
	f.BoolVar(&spec.OneWay, "one-way", false, "with --peer: every second GPU writes, the others receive only")
	f.DurationVar(&spec.Compute, "compute", 0, "mean time between the end of a step's copies and the next step")
	f.DurationVar(&spec.Time, "time", spec.Time, "virtual time of the measurement, after a warm-up of as much")
	f.Uint64Var(&spec.Seed, "seed", 1, "seed")
	return cmd
}

func simPackets(ctx context.Context, spec network.Spec, flags packetFlags) ([]simPacketsRow, error) {
	if flags.boxGPUs < 1 || flags.hostGPUs < 1 {
		return nil, usagef("--box-gpus %d, --host-gpus %d: want at least 1", flags.boxGPUs, flags.hostGPUs)
	}
	var rows []simPacketsRow
	for text := range strings.SplitSeq(flags.gpus, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil {
			return nil, usagef("--gpus: %q is not a number", text)
		}
		s := spec
		s.GPUs = n
		s.Hosts, s.Boxes = groups(n, flags.hostGPUs), groups(n, flags.boxGPUs)
		if err := s.Validate(); err != nil {
			return nil, usage(err)
		}
		r, err := s.Measure(ctx)
		if err != nil {
			return nil, fmt.Errorf("sim packets: %w", err)
		}
		both := func(a network.Rates) perf.BytesPerSecond { return a.In + a.Out }
		byRate := func(a, b network.Rates) int { return cmp.Compare(both(a), both(b)) }
		rows = append(rows, simPacketsRow{
			GPUs: n, Hosts: s.Hosts, Boxes: s.Boxes, Equation1: float64(s.ReadThroughput(s.RTT())),
			Least: float64(both(slices.MinFunc(r.PerGPU, byRate))), Most: float64(both(slices.MaxFunc(r.PerGPU, byRate))),
			In: float64(r.Total.In), Out: float64(r.Total.Out), P50: r.P50.Nanoseconds(), P99: r.P99.Nanoseconds(),
			Packets: r.Packets, Lost: r.Lost, Dropped: r.Dropped, Marked: r.Marked,
			Before: float64(both(r.Before)), After: float64(both(r.After)), Gap: r.Gap.Nanoseconds(),
		})
	}
	return rows, nil
}

// groups returns how many groups of at most size n things need.
func groups(n, size int) int { return n/size + min(n%size, 1) }

func printSimPackets(w io.Writer, rows []simPacketsRow) {
	t := newTable(w, "GPUS", "HOSTS", "BOXES", "EQUATION 1", "PER GPU", "TO GPUS", "TO HOSTS", "PACKET", "99 %", "PACKETS", "LOST", "DROPPED", "MARKED")
	for _, r := range rows {
		each := perf.BytesPerSecond(r.Least).String()
		if most := perf.BytesPerSecond(r.Most).String(); most != each {
			each += " to " + most
		}
		t.row(r.GPUs, r.Hosts, r.Boxes, perf.BytesPerSecond(r.Equation1), each, perf.BytesPerSecond(r.In), perf.BytesPerSecond(r.Out),
			time.Duration(r.P50), time.Duration(r.P99), r.Packets, r.Lost, r.Dropped, r.Marked)
	}
	t.flush()
	for _, r := range rows {
		if r.Before > 0 || r.After > 0 {
			fmt.Fprintf(w, "%d GPUs: %v before the failure of a path, %v after it; no data for a GPU for up to %v\n",
				r.GPUs, perf.BytesPerSecond(r.Before), perf.BytesPerSecond(r.After), time.Duration(r.Gap))
		}
	}
}
