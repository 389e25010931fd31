package predict

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// Two pairs of ranks that exchange data within each pair, without the names of their
// groups, look like one group of four. That a rank ends before another has come shows
// that they are not.
func TestGroupsWithoutNames(t *testing.T) {
	for name, jitter := range map[string]time.Duration{"two groups": 300 * us, "one group": 0} {
		var plans []*Plan
		for r := range 4 {
			rec := record(t)
			for n := range 12 {
				at := time.Duration(n) * time.Millisecond
				if r >= 2 && n%3 == 0 {
					at += jitter
				}
				corr := rec.launch(workload.Launch, 1, at, simCall)
				rec.collective("AllReduce", corr, collectives, at+10*us, 50*us)
			}
			plans = append(plans, rec.plan())
		}
		j, err := NewJob(plans)
		if err != nil {
			t.Fatal(err)
		}
		doubted := len(j.Doubts) == 1 && strings.Contains(j.Doubts[0], "in 4 of 12 collectives")
		if doubted != (jitter > 0) || !j.Guessed {
			t.Errorf("%s: doubts %q, guessed %v", name, j.Doubts, j.Guessed)
		}
	}
}

// Traces that lack a part of the run give no verdict on it.
func TestDoubtsOfTraces(t *testing.T) {
	for want, damage := range map[string]func(w *workload.Workload){
		"3 ranks and only 2":       func(w *workload.Workload) { w.World = 3 },
		"traces are incomplete":    func(w *workload.Workload) { w.Report.Incomplete = true },
		"graphs without their ker": func(w *workload.Workload) { w.Ops[0].Kind = workload.WholeGraph },
	} {
		c := newCluster(t, 2, everyRank, 0, 100*us)
		c.run(4)
		plans := c.plans()
		damage(plans[1].w)
		j, err := NewJob(plans)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(j.Doubts, func(d string) bool { return strings.Contains(d, want) }) {
			t.Errorf("no %q in %q", want, j.Doubts)
		}
	}
}
