package mapping

import (
	"cmp"
	"slices"
	"sort"

	"github.com/dxpu-project/dxpu/cfgspace"
)

// windowIndex finds the slot of an address in a few steps. It is rebuilt when a
// port changes, which happens at enumeration, and read for every TLP.
type windowIndex []slotWindow // sorted by base

type slotWindow struct {
	cfgspace.Window
	slot  int
	reach uint64 // highest limit of this window and of all before it
}

// rebuild sorts the windows of all ports. Windows of different ports may
// overlap for a moment, while firmware sizes and moves BARs.
func (x *windowIndex) rebuild(ports []Port) {
	*x = (*x)[:0]
	for slot := range ports {
		for _, w := range ports[slot].Windows {
			*x = append(*x, slotWindow{Window: w, slot: slot})
		}
	}
	slices.SortFunc(*x, func(a, b slotWindow) int {
		return cmp.Or(cmp.Compare(a.Base, b.Base), cmp.Compare(a.slot, b.slot))
	})
	var reach uint64
	for i := range *x {
		reach = max(reach, (*x)[i].Limit)
		(*x)[i].reach = reach
	}
}

// find returns the slot whose window holds the n bytes at addr. Of windows
// that overlap it takes the one with the highest base.
func (x windowIndex) find(addr, n uint64) (slot int, ok bool) {
	above := sort.Search(len(x), func(i int) bool { return x[i].Base > addr })
	for i := above - 1; i >= 0 && x[i].reach >= addr; i-- {
		if x[i].Contains(addr, n) {
			return x[i].slot, true
		}
	}
	return 0, false
}

// overlaps reports whether a window holds any of the n bytes at addr.
func (x windowIndex) overlaps(addr, n uint64) bool {
	above := sort.Search(len(x), func(i int) bool { return x[i].Base > addr+(n-1) })
	return above > 0 && x[above-1].reach >= addr
}

// overlap reports whether a window holds any of the n bytes at addr.
func overlap(w cfgspace.Window, addr, n uint64) bool { return w.Base <= addr+(n-1) && w.Limit >= addr }
