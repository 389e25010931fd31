package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/sim"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/pcie"
)

func newSimCommand() *cobra.Command {
	return group("sim", "Run the data plane in virtual time",
		`Run the data plane in virtual time: the link, the embedded host and the software
GPU that the daemons run, over a network that exists as numbers only. Processors
cost nothing there, so what is measured is the protocol.`,
		`  dxpu sim bandwidth --tags 140 --mrrs 128 --rtt 6.8us,4.9us`,
		newSimBandwidthCommand())
}

func newSimBandwidthCommand() *cobra.Command {
	var rtts, size string
	var mrrs int
	var uplink float64
	var clear, asJSON bool
	spec := sim.BandwidthSpec{Requester: perf.V100}
	cmd := &cobra.Command{
		Use:   "bandwidth",
		Short: "Measure copies both ways over a round trip, beside Equation 1",
		Long: `Measure copies both ways between host memory and a software GPU over a round
trip, beside what Equation 1 of the paper says: #tags x MRRS / RTT.

--rtt is the whole round trip of a PCIe memory read: 1.2us of it are the host's,
the rest is the network's, half each way. The copy to the device (reads by the
GPU) has a network without limit, so that the tags are all that bounds it. The
copy to the host (posted writes) has a path of --uplink, as nothing else bounds
it: it does not depend on the round trip.`,
		Example: `  dxpu sim bandwidth --tags 140 --mrrs 128 --rtt 6.8us,4.9us
  dxpu sim bandwidth --tags 256 --mrrs 512 --rtt 100us --size 64MiB --json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			spec.MRRS = pcie.PayloadSize(clamp(mrrs, 65535))
			spec.Uplink = uplink * 1e9 / 8
			spec.Cipher = link.CipherAES256GCM
			if clear {
				spec.Cipher = link.CipherNone
			}
			var err error
			if spec.Size, err = parseSize(size); err != nil {
				return err
			}
			rows, err := simBandwidth(cmd.Context(), spec, rtts)
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(cmd.OutOrStdout(), rows)
			}
			return printSimBandwidth(cmd.OutOrStdout(), rows)
		},
	}
	f := cmd.Flags()
	f.IntVar(&spec.Tags, "tags", spec.Tags, "requests that the GPU keeps in flight")
	f.IntVar(&mrrs, "mrrs", int(spec.MRRS), "Max_Read_Request_Size in bytes")
	f.StringVar(&rtts, "rtt", "6.8us,4.9us", "round trips of a PCIe memory read, separated by commas")
	f.StringVar(&size, "size", "16MiB", "bytes of one copy, with KiB or MiB")
	f.Float64Var(&uplink, "uplink", sim.DefaultUplink*8/1e9, "path for the copy to the host, Gb/s")
	f.BoolVar(&clear, "clear", false, "do not encrypt")
	jsonFlag(cmd, &asJSON)
	return cmd
}

// simBandwidthRow is one measurement, rates in bytes per second.
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
			return nil, err
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

func printSimBandwidth(w io.Writer, rows []simBandwidthRow) error {
	t := newTable(w, "TAGS", "MRRS", "RTT", "HOST TO DEVICE", "EQUATION 1", "DEVIATION", "DEVICE TO HOST")
	for _, r := range rows {
		t.row(r.Tags, r.MRRS, time.Duration(r.RTT), perf.BytesPerSecond(r.HostToDevice), perf.BytesPerSecond(r.Equation1),
			fmt.Sprintf("%+.2f %%", 100*r.Deviation), perf.BytesPerSecond(r.DeviceToHost))
	}
	return t.flush()
}

// parseSize reads an amount of bytes such as 4096, 64KiB or 16MiB.
func parseSize(s string) (int, error) {
	text, unit := strings.TrimSpace(s), 1
	for suffix, bytes := range map[string]int{"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30} {
		if rest, ok := strings.CutSuffix(text, suffix); ok {
			text, unit = rest, bytes
			break
		}
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 1 || n > sim.MaxSize/unit {
		return 0, fmt.Errorf("size %q: want 1 to %dMiB, such as 64KiB or 16MiB", s, sim.MaxSize>>20)
	}
	return n * unit, nil
}
