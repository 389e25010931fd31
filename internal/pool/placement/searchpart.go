package placement

import (
	"cmp"
	"container/heap"
	"slices"
)

// Bounds of a search in a class once it has a place, for pools with thousands of different
// states. Those that can cost least come first.
const (
	maxLooks = 64   // states that are compared, mostly of equal cost
	maxRows  = 1024 // rows in which a state is looked up
)

// region is the states of a class for which the same typical requests do not fit before a
// part takes its room, and the same ones afterwards. In a region a state costs no more than
// those with more room: the room times the share of the requests that no longer fit, which
// is never negative, is all that differs. So the first state of a row is its best one, and a
// row can be left out if its compute alone makes it too dear.
type region struct {
	low           int64       // no state in the rows costs less
	rows          []*stateRow // that are left to look at
	from, below   uint64      // bytes of memory, the second one not included
	before, after int64       // typical requests that do not fit, of million
	number        int
}

// regions is a heap, of the least cost first.
type regions []region

func (h regions) Len() int { return len(h) }
func (h regions) Less(i, k int) bool {
	return cmp.Or(cmp.Compare(h[i].low, h[k].low), cmp.Compare(h[i].number, h[k].number)) < 0
}
func (h regions) Swap(i, k int) { h[i], h[k] = h[k], h[i] }
func (h *regions) Push(any)     {} // no region is added
func (h *regions) Pop() any {
	*h = (*h)[:len(*h)-1]
	return nil
}

// classSearch is the search in the states of one class.
type classSearch struct {
	*partSearch
	class       sharedClass
	loss        *loss
	need        uint32 // of the part's memory, in thousandths, rounded up
	looks, rows int
}

// enough reports whether the search has looked at enough states.
func (x *classSearch) enough() bool {
	return x.best != nil && (x.looks >= maxLooks || x.rows >= maxRows)
}

func (s *partSearch) searchClass(c sharedClass, of *states) {
	x := &classSearch{partSearch: s, class: c, loss: s.pool.lossOf(c.model, c.memory), need: permilleUp(s.part.Memory, c.memory)}
	h := x.regions(of)
	heap.Init(&h)
	for len(h) > 0 && !x.enough() && (s.best == nil || h[0].low <= s.cost) {
		r := &h[0]
		x.look(r, r.rows[0])
		if r.rows = r.rows[1:]; len(r.rows) == 0 {
			heap.Pop(&h)
			continue
		}
		r.low = x.bound(r, r.rows[0].compute, r.from)
		heap.Fix(&h, 0)
	}
}

// regions returns the regions in which the part may fit.
func (x *classSearch) regions(of *states) (out regions) {
	limits := x.limits()
	first, _ := of.row(x.part.Compute)
	for rows := of.rows[first:]; len(rows) > 0; {
		before, after := x.steps(rows[0])
		n := 1
		for n < len(rows) {
			if b, a := x.steps(rows[n]); b != before || a != after {
				break
			}
			n++
		}
		for i, from := range limits[:len(limits)-1] {
			r := region{rows: rows[:n], from: from, below: limits[i+1], number: len(out)}
			r.before = x.loss.misses[before][x.loss.column[permille(from, x.class.memory)]]
			r.after = x.loss.misses[after][x.loss.column[x.left(permille(from, x.class.memory))]]
			r.low = x.bound(&r, rows[0].compute, from)
			out = append(out, r)
		}
		rows = rows[n:]
	}
	return out
}

// steps returns the steps of compute of a row, before and after the part.
func (x *classSearch) steps(r *stateRow) (before, after uint8) {
	return x.loss.row[r.compute], x.loss.row[r.compute-x.part.Compute]
}

// limits returns the bytes of memory at which regions begin, in order, and an end.
func (x *classSearch) limits() []uint64 {
	out := make([]uint64, 0, 2*len(x.loss.memories)+2)
	out = append(out, x.part.Memory, x.class.memory+1)
	for _, t := range x.loss.memories {
		for _, at := range [...]uint64{leastBytes(t, x.class.memory), leastBytes(t+x.need, x.class.memory)} {
			if at > x.part.Memory && at <= x.class.memory {
				out = append(out, at)
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// left returns the thousandths of memory that the part leaves.
func (x *classSearch) left(has uint32) uint32 { return has - min(has, x.need) }

// bound returns the cost of a state of a region with some compute and memory, without the
// interference of its programs. States with more of either cost no less.
func (x *classSearch) bound(r *region, compute uint32, memory uint64) int64 {
	has := permille(memory, x.class.memory)
	return int64(compute-x.part.Compute+x.left(has))*r.after - int64(compute+has)*r.before
}

// look looks at the states of a row in a region, as long as they may cost least.
func (x *classSearch) look(r *region, row *stateRow) {
	x.rows++
	row.states.AscendGreaterOrEqual(&stateGPUs{state: state{room: room{memory: r.from}}}, func(in *stateGPUs) bool {
		if in.memory >= r.below || x.best != nil && x.bound(r, row.compute, in.memory) > x.cost {
			return false
		}
		x.looks++
		cost := x.loss.gradient(in.room, x.class.memory, x.part) + x.pool.interference.slowdown(x.part, in.beside)
		if x.best == nil || cost <= x.cost {
			if g := x.nearestIn(in.gpus, x.class.paths); g != nil {
				x.offer(g, cost)
			}
		}
		return !x.enough()
	})
}
