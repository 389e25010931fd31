package cli

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/soak"
)

func newBenchSoakCommand() *cobra.Command {
	var o soak.Options
	var asJSON bool
	cmd := &cobra.Command{
		Use: "soak", Short: "Run a host and a box under random faults for a long time", Args: cobra.NoArgs,
		Long: `Run a host proxy and a box proxy with several bindings over two paths of the loopback
interface, under random faults: loss, duplication, reordering, corruption, delay, a
bottleneck, a smaller MTU, a path cut in one or both directions, all paths cut, a
jumping clock, and a proxy that is killed and restarted.

Meanwhile the benchmark attaches, uses and detaches devices: copies in both
directions, numbered posted writes and register accesses, all verified. Each of these
is a violation: a wrong byte; a posted write that does not arrive exactly once and in
order; an operation that fails without a fault that can end a binding; an operation
that neither completes nor fails; the two ends of a link counting different TLPs; and
more memory, goroutines or file descriptors at the end than after the warm-up.

The exit code is 1 after a violation. The command prints the seed that repeats the
run.`,
		Example: `  dxpu bench soak --duration 5m
  dxpu bench soak --duration 1h --seed 7 --json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Duration <= 0 || o.Bindings < 2 || o.Bindings > soak.MaxBindings {
				return usagef("--duration %v, --bindings %d: want a positive duration and 2 to %d bindings", o.Duration, o.Bindings, soak.MaxBindings)
			}
			o.Progress = func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
			rep, err := soak.Run(cmd.Context(), o)
			if err != nil {
				return err
			}
			err = printValue(cmd, asJSON, rep, printSoak)
			if err == nil && !rep.OK {
				err = withHint(fmt.Errorf("%d violations", len(rep.Violations)), "repeat the run with --seed %d", rep.Seed)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.DurationVar(&o.Duration, "duration", time.Hour, "duration of the run")
	f.Uint64Var(&o.Seed, "seed", 0, "seed of the faults and of the hosts' operations (default: random, and printed)")
	f.IntVar(&o.Bindings, "bindings", 4, "number of devices, half on an embedded host and half on vfio-user clients")
	f.DurationVar(&o.Every, "every", 10*time.Second, "interval between two progress reports")
	jsonFlag(cmd, &asJSON)
	return cmd
}

func printSoak(w io.Writer, r *soak.Report) {
	a := r.Account
	fmt.Fprintf(w, "%v with %d bindings, seed %d\n\n", time.Duration(r.DurationNS).Round(time.Second), r.Bindings, r.Seed)
	t := newTable(w, "ACCOUNT", "AMOUNT", "DETAIL")
	t.row("bytes requested", a.Asked, "")
	t.row("bytes transferred and verified", a.Done, "")
	t.row("bytes reported lost", a.Lost, fmt.Sprintf("%d of %d operations", a.LostOperations, a.Operations))
	t.row("posted writes, exactly once and in order", a.PostedWrites, "")
	t.row("bindings", a.Sessions, fmt.Sprintf("%d ended with a reported loss, %d did not come up", a.LostSessions, a.FailedAttaches))
	t.row("bindings with equal TLP counts at both ends", a.BalancedSessions, "")
	t.row("time in which losses are allowed", time.Duration(r.ExcusedNS).Round(time.Second), fmt.Sprintf("%d stalls of the machine, up to %v", r.Stalls, time.Duration(r.LongestStall).Round(time.Millisecond)))
	t.flush()
	fmt.Fprintln(w)
	t = newTable(w, "FAULT", "COUNT")
	for _, kind := range slices.Sorted(maps.Keys(r.Faults)) {
		t.row(kind, r.Faults[kind])
	}
	t.flush()
	fmt.Fprintln(w)
	t = newTable(w, "AT REST AFTER", "HEAP", "GOROUTINES", "FILE DESCRIPTORS")
	for _, s := range r.Samples {
		t.row(time.Duration(s.AtNS).Round(time.Second), fmt.Sprintf("%.2f MiB", float64(s.Heap)/(1<<20)), s.Goroutines, s.FDs)
	}
	t.flush()
	for _, v := range r.Violations {
		fmt.Fprintf(w, "\nVIOLATION after %s", v)
	}
	if r.Goroutines != "" {
		fmt.Fprintf(w, "\n\n%s", r.Goroutines)
	}
	verdict := "no violations"
	if !r.OK {
		verdict = fmt.Sprintf("%d violations", len(r.Violations))
	}
	fmt.Fprintf(w, "\n%s\n", verdict)
}
