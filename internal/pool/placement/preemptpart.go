package placement

import (
	"cmp"
	"math/bits"
	"slices"
)

// PartVictim is a lease that may be preempted, and the part of a GPU that it gives up.
type PartVictim struct {
	Victim
	Memory  uint64 // bytes
	Compute uint32 // thousandths
}

// maxPartVictims bounds the parts of one GPU that SmallestParts considers.
const maxPartVictims = 12

// SmallestParts chooses the parts of one GPU whose end leaves some memory and compute
// free, beside what is free already. No other choice is smaller; of equal ones it is the
// cheapest, as Preempt compares them. It returns nil if all of them are not enough.
func SmallestParts(victims []PartVictim, freeMemory uint64, freeCompute uint32, memory uint64, compute uint32) []Victim {
	victims = slices.SortedFunc(slices.Values(victims), func(a, b PartVictim) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(b.Share, a.Share), cmp.Compare(a.Size, b.Size), cmp.Compare(b.Order, a.Order))
	})
	victims = victims[:min(len(victims), maxPartVictims)]
	var best []Victim
	var gone [maxPartVictims]Victim
	for set := uint(1); set < 1<<len(victims); set++ {
		m, c, n := freeMemory, freeCompute, 0
		for rest := set; rest != 0; rest &= rest - 1 {
			v := &victims[bits.TrailingZeros(rest)]
			m, c = m+v.Memory, c+v.Compute
			gone[n] = v.Victim
			n++
		}
		if m >= memory && c >= compute && (best == nil || Cheaper(gone[:n], best)) {
			best = append(best[:0], gone[:n]...)
		}
	}
	return best
}
