package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/dxpu-project/dxpu/internal/model/trace"
	"github.com/dxpu-project/dxpu/internal/model/workload"
	gpushare "github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/scenario"
)

func newShareCommand() *cobra.Command {
	return group("share", "Share the GPUs of this machine, and compare policies",
		`Share the NVIDIA GPUs of this machine between programs, by an agent ("dxpu share serve")
and dxpu's driver library: docs/sharing.md takes ten minutes. "dxpu share partition" divides a GPU by MIG.

The other commands compare the policies that share one GPU between several clients,
against a model of a GPU in virtual time. The same input gives the same output.
docs/share.md describes the policies, the model and what the figures mean.`,
		`  dxpu share run --gpu-memory 8GiB --compute 30% -- python train.py
  dxpu share compare --html compare.html
  dxpu share simulate gemini`,
		append(localShareCommands(), newSharePoliciesCommand(), newShareCompareCommand(), newShareSimulateCommand())...)
}

// sharePolicy is a policy in the list.
type sharePolicy struct {
	Name      string `json:"name"`
	Source    string `json:"source"`
	Execution string `json:"execution"`
	Limits    bool   `json:"keeps_limits"`
	Form      string `json:"own_form,omitempty"`
}

func newSharePoliciesCommand() *cobra.Command {
	return valueCommand(&cobra.Command{
		Use: "policies", Short: "List the policies", Args: cobra.NoArgs,
		Long: `List the policies, the systems they come from, and the form of execution they need:
a context for each client, one context for all, or partitions. LIMITS says whether limits
of compute hold, by the policy or by the hardware below it. OWN FORM names constants
and laws that are this project's because none were published.`,
		Example: "  dxpu share policies -o wide",
	}, func(*cobra.Command, []string) ([]sharePolicy, error) {
		var out []sharePolicy
		for _, p := range gpushare.Policies() {
			out = append(out, sharePolicy{p.Name, p.Source, p.Execution.String(), p.Limits, p.Form})
		}
		return out, nil
	}, func(w io.Writer, list []sharePolicy) {
		t := newTable(w, "NAME", "SOURCE", "EXECUTION", "LIMITS", "OWN FORM")
		for _, p := range list {
			limits := "none"
			if p.Limits {
				limits = "kept"
			}
			t.row(p.Name, p.Source, p.Execution, limits, p.Form)
		}
		t.flush()
	})
}

func newShareCompareCommand() *cobra.Command {
	var policies []string
	var file, html string
	var length time.Duration
	cmd := valueCommand(&cobra.Command{
		Use: "compare", Short: "Run all policies on the same mixes of clients", Args: cobra.NoArgs,
		Long: `Run all policies on the same mixes of online and offline clients, and compare the
results with those of each client alone on a whole GPU.

--trace replaces the first offline client of each mix by a recorded run (a trace of the
PyTorch profiler or of Nsight Systems). --html writes the tables and plots to one file.

NOTE says why a policy is far from what its paper shows. The mixes are not the papers':
"dxpu share simulate" has those.`,
		Example: `  dxpu share compare
  dxpu share compare --policy mps,gemini --html compare.html
  dxpu share compare --trace run.pt.trace.json.gz -o json`,
	}, func(cmd *cobra.Command, _ []string) ([]scenario.Result, error) {
		for _, p := range policies {
			if _, err := gpushare.Find(p); err != nil {
				return nil, usagef("--policy %s: no such policy; \"dxpu share policies\" lists them", p)
			}
		}
		var w *workload.Workload
		if file != "" {
			var err error
			if w, err = trace.Open(file, trace.Options{}); err != nil {
				return nil, err
			}
		}
		mixes, err := scenario.Mixes()
		if err != nil {
			return nil, err
		}
		if length < 0 || length > maxShareLength {
			return nil, usagef("--duration %v: want up to %v", length, maxShareLength)
		}
		for _, m := range mixes {
			if length > 0 {
				m.Duration, m.Warmup = length, length*2/5
			}
		}
		results, err := compareShares(cmd, mixes, policies, w)
		if err == nil && html != "" {
			err = writeShareHTML(html, mixes, results)
		}
		return results, err
	}, printShareResults)
	f := cmd.Flags()
	f.StringSliceVar(&policies, "policy", nil, "policies to run, separated by commas; all by default")
	durationVar(f, &length, "duration", 0, "length of each run in virtual time, two fifths of it not measured; 20s by default")
	f.StringVar(&file, "trace", "", "trace of the first offline client of each mix")
	f.StringVar(&html, "html", "", "file for the tables and plots")
	return cmd
}

