package placement

import (
	"cmp"
	"slices"
)

// LeasedGPU is a GPU that a lease has.
type LeasedGPU struct {
	Ref
	Domain string // NVLink domain; empty: none
	// Sound reports whether the GPU works and may stay where it is. A GPU that is
	// not sound is given up first.
	Sound    bool
	Attached bool // to the guest
	// Order is the order in which the lease got its GPUs: lower is older.
	Order uint64
}

// Shrink chooses the n GPUs that a lease gives up, so that the remaining ones are
// close together: first GPUs that are not sound, then those not attached yet; then
// from the box where the lease has the fewest, so that it keeps whole boxes; within
// a box from the NVLink domain where it has the fewest; then the newest. A lease
// that is spread gives up GPUs from where it has the most.
func Shrink(leased []LeasedGPU, n int, spread bool) []Ref {
	rest := slices.Clone(leased)
	var out []Ref
	for len(out) < n && len(rest) > 0 {
		count := func(same func(LeasedGPU) bool) int {
			c := 0
			for _, g := range rest {
				if same(g) {
					c++
				}
			}
			return c
		}
		inBox := func(g LeasedGPU) int {
			c := count(func(o LeasedGPU) bool { return o.Box == g.Box })
			if spread {
				return -c
			}
			return c
		}
		inDomain := func(g LeasedGPU) int {
			return count(func(o LeasedGPU) bool { return o.Box == g.Box && o.Domain == g.Domain })
		}
		first := slices.MinFunc(rest, func(a, b LeasedGPU) int {
			return cmp.Or(
				cmp.Compare(rank(!a.Sound), rank(!b.Sound)),
				cmp.Compare(rank(!a.Attached), rank(!b.Attached)),
				cmp.Compare(inBox(a), inBox(b)),
				cmp.Compare(inDomain(a), inDomain(b)),
				cmp.Compare(b.Order, a.Order),
			)
		})
		out = append(out, first.Ref)
		rest = slices.DeleteFunc(rest, func(g LeasedGPU) bool { return g.Ref == first.Ref })
	}
	return out
}
