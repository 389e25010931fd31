package placement

import (
	"cmp"
	"slices"
	"sort"
)

// Victim is a lease that may give way to one of higher priority.
type Victim struct {
	ID       string
	Priority int32
	GPUs     int // that it would give up
	// Order is smaller the older the lease is.
	Order uint64
}

// maxVictims bounds among how many leases Preempt chooses: those of the lowest
// priority.
const maxVictims = 256

// Preempt chooses the leases that give way: together they make room, none of
// them can be spared, and no single lease would do it with fewer GPUs. The fewest
// GPUs count first, then the lowest priority, then the youngest leases. It
// returns nil when nothing makes room.
//
// fits says whether the request fits once certain leases are gone. More leases
// gone never make less room.
func Preempt(candidates []Victim, fits func(gone []Victim) bool) []Victim {
	byPriority := slices.SortedFunc(slices.Values(candidates), func(a, b Victim) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.GPUs, b.GPUs), cmp.Compare(b.Order, a.Order))
	})
	byPriority = byPriority[:min(len(byPriority), maxVictims)]
	if len(byPriority) == 0 || !fits(byPriority) {
		return nil
	}
	bySize := slices.SortedFunc(slices.Values(byPriority), func(a, b Victim) int {
		return cmp.Or(cmp.Compare(a.GPUs, b.GPUs), cmp.Compare(a.Priority, b.Priority), cmp.Compare(b.Order, a.Order))
	})
	best := spare(prefix(byPriority, fits), fits)
	if other := spare(prefix(bySize, fits), fits); cheaper(other, best) {
		best = other
	}
	for _, v := range bySize {
		one := []Victim{v}
		if cheaper(one, best) && fits(one) {
			return one
		}
	}
	return best
}

// prefix returns the shortest beginning that makes room; the whole does.
func prefix(order []Victim, fits func([]Victim) bool) []Victim {
	n := sort.Search(len(order)-1, func(i int) bool { return fits(order[:i+1]) })
	return order[:n+1]
}

// spare leaves out who need not give way, the dearest first.
func spare(gone []Victim, fits func([]Victim) bool) []Victim {
	dearest := slices.SortedFunc(slices.Values(gone), func(a, b Victim) int {
		return cmp.Or(cmp.Compare(b.GPUs, a.GPUs), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Order, b.Order))
	})
	out := slices.Clone(gone)
	for _, v := range dearest {
		without := slices.DeleteFunc(slices.Clone(out), func(o Victim) bool { return o.ID == v.ID })
		if len(without) > 0 && fits(without) {
			out = without
		}
	}
	return out
}

// cheaper compares two choices.
func cheaper(a, b []Victim) bool {
	ga, pa, oa := price(a)
	gb, pb, ob := price(b)
	return cmp.Or(cmp.Compare(ga, gb), cmp.Compare(pa, pb), cmp.Compare(ob, oa)) < 0
}

// price sums up a choice: GPUs, the highest priority, and the age of the oldest.
func price(vs []Victim) (gpus int, priority int32, oldest uint64) {
	priority, oldest = vs[0].Priority, vs[0].Order
	for _, v := range vs {
		gpus += v.GPUs
		priority, oldest = max(priority, v.Priority), min(oldest, v.Order)
	}
	return gpus, priority, oldest
}
