package placement

import (
	"cmp"
	"slices"
)

// Held is a GPU that a lease has.
type Held struct {
	Ref
	Domain string // NVLink domain; empty: none
	// Sound says that it works and may stay where it is. One that does not is
	// given up first.
	Sound bool
	// Attached says that the guest has it already.
	Attached bool
	// Order is smaller the longer the lease has it.
	Order uint64
}

// Shrink chooses the n GPUs that a lease gives up so that the rest sits together
// best: first what is not sound, then what is not attached yet; then from the box
// where the lease has the fewest, so that whole boxes are left; within a box from
// the NVLink domain where it has the fewest; then the newest. A lease that is
// spread gives up from where it has the most.
func Shrink(held []Held, n int, spread bool) []Ref {
	rest := slices.Clone(held)
	var out []Ref
	for len(out) < n && len(rest) > 0 {
		count := func(same func(Held) bool) int {
			c := 0
			for _, h := range rest {
				if same(h) {
					c++
				}
			}
			return c
		}
		inBox := func(h Held) int {
			c := count(func(o Held) bool { return o.Box == h.Box })
			if spread {
				return -c
			}
			return c
		}
		inDomain := func(h Held) int { return count(func(o Held) bool { return o.Box == h.Box && o.Domain == h.Domain }) }
		first := slices.MinFunc(rest, func(a, b Held) int {
			return cmp.Or(
				cmp.Compare(rank(a.Sound), rank(b.Sound)),
				cmp.Compare(rank(a.Attached), rank(b.Attached)),
				cmp.Compare(inBox(a), inBox(b)),
				cmp.Compare(inDomain(a), inDomain(b)),
				cmp.Compare(b.Order, a.Order),
			)
		})
		out = append(out, first.Ref)
		rest = slices.DeleteFunc(rest, func(h Held) bool { return h.Ref == first.Ref })
	}
	return out
}
