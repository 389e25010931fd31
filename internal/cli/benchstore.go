package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/bench/store"
)

func newBenchStoreCommand() *cobra.Command {
	var spec store.Spec
	var dir string
	cmd := benchmark(&cobra.Command{
		Use: "store", Short: "Compare the rate of durable leases with that of bare etcd puts",
		Long: `Measure how many leases per second a manager stores durably in embedded etcd and, in
the same run, how many bare puts per second that etcd performs, with values of the
size that the manager stores for a lease. Leases and puts alternate; the rates are
the medians of the rounds.

The callers, the API, the manager and etcd are in one process. A lease counts when
its call has returned, at which point it is on disk. The nodes are simulated, and
nothing is attached. The manager stores leases in groups, so the ratio can be above
one.`,
		Example: `  dxpu bench store
  dxpu bench store --at-once 1 --dir /var/lib --json`,
	}, func(ctx context.Context, progress func(string, ...any)) (_ *store.Report, err error) {
		err = cmp.Or(inRange("--leases", 1, 100_000, spec.Leases), inRange("--at-once", 1, 1024, spec.AtOnce), inRange("--rounds", 1, 100, spec.Rounds))
		if err != nil {
			return nil, err
		}
		if spec.Dir, err = os.MkdirTemp(dir, "dxpu-bench"); err != nil {
			return nil, fmt.Errorf("--dir: %w", err)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(spec.Dir)) }()
		spec.Progress = progress
		return store.Run(ctx, spec)
	}, printStoreBench)
	f := cmd.Flags()
	f.IntVar(&spec.Leases, "leases", 5000, "number of leases, and of puts, in each round, 1 to 100000")
	f.IntVar(&spec.AtOnce, "at-once", 64, "number of concurrent callers, 1 to 1024")
	f.IntVar(&spec.Rounds, "rounds", 3, "number of rounds, 1 to 100")
	f.StringVar(&dir, "dir", "", "directory for a temporary directory with the state (default $TMPDIR)")
	return cmd
}

func printStoreBench(w io.Writer, r *store.Report) {
	fmt.Fprintf(w, "%d processors, %s; %d concurrent callers, %d rounds\n\n", r.Processors, r.Go, r.AtOnce, r.Rounds)
	t := newTable(w, "CALL", "COUNT", "PER SECOND", "P50", "P99")
	t.row("durable leases", r.Leases.Count, fmt.Sprintf("%.0f", r.Leases.PerSecond), duration(r.Leases.P50NS), duration(r.Leases.P99NS))
	t.row(fmt.Sprintf("bare puts of %d bytes", r.PutBytes), r.Puts.Count, fmt.Sprintf("%.0f", r.Puts.PerSecond), duration(r.Puts.P50NS), duration(r.Puts.P99NS))
	t.flush()
	fmt.Fprintf(w, "\nThe ratio of leases to puts is %.2f; a transaction of etcd stores %.1f leases on average.\n", r.Ratio, r.LeasesPerWrite)
}
