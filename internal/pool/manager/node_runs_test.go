package manager

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// The scenarios have one report per line, "RUN SEQUENCE", and print what the manager
// does with it.
func TestRuns(t *testing.T) {
	datadriven.Walk(t, "testdata/runs", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var r runs
			return eachLine(t, d.Input, func(instance string, sequence uint64) string {
				if r.accepts(instance, sequence) {
					return "accepted"
				}
				return "ignored"
			})
		})
	})
}

// The memory of earlier runs is bounded.
func TestRunsAreBounded(t *testing.T) {
	var r runs
	for i := range 10 * maxRetiredRuns {
		if !r.accepts(string(rune('a'+i)), 1) {
			t.Fatalf("run %d is ignored", i)
		}
	}
	if len(r.retired) != maxRetiredRuns {
		t.Errorf("%d runs are remembered, want %d", len(r.retired), maxRetiredRuns)
	}
}

// A late report of an earlier run that a manager receives first after its start does
// not shut out the run that goes on.
func TestLateReportOfAnUnknownRun(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	late := w.nodes["b1"].observe()
	late.InstanceId, late.Sequence, late.Slots[0].Binding = "an earlier run", 7000, nil
	late.AppliedRevision = 1
	if _, _, err := w.m.report(t.Context(), late, func(*tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	w.settle()
	w.wantLease(id, leaseActive)
	w.nodes["b1"].dead[0] = true
	w.settle()
	if l := w.lease(id); l.State != leaseDegraded {
		t.Errorf("the reports of the run that goes on are ignored: lease is %s", leaseWord(l.State))
	}
}

// eachLine appends the result of f to each line of "NAME NUMBER".
func eachLine(t *testing.T, text string, f func(name string, number uint64) string) string {
	t.Helper()
	var out strings.Builder
	for line := range strings.Lines(text) {
		var name string
		var number uint64
		if _, err := fmt.Sscan(line, &name, &number); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		fmt.Fprintf(&out, "%s %d: %s\n", name, number, f(name, number))
	}
	return out.String()
}
