package rootcomplex

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"

	"github.com/dxpu-project/dxpu/cfgspace"
)

const (
	allOnes = 0xffff_ffff

	// bridgeGranule is the granularity of a bridge's memory windows (PCI-to-PCI
	// Bridge Architecture Specification, section 3.2.5.6).
	bridgeGranule = 1 << 20
)

// demand is the address space that a BAR or the window of a bridge needs.
type demand struct {
	size, align uint64
	give        func(base uint64) error
}

// demands of the functions on one bus, by address space.
type demands struct{ mem32, mem64 []demand }

// place sizes all BARs behind the bridge and assigns addresses from its windows.
func (e *enumerator) place(bridge *Function) {
	d := e.collect(bridge)
	if err := assign(d.mem32, bridge.Window32); err != nil {
		e.fail(fmt.Errorf("behind %v, 32-bit window %v: %w", bridge.ID, bridge.Window32, err))
	}
	if err := assign(d.mem64, bridge.Window64); err != nil {
		e.fail(fmt.Errorf("behind %v, 64-bit window %v: %w", bridge.ID, bridge.Window64, err))
	}
}

func (e *enumerator) collect(bridge *Function) (d demands) {
	for _, f := range bridge.Children {
		e.collectBARs(f, &d)
		if !f.Bridge {
			continue
		}
		below := e.collect(f)
		var reserve32, reserve64 uint64
		if f.HotPlug {
			reserve32, reserve64 = e.spec.HotPlugWindow32, e.spec.HotPlugWindow64
		}
		f.Window32, f.Window64 = Range{}, Range{}
		d.mem32 = demandWindow(d.mem32, &f.Window32, below.mem32, reserve32)
		d.mem64 = demandWindow(d.mem64, &f.Window64, below.mem64, reserve64)
	}
	return d
}

// demandWindow appends the demand of the bridge window w for the demands below it.
func demandWindow(ds []demand, w *Range, below []demand, reserve uint64) []demand {
	size, align := window(below, reserve)
	if size == 0 {
		return ds
	}
	return append(ds, demand{size, align, func(base uint64) error {
		*w = Range{base, size}
		return assign(below, *w)
	}})
}

// window returns the size and alignment of a bridge window that holds the
// demands and, for a slot, at least the reserve. The reserve is aligned to its
// largest power of two, so that one BAR of that size fits later.
func window(ds []demand, reserve uint64) (size, align uint64) {
	align = bridgeGranule
	sortDemands(ds)
	for _, d := range ds {
		align = max(align, d.align)
		size = alignUp(size, d.align) + d.size
	}
	if reserve > size {
		size = reserve
		align = max(align, 1<<(bits.Len64(reserve)-1))
	}
	return alignUp(size, bridgeGranule), align
}

// assign assigns addresses from the range, in the order of decreasing alignment, which
// leaves no gaps between powers of two.
func assign(ds []demand, r Range) error {
	sortDemands(ds)
	next := r.Base
	for _, d := range ds {
		base := alignUp(next, d.align)
		if base < next || !r.Contains(base, d.size) {
			return fmt.Errorf("%#x bytes aligned to %#x: %w", d.size, d.align, ErrNoSpace)
		}
		if err := d.give(base); err != nil {
			return err
		}
		next = base + d.size
	}
	return nil
}

func sortDemands(ds []demand) {
	slices.SortStableFunc(ds, func(a, b demand) int { return cmp.Compare(b.align, a.align) })
}

func alignUp(v, align uint64) uint64 { return (v + align - 1) &^ (align - 1) }

// collectBARs sizes the base address registers of one function (section 7.5.1.2.1): after
// a write of all ones, the bits that stay zero give the size. Decoding is off meanwhile.
func (e *enumerator) collectBARs(f *Function, d *demands) {
	e.setCommand(f, 0, cfgspace.CmdIO|cfgspace.CmdMemory|cfgspace.CmdBusMaster)
	n := 6
	if f.Bridge {
		n = 2
	}
	f.BARs = nil
	for i := 0; i < n; i++ {
		if bar, ok := e.sizeBAR(f, i, n); ok {
			f.BARs = append(f.BARs, bar)
			if bar.Is64 {
				i++
			}
		}
	}
	for i := range f.BARs {
		e.demandBAR(f, i, d)
	}
}

func (e *enumerator) demandBAR(f *Function, i int, d *demands) {
	bar := &f.BARs[i]
	want := demand{bar.Range.Size, bar.Range.Size, func(base uint64) error {
		bar.Range.Base = base
		off := cfgspace.OffBAR0 + 4*uint16(bar.Index)
		e.write(f, off, uint32(base))
		if bar.Is64 {
			e.write(f, off+4, uint32(base>>32))
		}
		return e.err
	}}
	// A 64-bit BAR that is not prefetchable needs the 32-bit window: the only 64-bit
	// window of a bridge is the prefetchable one.
	if bar.Is64 && bar.Prefetchable {
		d.mem64 = append(d.mem64, want)
	} else {
		d.mem32 = append(d.mem32, want)
	}
}

// sizeBAR reads kind and size of BAR i of n. ok is false for one that is not implemented
// or is for I/O space, which stays unassigned.
func (e *enumerator) sizeBAR(f *Function, i, n int) (bar BAR, ok bool) {
	off := cfgspace.OffBAR0 + 4*uint16(i)
	mask := e.probeMask(f, off)
	if e.err != nil || mask == 0 || mask&1 != 0 {
		return BAR{}, false
	}
	bar = BAR{Index: i, Is64: mask&6 == 4, Prefetchable: mask&8 != 0}
	upper := uint32(allOnes)
	if bar.Is64 {
		if i+1 >= n {
			e.fail(fmt.Errorf("%v: BAR%d is 64-bit and the last: %w", f.ID, i, ErrMalformed))
			return BAR{}, false
		}
		upper = e.probeMask(f, off+4)
	}
	writable := uint64(upper)<<32 | uint64(mask&^0xf)
	size := -writable // two's complement: the lowest writable bit upwards
	if writable == 0 || bits.OnesCount64(size) != 1 {
		e.fail(fmt.Errorf("%v: BAR%d has the mask %#x, no power of two: %w", f.ID, i, writable, ErrMalformed))
		return BAR{}, false
	}
	bar.Range.Size = size
	return bar, true
}

func (e *enumerator) probeMask(f *Function, off uint16) uint32 {
	e.write(f, off, allOnes)
	mask := e.read(f, off)
	e.write(f, off, 0)
	return mask
}
