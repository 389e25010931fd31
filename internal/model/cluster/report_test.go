package cluster

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A comparison has the lines of both scenarios in one plot, and names what only one has.
func TestComparePlots(t *testing.T) {
	report := func(y float64, rows ...string) *Report {
		r := &Report{Name: "r", Tables: []Table{{Name: "t", Columns: []Column{{Key: "k"}}}}, Plots: []Plot{{Title: "used", X: "load", Y: "%"}}}
		for _, name := range rows {
			r.Tables[0].Rows = append(r.Tables[0].Rows, Row{Name: name, Values: []float64{y}})
			r.Plots[0].Lines = append(r.Plots[0].Lines, Line{Name: name, X: []float64{1}, Y: []float64{y}})
		}
		return r
	}
	b := report(2, "pool", "other")
	c := Compare(report(1, "fgd", "pool"), b)
	want := []Plot{{Title: "used", X: "load", Y: "%", Lines: []Line{{Name: "pool, A", X: []float64{1}, Y: []float64{1}}, {Name: "pool, B", X: []float64{1}, Y: []float64{2}, Second: true}}}}
	if d := cmp.Diff(want, c.Plots); d != "" {
		t.Error(d)
	}
	if facts := strings.Join(c.Facts, "\n"); !strings.Contains(facts, "only in A, and not shown: fgd\nonly in B, and not shown: other") {
		t.Error(facts)
	}
	b.Plots[0].X = "demand"
	if c := Compare(report(1, "pool"), b); len(c.Plots) != 0 {
		t.Errorf("plots of different things: %+v", c.Plots)
	}
}
