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
	Size     int // of the GPUs and parts that it would give up, in thousandths of a GPU
	// Share is that of the lease's tenant: of equal priorities, the largest goes first.
	Share float64
	// Order is the order in which the leases were made: lower is older.
	Order uint64
}

// MaxVictims bounds the leases that Preempt considers: those of the lowest priority.
const MaxVictims = 256

// Preempt chooses leases whose end makes room for a request. All of them are
// needed, and no single lease would make room with less. Choices are compared
// by their size, then by priority (lowest first), then by the shares of the
// tenants (largest first), then by age (youngest first). Preempt returns nil if nothing makes room.
//
// fits reports whether the request fits after certain leases are gone. It should not
// change from true to false if more are gone. Preempt calls it at most tries times: with
// few of them it may choose leases that are not needed, and never a choice that fits has
// not accepted.
func Preempt(candidates []Victim, tries int, fits func(gone []Victim) bool) []Victim {
	unbounded := fits
	fits = func(gone []Victim) bool {
		tries--
		return tries >= 0 && unbounded(gone)
	}
	byPriority := slices.SortedFunc(slices.Values(candidates), func(a, b Victim) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(b.Share, a.Share), cmp.Compare(a.Size, b.Size), cmp.Compare(b.Order, a.Order))
	})
	byPriority = byPriority[:min(len(byPriority), MaxVictims)]
	if len(byPriority) == 0 || !fits(byPriority) {
		return nil
	}
	bySize := slices.SortedFunc(slices.Values(byPriority), func(a, b Victim) int {
		return cmp.Or(cmp.Compare(a.Size, b.Size), cmp.Compare(a.Priority, b.Priority), cmp.Compare(b.Share, a.Share), cmp.Compare(b.Order, a.Order))
	})
	best := prune(prefix(byPriority, fits), fits)
	if other := prune(prefix(bySize, fits), fits); Cheaper(other, best) {
		best = other
	}
	for _, v := range bySize {
		one := []Victim{v}
		if Cheaper(one, best) && fits(one) {
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
		return cmp.Or(cmp.Compare(b.Size, a.Size), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Share, b.Share), cmp.Compare(a.Order, b.Order))
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

// Cheaper reports whether choice a is better than choice b.
func Cheaper(a, b []Victim) bool {
	ca, cb := costOf(a), costOf(b)
	return cmp.Or(cmp.Compare(ca.Size, cb.Size), cmp.Compare(ca.Priority, cb.Priority), cmp.Compare(cb.Share, ca.Share), cmp.Compare(cb.Order, ca.Order)) < 0
}

// costOf returns a choice's size, highest priority, smallest share and lowest Order.
func costOf(vs []Victim) Victim {
	c := vs[0]
	for _, v := range vs[1:] {
		c.Size += v.Size
		c.Priority, c.Share, c.Order = max(c.Priority, v.Priority), min(c.Share, v.Share), min(c.Order, v.Order)
	}
	return c
}
