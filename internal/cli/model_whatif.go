package cli

import (
	"fmt"
	"io"
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
		r, err := a.plan.WhatIf(a.setting, c)
		if err != nil {
			return nil, err
		}
		out = append(out, whatIfJSON{name, r.Native, r.Disaggregated})
	}
	return out, nil
}

// printChanges prints the work per time of changed programs.
func (a *analysis) printChanges(out io.Writer) {
	if len(a.whatIf) == 0 {
		return
	}
	t := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\nwork per time, recorded run = 100 %%\tnative\tat %v\t\n", a.setting.RTT)
	fmt.Fprintf(t, "as recorded\t%.1f %%\t%.1f %%\t\n", 100.0, 100*a.result.Relative)
	for _, w := range a.whatIf {
		fmt.Fprintf(t, "%s\t%.1f %%\t%.1f %%\t\n", w.Change, 100*w.Native, 100*w.Disaggregated)
	}
	t.Flush()
}
