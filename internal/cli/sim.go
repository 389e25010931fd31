//go:build linux

package cli

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/sim"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/pcie"
)

func newSimCommand() *cobra.Command {
	return group("sim", "Simulate clusters, and the data plane in virtual time",
		`Simulate with the code of the daemons: the worth of a pool for a cluster and its jobs
("run", "compare"), the proxies, the embedded host and the software GPU over a network in
virtual time ("bandwidth", "network"), where computation takes no time, and the packets of many
GPUs ("packets").`,
		`  dxpu sim run scenarios/uniform.yaml
  dxpu sim bandwidth --tags 140 --mrrs 128 --rtt 6.8us,4.9us`,
		newSimRunCommand(), newSimCompareCommand(), newSimBandwidthCommand(), newSimNetworkCommand(), newSimPacketsCommand())
}

func newSimBandwidthCommand() *cobra.Command {
	var rtts string
	var mrrs int
	var uplink float64
	var clear bool
	spec := sim.BandwidthSpec{Requester: perf.V100, Size: 16 << 20}
	cmd := valueCommand(&cobra.Command{
		Use: "bandwidth", Short: "Compare the bandwidth of copies with Equation 1", Args: cobra.NoArgs,
		Long: `Measure copies both ways between host memory and a software GPU, and compare them
with Equation 1 of the paper: #tags x MRRS / RTT.

--rtt is the whole round trip of a PCIe memory read: 1.2us in the host, and the rest
in the network, half each way. For the copy to the device (reads by the GPU) the
network has unlimited bandwidth, so that only the tags limit the copy. For the copy
to the host (posted writes, which do not depend on the round trip) the path has the
bandwidth --uplink.`,
		Example: `  dxpu sim bandwidth --tags 140 --mrrs 128 --rtt 6.8us,4.9us
  dxpu sim bandwidth --tags 256 --mrrs 512 --rtt 100us --size 64MiB --json`,
	}, func(cmd *cobra.Command, _ []string) ([]simBandwidthRow, error) {
		spec.MRRS = pcie.PayloadSize(clamp(mrrs, 65535))
		spec.Uplink = uplink * 1e9 / 8
		spec.Cipher = link.CipherAES256GCM
		if clear {
			spec.Cipher = link.CipherNone
		}
		if spec.Size < 1 || spec.Size > sim.MaxSize {
			return nil, usagef("--size %d: want 1 to %s", spec.Size, size(sim.MaxSize))
		}
		rows, err := simBandwidth(cmd.Context(), spec, rtts)
		return rows, usage(err) // the simulation itself does not fail
	}, printSimBandwidth)
	f := cmd.Flags()
	f.IntVar(&spec.Tags, "tags", spec.Tags, "number of requests that the GPU keeps in flight")
	f.IntVar(&mrrs, "mrrs", int(spec.MRRS), "Max_Read_Request_Size in bytes")
	f.StringVar(&rtts, "rtt", "6.8us,4.9us", "round trips of a PCIe memory read, separated by commas")
	sizeVar(f, &spec.Size, "size", "size of one copy, such as 64KiB or 16MiB")
	f.Float64Var(&uplink, "uplink", sim.DefaultUplink*8/1e9, "bandwidth of the path for the copy to the host, in Gb/s")
	f.BoolVar(&clear, "clear", false, "run without encryption")
	return cmd
}

// simBandwidthRow is one measurement. Rates are in bytes per second.
type simBandwidthRow struct {
	Tags         int     `json:"tags"`
	MRRS         int     `json:"mrrs"`
	RTT          int64   `json:"rtt_ns"`
	Size         int     `json:"size"`
	HostToDevice float64 `json:"host_to_device"`
	Equation1    float64 `json:"equation1"`
	Deviation    float64 `json:"deviation"`
	DeviceToHost float64 `json:"device_to_host"`
}

func simBandwidth(ctx context.Context, spec sim.BandwidthSpec, rtts string) ([]simBandwidthRow, error) {
	var rows []simBandwidthRow
	for text := range strings.SplitSeq(rtts, ",") {
		var err error
		if spec.RTT, err = perf.ParseRTT(text); err != nil {
			return nil, fmt.Errorf("--rtt: %w", err)
		}
		b, err := spec.Measure(ctx)
		if err != nil {
			return nil, err
		}
		rows = append(rows, simBandwidthRow{
			Tags: spec.Tags, MRRS: int(spec.MRRS), RTT: spec.RTT.Nanoseconds(), Size: spec.Size,
			HostToDevice: float64(b.HostToDevice), Equation1: float64(b.Equation1), Deviation: b.Deviation(), DeviceToHost: float64(b.DeviceToHost),
		})
	}
	return rows, nil
}

func printSimBandwidth(w io.Writer, rows []simBandwidthRow) {
	t := newTable(w, "TAGS", "MRRS", "RTT", "HOST TO DEVICE", "EQUATION 1", "DEVIATION", "DEVICE TO HOST")
	for _, r := range rows {
		t.row(r.Tags, r.MRRS, time.Duration(r.RTT), perf.BytesPerSecond(r.HostToDevice), perf.BytesPerSecond(r.Equation1),
			fmt.Sprintf("%+.2f %%", 100*r.Deviation), perf.BytesPerSecond(r.DeviceToHost))
	}
	t.flush()
}