// compareShares compares the policies on the mixes, on all processors.
func compareShares(cmd *cobra.Command, mixes []*scenario.Spec, policies []string, recorded *workload.Workload) ([]scenario.Result, error) {
	return onAllProcessors(cmd, len(mixes), func(ctx context.Context, i int) ([]scenario.Result, error) {
		return scenario.Compare(ctx, mixes[i:i+1], policies, recorded)
	})
}

// onAllProcessors calls f for 0 to n-1 and returns the results in this order.
func onAllProcessors[T any](cmd *cobra.Command, n int, f func(ctx context.Context, i int) ([]T, error)) ([]T, error) {
	parts := make([][]T, n)
	report := progress(cmd.ErrOrStderr())
	var mu sync.Mutex
	done := 0
	g, ctx := errgroup.WithContext(cmd.Context())
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range n {
		g.Go(func() (err error) {
			if parts[i], err = f(ctx, i); err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			done++
			report("%d of %d", done, n)
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return append([]T{}, slices.Concat(parts...)...), nil
}

// maxShareLength bounds the time that a comparison takes.
const maxShareLength = 10 * time.Minute

func printShareResults(w io.Writer, results []scenario.Result) {
	t := newTable(w, "MIX", "POLICY", "ONLINE P99", "ONLINE JOBS", "OFFLINE JOBS", "GPU BUSY", "SM ACTIVITY", wideColumn("PERMITS/S"), wideColumn("OWN FORM"), "NOTE")
	for _, r := range results {
		p99 := "-" // no request ended in the time that is measured
		if r.P99 > 0 {
			p99 = fmt.Sprintf("%.2f x", r.P99)
		}
		t.row(r.Mix, r.Policy, p99, percentText(r.Online), percentText(r.Offline), percentText(r.Utilisation), percentText(r.SMActivity),
			fmt.Sprintf("%.0f", r.Permits), r.Form, r.Note)
	}
	t.flush()
}

func percentText(x float64) string { return fmt.Sprintf("%.1f %%", 100*x) }

func newShareSimulateCommand() *cobra.Command {
	return valueCommand(&cobra.Command{
		Use: "simulate [SCENARIO...]", Short: "Run scenarios and print their figures beside those of the papers",
		Long: `Run scenarios and print their figures beside those of the papers, with the reason
where they differ. A scenario is the name of a built-in one, which is usually that of
its policy, or a file in YAML. Without arguments, all built-in scenarios run.`,
		Example: `  dxpu share simulate
  dxpu share simulate tgs orion -o json
  dxpu share simulate my-mix.yaml`,
		ValidArgsFunction: completeScenarios,
	}, func(cmd *cobra.Command, args []string) ([]scenario.Row, error) {
		specs, err := shareScenarios(args)
		if err != nil {
			return nil, err
		}
		return onAllProcessors(cmd, len(specs), func(ctx context.Context, i int) ([]scenario.Row, error) {
			return specs[i].Table(ctx)
		})
	}, printShareRows)
}

func completeScenarios(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	rows, _ := scenario.Rows()
	var names []string
	for _, s := range rows {
		names = append(names, s.Name)
	}
	return names, cobra.ShellCompDirectiveDefault
}

// shareScenarios returns the scenarios that the arguments name.
func shareScenarios(args []string) ([]*scenario.Spec, error) {
	builtin, err := scenario.Rows()
	if err != nil || len(args) == 0 {
		return builtin, err
	}
	var out []*scenario.Spec
	for _, name := range args {
		if i := slices.IndexFunc(builtin, func(s *scenario.Spec) bool { return s.Name == name }); i >= 0 {
			out = append(out, builtin[i])
			continue
		}
		if !strings.ContainsAny(name, "./") {
			return nil, withHint(usagef("no scenario %q", name), "a file has a dot or a slash in its name; \"dxpu share simulate\" runs all built-in scenarios")
		}
		text, err := readScenario(name)
		if err != nil {
			return nil, err
		}
		s, err := scenario.Parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out = append(out, s)
	}
	return out, nil
}

// readScenario reads a scenario, or as much as Parse needs to refuse a longer one.
func readScenario(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, scenario.MaxText+1))
}

func printShareRows(w io.Writer, rows []scenario.Row) {
	t := newTable(w, "SCENARIO", "FIGURE", "MEASURED", "PAPER", "WHY IT DIFFERS")
	for _, r := range rows {
		t.row(r.Scenario, r.Figure, r.Text, r.Paper, r.Why)
	}
	t.flush()
}
