package cluster

import "time"

// allocTime is the time that placements took.
type allocTime struct {
	n       int // tries, those that found no place included
	took    time.Duration
	longest time.Duration
}

func (a *allocTime) add(b allocTime) {
	a.n, a.took, a.longest = a.n+b.n, a.took+b.took, max(a.longest, b.longest)
}

// timed is a placer whose placements are timed.
type timed struct {
	placer
	clock func() time.Duration
	allocTime
}

func (t *timed) place(p *Pod) (placed, bool) {
	start := t.clock()
	at, ok := t.placer.place(p)
	took := t.clock() - start
	t.add(allocTime{1, took, took})
	return at, ok
}

// allocTimes are the times of the runs of a study, if the experiment has a clock.
type allocTimes []*timed

// of returns the placer of a run, with its clock.
func (a allocTimes) of(run int, pl placer, clock func() time.Duration) placer {
	if clock == nil {
		return pl
	}
	a[run] = &timed{placer: pl, clock: clock}
	return a[run]
}

// table has a line for each contestant; runsOf returns its runs.
func (a allocTimes) table(who []contestant, runsOf func(who int) []int) Table {
	t := Table{Name: "allocation_time", Title: "Time of one allocation on this machine, with its other load", First: "policy", Columns: []Column{
		{"allocations", "allocations", 0}, {"mean_us", "mean, µs", 2}, {"longest_us", "longest, µs", 0},
	}, Note: "Tries that found no place count. This table differs from run to run, all others do not."}
	for i := range who {
		var sum allocTime
		for _, run := range runsOf(i) {
			if a[run] != nil {
				sum.add(a[run].allocTime)
			}
		}
		us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
		t.Rows = append(t.Rows, Row{who[i].name, []float64{float64(sum.n), us(sum.took) / float64(max(sum.n, 1)), us(sum.longest)}})
	}
	return t
}

// span returns n numbers from one on.
func span(from, n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = from + i
	}
	return out
}
