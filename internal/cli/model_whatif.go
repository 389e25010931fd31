package cli

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/dxpu-project/dxpu/internal/model/predict"
)

// whatIfJSON is the effect of a change of the program.
type whatIfJSON struct {
	Change string `json:"change"`
	// Work per time, relative to the recorded run.
	Native        float64 `json:"native"`
	Disaggregated float64 `json:"disaggregated"`
	// The ranges of both, with their reasons.
	NativeRange        predict.Range `json:"native_range"`
	DisaggregatedRange predict.Range `json:"disaggregated_range"`
}

// parseChange parses one word of --what-if.
func parseChange(s string) (predict.Change, error) {
	name, value, _ := strings.Cut(s, "=")
	var c predict.Change
	switch {
	case s == "graphs":
		c.Graphs = true
	case s == "pinned":
		c.Pinned = true
	case name == "batch":
		var err error
		if c.Batch, err = strconv.ParseFloat(value, 64); err != nil || !(c.Batch > 0) {
			return c, fmt.Errorf("--what-if %q: want a factor such as batch=2", s)
		}
	default:
		return c, fmt.Errorf("--what-if %q: want graphs, pinned or batch=FACTOR", s)
	}
	return c, c.Validate()
}

// changes computes the effects of changes of the program, each by itself.
func (a *analysis) changes(names []string) ([]whatIfJSON, error) {
	var out []whatIfJSON
	for _, name := range names {
		c, err := parseChange(name)
		if err != nil {
			return nil, err
		}
		r, err := a.plan.WhatIf(a.setting, c, &a.stats)
		if err != nil {
			return nil, err
		}
		out = append(out, whatIfJSON{name, r.Native, r.Disaggregated, r.NativeRange, r.DisaggregatedRange})
	}
	return out, nil
}

// printChanges prints the work per time of changed programs.
func (a *analysis) printChanges(out io.Writer) {
	if len(a.whatIf) == 0 {
		return
	}
	t := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\nwork per time, recorded run = 100 %%\tnative\trange\tat %v\trange\t\n", a.setting.RTT)
	line := func(name string, native, longer float64, nativeRange, longerRange predict.Range) {
		fmt.Fprintf(t, "%s\t%.1f %%\t%s\t%.1f %%\t%s\t\n", name, 100*native, ends(nativeRange), 100*longer, ends(longerRange))
	}
	line("as recorded", 1, a.result.Relative, predict.Range{}, a.span)
	for _, w := range a.whatIf {
		line(w.Change, w.Native, w.Disaggregated, w.NativeRange, w.DisaggregatedRange)
	}
	t.Flush()
	said := slices.Clone(a.span.Why)
	for _, w := range a.whatIf {
		for _, why := range slices.Concat(w.NativeRange.Why, w.DisaggregatedRange.Why) {
			if !slices.Contains(said, why) {
				fmt.Fprintf(out, "range of %s: %s.\n", w.Change, why)
				said = append(said, why)
			}
		}
	}
}

// ends formats the ends of a range, or "-" if they are next to each other.
func ends(g predict.Range) string {
	if !g.Wide() {
		return "-"
	}
	return figure(g.Low, g.High, 1)
}

// figure formats a performance with a number of decimals: both ends of its range unless
// they are next to each other.
func figure(low, high float64, decimals int) string {
	if g := (predict.Range{Low: low, High: high}); !g.Wide() {
		return fmt.Sprintf("%.*f %%", decimals, 100*high)
	}
	return fmt.Sprintf("%.*f to %.*f %%", decimals, 100*low, decimals, 100*high)
}
