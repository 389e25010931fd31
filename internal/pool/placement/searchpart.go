package placement

import (
	"container/heap"
	"math/bits"
)

// Bounds of a search in one class. Without rules, interference and full uplinks the first state is the
// best one.
const (
	maxLooks = 32   // states of GPUs that are compared in a plane once there is a place
	maxTries = 128  // GPUs that are compared with the rules of the request
	maxCells = 8192 // cells whose costs are computed, but for the rest of a block
)

// key orders the cells of a plane: the first one costs a part least, and of equal costs
// the tightest comes first.
type key struct {
	cost   int64  // without the interference of programs
	sum    uint32 // of the thousandths of compute and memory that are left
	memory uint32 // of these
}

func (k key) less(o key) bool {
	if k.cost != o.cost {
		return k.cost < o.cost
	}
	return k.sum < o.sum || k.sum == o.sum && k.memory < o.memory
}

// spot is a block of a plane with its first cell that the search has not looked at, or
// with a key that is not behind it.
type spot struct {
	key
	exact bool
	block *block
}

// spots is a heap, of the first key first.
type spots []spot

func (h spots) Len() int { return len(h) }
func (h spots) Less(i, k int) bool {
	if h[i].key == h[k].key {
		return h[i].block.at < h[k].block.at
	}
	return h[i].key.less(h[k].key)
}
func (h spots) Swap(i, k int) { h[i], h[k] = h[k], h[i] }
func (h *spots) Push(any)     {} // no spot is added
func (h *spots) Pop() any {
	*h = (*h)[:len(*h)-1]
	return nil
}

// classSearch is the search in the GPUs of one class.
type classSearch struct {
	*partSearch
	class   sharedClass
	loss    *loss
	need    uint32 // of the part's memory, in thousandths, rounded up
	memory  uint32 // rounded down: the first cells that may have it
	partly  bool   // a GPU of these may have less
	marks   marks
	plane   *plane
	nearest distance // no GPU of the plane is nearer
	looks   int
	// lastTry and lastCell are the bounds for the sums of the decision.
	lastTry, lastCell int
	pivot             sharedGPU // where a state begins in the order
	at                Box       // of the pivot
}

func (s *partSearch) searchClass(c sharedClass, of *plane) {
	x := &classSearch{
		partSearch: s, class: c, loss: s.pool.lossOf(c.model, c.memory),
		need: permilleUp(s.part.Memory, c.memory), memory: permille(s.part.Memory, c.memory),
	}
	x.pivot.box, x.lastTry, x.lastCell = &x.at, s.tries+maxTries, s.cells+maxCells
	x.partly = leastBytes(x.memory, c.memory) < s.part.Memory
	for _, at := range x.loss.memories {
		x.marks.add(at)
		x.marks.add(at + x.need)
	}
	if s.req.site == nil {
		x.search(of, 0)
		return
	}
	least, nearer := s.req.site.least(c.paths)
	if near := of.racks[nearer]; near != nil {
		x.search(near, s.req.site.distance(Location{nearer, c.paths}))
	}
	x.search(of, least)
}

// search finds the best GPU of a plane. It opens the block that may cost least until no
// other one can win.
func (x *classSearch) search(in *plane, nearest distance) {
	x.plane, x.nearest, x.looks = in, nearest, 0
	h := x.pool.spots[:0]
	for _, b := range in.blocks {
		if k, ok := x.bound(b); ok {
			h = append(h, spot{key: k, block: b})
		}
	}
	x.pool.spots = h
	heap.Init(&h)
	for len(h) > 0 && !x.enough() && x.mayWin(h[0].key) {
		s := &h[0]
		if s.exact {
			x.look(s.key)
		} else if x.cells >= x.lastCell {
			x.cut = true
			heap.Pop(&h)
			continue
		}
		var ok bool
		if s.key, ok = x.next(s.block, s.key, s.exact); !ok {
			heap.Pop(&h)
			continue
		}
		s.exact = true
		heap.Fix(&h, 0)
	}
	x.cut = x.cut || x.tries >= x.lastTry
}

// enough reports whether the search has compared enough GPUs.
func (x *classSearch) enough() bool {
	return x.best != nil && x.looks >= maxLooks || x.tries >= x.lastTry
}

// mayWin reports whether a GPU of a cell may be better than the best one.
func (x *classSearch) mayWin(k key) bool {
	if x.best == nil || k.cost != x.cost {
		return x.best == nil || k.cost < x.cost
	}
	if d := x.distance(x.best); d != x.nearest {
		return d > x.nearest
	}
	_, memory := x.best.cell()
	return !key{k.cost, x.best.left(), memory}.less(k)
}

// key returns the key of a cell.
func (x *classSearch) key(compute, memory uint32) key {
	cost := x.loss.fragmented(compute-x.part.Compute, x.left(memory)) - x.loss.fragmented(compute, memory)
	return key{cost, compute + memory, memory}
}

