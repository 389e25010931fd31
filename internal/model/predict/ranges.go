package predict

import (
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// Outside is the name of the parts of a critical path that belong to no range.
const Outside = "outside of ranges"

// ranges tells which ranges of a workload its calls began in.
type ranges struct {
	innermost []int32 // by call: the range that began last of those that it began in, or none
	parent    []int32 // by range: the range that it began in, or none
}

func rangesOf(w *workload.Workload) ranges {
	r := ranges{innermost: make([]int32, len(w.Calls)), parent: make([]int32, len(w.Ranges))}
	next := make([]int, len(w.Threads)) // the first range of each thread that has not begun
	for i := len(w.Ranges) - 1; i >= 0; i-- {
		next[w.Ranges[i].Thread] = i
	}
	open := make([][]int32, len(w.Threads))
	at := func(thread int32, now time.Duration) int32 {
		stack := open[thread]
		for len(stack) > 0 && w.Ranges[stack[len(stack)-1]].End() <= now {
			stack = stack[:len(stack)-1]
		}
		if open[thread] = stack; len(stack) == 0 {
			return none
		}
		return stack[len(stack)-1]
	}
	for i := range w.Calls {
		c := &w.Calls[i]
		for k := next[c.Thread]; k < len(w.Ranges) && w.Ranges[k].Thread == c.Thread && w.Ranges[k].Start <= c.Start; k++ {
			r.parent[k] = at(c.Thread, w.Ranges[k].Start)
			open[c.Thread] = append(open[c.Thread], int32(k))
			next[c.Thread] = k + 1
		}
		r.innermost[i] = at(c.Thread, c.Start)
	}
	return r
}

// SumsByRange adds up the critical path by the innermost range of the program in which
// the host made the call that launched an operation or waited for it. Collectives have
// lines of their own. It returns nil if the workload has no ranges.
func (p *Plan) SumsByRange(c *Critical) []PathSum {
	if len(p.w.Ranges) == 0 {
		return nil
	}
	r := rangesOf(p.w)
	return sumParts(c, func(part *PathPart) string {
		call := part.Call
		if part.Op != none {
			op := &p.w.Ops[part.Op]
			if name := p.w.Names[op.Name]; part.Kind == OnGPU && workload.ClassifyCollective(name) != workload.NoCollective {
				return "collective " + name
			}
			call = op.Call
		}
		if call == none || r.innermost[call] == none {
			return Outside
		}
		return p.w.Names[p.w.Ranges[r.innermost[call]].Name]
	})
}

// Interval is a time of a replay; To is before From if there is none.
type Interval struct{ From, To time.Duration }

// RangeIntervals returns for each range of the workload the time of its calls in a replay.
func (p *Plan) RangeIntervals(c *Critical) []Interval {
	r := rangesOf(p.w)
	out := make([]Interval, len(p.w.Ranges))
	for i := range out {
		out[i] = Interval{1, 0}
	}
	extend := func(i int32, by Interval) {
		if i == none || by.To < by.From {
			return
		}
		if s := &out[i]; s.To < s.From {
			*s = by
		} else {
			*s = Interval{min(s.From, by.From), max(s.To, by.To)}
		}
	}
	for i, k := range r.innermost {
		extend(k, Interval{c.CallStart[i], c.CallEnd[i]})
	}
	for i := len(out) - 1; i >= 0; i-- { // a range comes before those that begin in it
		if out[i].To >= out[i].From {
			extend(r.parent[i], out[i])
		}
	}
	return out
}
