package predict

import (
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// named adds ranges to a copy of a plan's workload, each from a call up to before another.
func named(p *Plan, parts ...struct {
	name     string
	from, to int
},
) *Plan {
	w := *p.w
	w.Names = slices.Clone(w.Names)
	for _, part := range parts {
		from, to := &w.Calls[part.from], &w.Calls[part.to]
		w.Names = append(w.Names, part.name)
		w.Ranges = append(w.Ranges, workload.Range{Name: uint32(len(w.Names) - 1), Thread: from.Thread, Start: from.Start, Dur: to.Start - from.Start})
	}
	q := *p
	q.w = &w
	return &q
}

type namedPart = struct {
	name     string
	from, to int
}

// Each part of the critical path belongs to the innermost range of its call, and the sums
// are those of the whole path.
func TestSumsByRange(t *testing.T) {
	plan := hostBound(t)
	n := len(plan.w.Calls)
	if n < 8 {
		t.Fatalf("%d calls", n)
	}
	plan = named(plan, namedPart{"outer", 1, n - 2}, namedPart{"inner", 2, 4}, namedPart{"second", 4, 6})
	c, err := plan.Critical(at(delta10))
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]PathSum{}
	var sum, all time.Duration
	for _, s := range plan.SumsByRange(c) {
		got[s.Name] = s
		sum += s.Time
	}
	for _, part := range c.Parts() {
		all += part.To - part.From
	}
	if sum != all {
		t.Errorf("ranges take %v of %v", sum, all)
	}
	r := rangesOf(plan.w)
	want := []int32{none, 0, 1, 1, 2, 2, 0}
	if !slices.Equal(r.innermost[:7], want) || r.innermost[n-1] != none || !slices.Equal(r.parent, []int32{none, 0, 0}) {
		t.Errorf("calls in ranges %v, parents %v, want %v", r.innermost, r.parent, want)
	}
	for _, name := range []string{"outer", "inner", "second", Outside} {
		if got[name].Time <= 0 {
			t.Errorf("nothing of the path in %s: %v", name, got)
		}
	}
	spans := plan.RangeIntervals(c)
	if spans[0].From != c.CallStart[1] || spans[0].To != c.CallEnd[n-3] || spans[1] != (Interval{c.CallStart[2], c.CallEnd[3]}) || spans[2].From != c.CallStart[4] {
		t.Errorf("spans %v", spans)
	}
	if hostBound(t).SumsByRange(c) != nil {
		t.Error("sums of a workload without ranges")
	}
}

// Plans with the fewest and with the most waits have the order of the plan itself: a large trace
// was sorted three times, and its order was kept three times.
func TestAlternativesShareTheOrder(t *testing.T) {
	p := gpuBound(t)
	other := p.with(nil, nil, true)
	if &other.order[0] != &p.order[0] || &other.ends[0] != &p.ends[0] || other.launchLag != p.launchLag || other.streamLag != p.streamLag {
		t.Error("the plan of other waits has an order of its own")
	}
}
