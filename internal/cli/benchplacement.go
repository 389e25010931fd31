package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/bench"
)

func newBenchPlacementCommand() *cobra.Command {
	var o bench.PlacementOptions
	cmd := benchmark(&cobra.Command{
		Use: "placement", Short: "Measure the duration of placement decisions",
		Long: `Measure how long the choice of GPUs and host slots for a lease takes: with the
manager's index and, for the same pool in the same run, with a plain scan over all
GPUs. The pools are 70 % full and change with each decision. A difference between the
two decisions fails the benchmark.`,
		Example: `  dxpu bench placement
  dxpu bench placement --gpus 512 --hosts 64 --json`,
	}, func(ctx context.Context, progress func(string, ...any)) (*bench.PlacementReport, error) {
		err := cmp.Or(
			inRange("--gpus", 64, 1_000_000, o.GPUs...), inRange("--hosts", 1, 100_000, o.Hosts...),
			inRange("--decisions", 1, 1_000_000, o.Decisions), inRange("--scans", 1, 1_000_000, o.Scans))
		if err != nil {
			return nil, err
		}
		o.Progress = progress
		return bench.Placement(ctx, o)
	}, printPlacement)
	f := cmd.Flags()
	f.IntSliceVar(&o.GPUs, "gpus", []int{512, 100_000}, "numbers of GPUs of the pools, each 64 to 1000000")
	f.IntSliceVar(&o.Hosts, "hosts", []int{64, 10_000}, "numbers of hosts of the pools, each 1 to 100000")
	f.IntVar(&o.Decisions, "decisions", 4000, "number of decisions for each request, 1 to 1000000")
	f.IntVar(&o.Scans, "scans", 200, "number of these decisions that the scan makes, too")
	return cmd
}

func printPlacement(w io.Writer, r *bench.PlacementReport) {
	fmt.Fprintf(w, "%d processors, %s\n\n", r.Processors, r.Go)
	t := newTable(w, "POOL", "REQUEST", "PLACED", "INDEX P50", "P99", "SCAN P50", "P99", "SCAN/INDEX")
	us := func(v float64) string {
		if v == 0 {
			return ""
		}
		return benchNumber(v, bench.Microseconds)
	}
	for _, row := range r.Rows {
		ratio, placed := "", ""
		if row.Ratio > 0 {
			ratio, placed = benchNumber(row.Ratio, ""), fmt.Sprintf("%.0f %%", 100*row.Placed)
		}
		t.row(row.Pool, row.Request, placed, us(row.IndexP50), us(row.IndexP99), us(row.ScanP50), us(row.ScanP99), ratio)
	}
	t.flush()
}
