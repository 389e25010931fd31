package driver

import (
	"errors"
	"testing"

	"pgregory.net/rapid"
)

func TestHeapFirstFit(t *testing.T) {
	h := NewHeap(0x1000, 0x1000)
	a, err := h.Alloc(0x100, 1)
	if err != nil || a != 0x1000 {
		t.Fatalf("first: %#x, %v", a, err)
	}
	b, err := h.Alloc(0x100, 0x400)
	if err != nil || b != 0x1400 {
		t.Fatalf("aligned: %#x, %v", b, err)
	}
	c, err := h.Alloc(0x300, 1)
	if err != nil || c != 0x1100 {
		t.Fatalf("gap before the aligned piece: %#x, %v", c, err)
	}
	if _, err := h.Alloc(0x1000, 1); !errors.Is(err, ErrOutOfMemory) {
		t.Fatalf("too large: %v", err)
	}
	for _, p := range []uint64{b, a, c} {
		if err := h.Free(p); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.Free(a); err == nil {
		t.Fatal("double free was taken")
	}
	if whole, err := h.Alloc(0x1000, 0x1000); err != nil || whole != 0x1000 {
		t.Fatalf("whole heap after all came back: %#x, %v", whole, err)
	}
}

func TestHeapRefusesBadSizes(t *testing.T) {
	h := NewHeap(0, 100)
	for _, c := range []struct {
		name        string
		size, align uint64
	}{{"no size", 0, 1}, {"no alignment", 1, 0}, {"odd alignment", 1, 3}} {
		if _, err := h.Alloc(c.size, c.align); err == nil {
			t.Errorf("%s: taken", c.name)
		}
	}
	if _, err := NewHeap(^uint64(0)-10, 10).Alloc(1, 1<<12); !errors.Is(err, ErrOutOfMemory) {
		t.Errorf("alignment beyond 2^64: %v", err)
	}
}

func TestHeapNeverOverlapsAndMergesAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const base, size = 0x1000, 1 << 16
		h := NewHeap(base, size)
		live := map[uint64]uint64{}
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				n := rapid.Uint64Range(1, 1<<12).Draw(t, "size")
				align := uint64(1) << rapid.IntRange(0, 12).Draw(t, "align")
				p, err := h.Alloc(n, align)
				if err != nil {
					return
				}
				if p%align != 0 || p < base || p+n > base+size {
					t.Fatalf("%#x+%#x is misplaced", p, n)
				}
				for q, m := range live {
					if p < q+m && q < p+n {
						t.Fatalf("%#x+%#x overlaps %#x+%#x", p, n, q, m)
					}
				}
				live[p] = n
			},
			"free": func(t *rapid.T) {
				for p := range live {
					if err := h.Free(p); err != nil {
						t.Fatal(err)
					}
					delete(live, p)
					break
				}
			},
			"": func(t *rapid.T) {
				for i := 1; i < len(h.free); i++ {
					if h.free[i-1].base+h.free[i-1].size >= h.free[i].base {
						t.Fatalf("free list is unsorted or unmerged: %v", h.free)
					}
				}
				if _, n := h.InUse(); n != len(live) {
					t.Fatalf("in use %d, want %d", n, len(live))
				}
			},
		})
		for p := range live {
			if err := h.Free(p); err != nil {
				t.Fatal(err)
			}
		}
		if len(h.free) != 1 || h.free[0] != (span{base, size}) {
			t.Fatalf("after all came back: %v", h.free)
		}
	})
}
