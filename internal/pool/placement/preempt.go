package placement

import (
	"cmp"
	"slices"
	"sort"
)

// Victim is a lease that may be preempted for one of higher priority.
type Victim struct {
	ID       string
	Priority int32
	GPUs     int // that it would give up
	// Order is the order in which the leases were made: lower is older.
	Order uint64
}

// maxVictims bounds the leases that Preempt considers: those of the lowest priority.
const maxVictims = 256

// Preempt chooses leases whose end makes room for a request. All of them are
// needed, and no single lease would make room with fewer GPUs. Choices are compared
// by their number of GPUs, then by priority (lowest first), then by age (youngest
// first). Preempt returns nil if nothing makes room.
//
// fits reports whether the request fits after certain leases are gone. It must not
// change from true to false if more are gone.
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
	best := prune(prefix(byPriority, fits), fits)
	if other := prune(prefix(bySize, fits), fits); cheaper(other, best) {
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

// prefix returns the shortest prefix of order that makes room. All of order does.
func prefix(order []Victim, fits func([]Victim) bool) []Victim {
	n := sort.Search(len(order)-1, func(i int) bool { return fits(order[:i+1]) })
	return order[:n+1]
}

// prune removes leases that need not go, the most expensive first.
func prune(gone []Victim, fits func([]Victim) bool) []Victim {
	byCost := slices.SortedFunc(slices.Values(gone), func(a, b Victim) int {
		return cmp.Or(cmp.Compare(b.GPUs, a.GPUs), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Order, b.Order))
	})
	out := slices.Clone(gone)
	for _, v := range byCost {
		without := slices.DeleteFunc(slices.Clone(out), func(o Victim) bool { return o.ID == v.ID })
		if len(without) > 0 && fits(without) {
			out = without
		}
	}
	return out
}

// cheaper reports whether choice a is better than choice b.
func cheaper(a, b []Victim) bool {
	ga, pa, oa := cost(a)
	gb, pb, ob := cost(b)
	return cmp.Or(cmp.Compare(ga, gb), cmp.Compare(pa, pb), cmp.Compare(ob, oa)) < 0
}

// cost returns a choice's number of GPUs, highest priority and lowest Order.
func cost(vs []Victim) (gpus int, priority int32, oldest uint64) {
	priority, oldest = vs[0].Priority, vs[0].Order
	for _, v := range vs {
		gpus += v.GPUs
		priority, oldest = max(priority, v.Priority), min(oldest, v.Order)
	}
	return gpus, priority, oldest
}
