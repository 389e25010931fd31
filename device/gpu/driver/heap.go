package driver

import (
	"cmp"
	"fmt"
	"slices"
)

// Heap allocates pieces of an address range: first fit, with free neighbors merged. It
// serves VRAM, I/O virtual addresses and the memory of the embedded host. The caller
// serializes access.
//
// Invariant: free is sorted by address, and no two entries touch.
type Heap struct {
	free []span
	used map[uint64]uint64 // base -> size
}

type span struct{ base, size uint64 }

// NewHeap returns a heap of the size bytes at base.
func NewHeap(base, size uint64) *Heap {
	h := &Heap{used: make(map[uint64]uint64)}
	if size > 0 {
		h.free = []span{{base, size}}
	}
	return h
}

// Alloc allocates size bytes aligned to align, a power of two. The error wraps
// ErrOutOfMemory when no piece is large enough.
func (h *Heap) Alloc(size, align uint64) (uint64, error) {
	if size == 0 || align == 0 || align&(align-1) != 0 {
		return 0, fmt.Errorf("driver: allocate %d bytes aligned to %d: want a size above 0 and a power of two", size, align)
	}
	for i, s := range h.free {
		base := (s.base + align - 1) &^ (align - 1)
		skip := base - s.base
		if base < s.base || skip > s.size || s.size-skip < size {
			continue
		}
		rest := span{base + size, s.size - skip - size}
		var parts []span
		if skip > 0 {
			parts = append(parts, span{s.base, skip})
		}
		if rest.size > 0 {
			parts = append(parts, rest)
		}
		h.free = slices.Replace(h.free, i, i+1, parts...)
		h.used[base] = size
		return base, nil
	}
	return 0, fmt.Errorf("driver: allocate %d bytes: %w", size, ErrOutOfMemory)
}

// Free frees the piece that Alloc returned at base.
func (h *Heap) Free(base uint64) error {
	size, ok := h.used[base]
	if !ok {
		return fmt.Errorf("driver: free %#x: not allocated", base)
	}
	delete(h.used, base)
	i, _ := slices.BinarySearchFunc(h.free, base, func(s span, b uint64) int { return cmp.Compare(s.base, b) })
	h.free = slices.Insert(h.free, i, span{base, size})
	if i+1 < len(h.free) && base+size == h.free[i+1].base {
		h.free[i].size += h.free[i+1].size
		h.free = slices.Delete(h.free, i+1, i+2)
	}
	if i > 0 && h.free[i-1].base+h.free[i-1].size == base {
		h.free[i-1].size += h.free[i].size
		h.free = slices.Delete(h.free, i, i+1)
	}
	return nil
}

// InUse returns the number of allocated bytes and pieces.
func (h *Heap) InUse() (bytes uint64, pieces int) {
	for _, size := range h.used {
		bytes += size
	}
	return bytes, len(h.used)
}
