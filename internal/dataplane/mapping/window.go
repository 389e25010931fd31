package mapping

import (
	"cmp"
	"slices"
)

// Window is a range of bus addresses, from Base to Limit inclusive, as the
// base and limit registers of a bridge give it.
type Window struct {
	Base, Limit uint64
}

// NewWindow builds the window of size bytes at base. A size of zero, or one
// that passes the end of the address space, gives the empty window and false.
func NewWindow(base, size uint64) (Window, bool) {
	if size == 0 || base+(size-1) < base {
		return Window{}, false
	}
	return Window{base, base + (size - 1)}, true
}

// Contains reports whether the n bytes at addr lie entirely in the window.
func (w Window) Contains(addr, n uint64) bool {
	if n == 0 {
		n = 1 // a zero-length read still names an address
	}
	last := addr + (n - 1)
	return addr >= w.Base && last <= w.Limit && last >= addr
}

// windowIndex finds the owner of an address in a few steps. It is rebuilt when
// a window changes, which happens at enumeration, and read for every TLP.
type windowIndex struct {
	sorted []ownedWindow // by base; windows of different owners may not overlap
}

type ownedWindow struct {
	Window
	owner int
}

// rebuild sorts the windows. Where two overlap, as they do for a moment while
// firmware sizes and moves BARs, the one with the lower base is searched
// first, so the answer is always one of the owners and never a panic.
func (x *windowIndex) rebuild(each func(yield func(owner int, w Window))) {
	x.sorted = x.sorted[:0]
	each(func(owner int, w Window) {
		x.sorted = append(x.sorted, ownedWindow{w, owner})
	})
	slices.SortFunc(x.sorted, func(a, b ownedWindow) int {
		return cmp.Or(cmp.Compare(a.Base, b.Base), cmp.Compare(a.owner, b.owner))
	})
}

// find returns the owner of the n bytes at addr.
func (x *windowIndex) find(addr, n uint64) (owner int, ok bool) {
	lo, hi := 0, len(x.sorted)
	for lo < hi { // first window whose base is above addr
		mid := int(uint(lo+hi) >> 1)
		if x.sorted[mid].Base <= addr {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	for i := lo - 1; i >= 0; i-- {
		if x.sorted[i].Contains(addr, n) {
			return x.sorted[i].owner, true
		}
		if i < lo-maxOverlap {
			break
		}
	}
	return 0, false
}

// maxOverlap bounds how many windows before the nearest one are looked at:
// those are there only while windows overlap.
const maxOverlap = 8