// left returns the thousandths of memory that the part leaves.
func (x *classSearch) left(has uint32) uint32 { return has - min(has, x.need) }

// bound returns a key that is not behind that of any cell of a block where the part may
// fit, false if there is no such cell. From the first to the last cell fewer typical
// requests miss the room, before the part and after it.
func (x *classSearch) bound(b *block) (key, bool) {
	compute, memory := b.origin()
	lastCompute, lastMemory := min(compute+blockCells-1, Whole), min(memory+memoryCells-1, Whole)
	compute, memory = max(compute, x.part.Compute), max(memory, x.memory)
	if compute > lastCompute || memory > lastMemory {
		return key{}, false
	}
	taken := int64(x.part.Compute + x.need)
	before, after := x.loss.missesAt(compute, memory), x.loss.missesAt(lastCompute-x.part.Compute, x.left(lastMemory))
	cost := func(sum uint32) int64 { return (int64(sum)-taken)*after - int64(sum)*before }
	low := min(cost(compute+memory), cost(lastCompute+lastMemory))
	// The room that is left loses no request that misses it already.
	atMost := -taken * x.loss.missesAt(compute-x.part.Compute, x.left(memory))
	return key{max(low, atMost), compute + memory, memory}, true
}

// next returns the first cell of a block, or the first one behind a key.
func (x *classSearch) next(b *block, k key, behind bool) (first key, ok bool) {
	_, memory := b.origin()
	within := ^uint64(0)
	if x.memory > memory {
		within <<= x.memory - memory
	}
	for i := range b.rows {
		r := &b.rows[i]
		if r.compute < x.part.Compute || r.most < x.part.Memory {
			continue
		}
		for cells := r.cells & within; cells != 0; {
			at := uint32(bits.TrailingZeros64(cells))
			has := x.key(r.compute, memory+at)
			x.cells++
			cells &= cells - 1
			if behind && !k.less(has) {
				continue
			}
			if !ok || has.less(first) {
				if has.memory == x.memory && x.partly && cells != 0 && !x.fits(r.compute) {
					continue
				}
				first, ok = has, true
			}
			// Up to the next mark more room costs no less.
			cells &= x.marks.after(memory/memoryCells, at)
		}
	}
	return first, ok
}

// fits reports whether a GPU with some compute has the memory, in the first cell that may.
func (x *classSearch) fits(compute uint32) bool {
	x.at.Rack, x.pivot.state.programs = "", ""
	g, ok := x.plane.first(spare{compute, x.part.Memory, &x.pivot})
	return ok && g.compute == compute && permille(g.memory, x.class.memory) == x.memory
}

// look looks at the states of a cell, of the least memory first, until one has a GPU that
// none of the others can beat.
func (x *classSearch) look(k key) {
	from := spare{k.sum - k.memory, max(x.part.Memory, leastBytes(k.memory, x.class.memory)), &x.pivot}
	x.at.Rack, x.pivot.state.programs = "", ""
	for {
		state, found := x.firstFrom(from)
		if state == nil || state.state.compute != from.compute || permille(state.state.memory, x.class.memory) != k.memory {
			return
		}
		x.looks++
		cost := k.cost + x.pool.interference.slowdown(x.part, state.beside)
		if found != nil && (x.best == nil || cost <= x.cost) {
			found = x.nearestFrom(found)
			if x.offer(found, cost); cost == k.cost && x.distance(found) <= x.nearest {
				return
			}
		}
		if x.enough() {
			return
		}
		from.memory = state.state.memory
		x.at.Rack, x.pivot.state.programs = "", state.state.programs+"\x00" // the next one
	}
}

// firstFrom returns the first state from some place in the order, and the first GPU of it
// that the rules of the request admit.
func (x *classSearch) firstFrom(from spare) (state, found *sharedGPU) {
	x.plane.gpus.AscendGreaterOrEqual(from, func(g spare) bool {
		switch {
		case state == nil:
			state = g.sharedGPU
		case g.state != state.state:
			return false
		}
		x.tries++
		if x.lacks(g.sharedGPU) == 0 {
			found = g.sharedGPU
		}
		return found == nil && !x.enough()
	})
	return state, found
}

// nearestFrom returns the nearest GPU of a state that the rules of the request admit, from
// the first one on.
func (x *classSearch) nearestFrom(first *sharedGPU) *sharedGPU {
	best, d := first, x.distance(first)
	x.pivot.state.programs = first.state.programs
	for g := first; d > x.nearest && !x.enough(); {
		x.at.Rack = g.box.Rack + "\x00"
		state, found := x.firstFrom(spare{first.state.compute, first.state.memory, &x.pivot})
		if found == nil || state.state != first.state {
			break
		}
		if to := x.distance(found); to < d {
			best, d = found, to
		}
		g = found
	}
	return best
}
