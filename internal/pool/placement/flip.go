package placement

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
)

// SetFree says whether the GPUs in some slots of a box are free: a binding begins or ends.
// An unknown box and slots without a GPU change nothing.
func (p *Pool) SetFree(box string, slots []uint32, free bool) {
	if b := p.boxes[box]; b != nil {
		p.setFree(b, slots, free)
	}
}

// Handle stands for a box of a Pool, without the look-up of its ID. It keeps its box when
// the box is replaced, and changes nothing once the box is removed.
type Handle struct{ box *indexedBox }

// Handle returns the handle of a box.
func (p *Pool) Handle(box string) Handle { return Handle{p.boxes[box]} }

// SetFreeIn is SetFree for the box of a handle.
func (p *Pool) SetFreeIn(h Handle, slots []uint32, free bool) {
	if h.box != nil && !h.box.removed {
		p.setFree(h.box, slots, free)
	}
}

func (p *Pool) setFree(b *indexedBox, slots []uint32, free bool) {
	if !b.flips {
		changed := b.Box
		changed.GPUs = slices.Clone(b.GPUs)
		for i := range changed.GPUs {
			if g := &changed.GPUs[i]; slices.Contains(slots, g.Slot) {
				g.Free = free
			}
		}
		p.replace(b, &changed)
		return
	}
	var changed uint64
	for _, s := range slots {
		if i := b.at(s); i >= 0 {
			changed |= 1 << i
		}
	}
	if free {
		changed &^= b.free
	} else {
		changed &= b.free
	}
	p.flip(b, changed)
}

// at returns the index of the GPU in a slot, -1 without one.
func (b *indexedBox) at(slot uint32) int {
	if b.dense {
		if int(slot) >= len(b.GPUs) {
			return -1
		}
		return int(slot)
	}
	i, ok := slices.BinarySearchFunc(b.GPUs, slot, func(g GPU, s uint32) int { return cmp.Compare(g.Slot, s) })
	if !ok {
		return -1
	}
	return i
}

// slot is the inverse of at.
func (b *indexedBox) slot(i int) uint32 {
	if b.dense {
		return uint32(i)
	}
	return b.GPUs[i].Slot
}

// maxFlips is the number of bits of indexedBox.free.
const maxFlips = 64

// flips reports whether the index can take over in place which GPUs of a box are free: the
// box has one group in each view.
func (b *Box) flips() bool {
	return b.Kind != NVLink && len(b.Parts) == 0 && len(b.GPUs) > 0 && len(b.GPUs) <= maxFlips &&
		!slices.ContainsFunc(b.GPUs, func(g GPU) bool { return g.Model != b.GPUs[0].Model })
}

// freeMask returns the indexes of the free GPUs of a box that flips.
func (b *Box) freeMask() (free uint64) {
	for i := range b.GPUs {
		if b.GPUs[i].Free {
			free |= 1 << i
		}
	}
	return free
}

// setMasks finds out whether the box flips, and what a flip needs.
func (b *indexedBox) setMasks() {
	if b.flips = b.Box.flips(); !b.flips {
		return
	}
	b.free, b.dense, b.restricted = b.freeMask(), true, false
	for i := range b.GPUs {
		b.dense = b.dense && b.GPUs[i].Slot == uint32(i)
		b.restricted = b.restricted || b.GPUs[i].Restriction != ""
	}
}

// sameButFree reports whether two states of a box differ at most in which GPUs are free.
func (b *Box) sameButFree(o *Box) bool {
	return b.Kind == o.Kind && b.Location == o.Location && b.ProxyGPUs == o.ProxyGPUs && len(b.Parts)+len(o.Parts) == 0 &&
		maps.Equal(b.Labels, o.Labels) && slices.EqualFunc(b.GPUs, o.GPUs, func(g, h GPU) bool {
		h.Free = g.Free
		return g == h
	})
}

// flip binds the free ones of some GPUs, the bits of whose indexes are set, and frees the
// bound ones.
func (p *Pool) flip(b *indexedBox, changed uint64) {
	if changed == 0 {
		return
	}
	b.free ^= changed
	for rest := changed; rest != 0; rest &= rest - 1 {
		i := bits.TrailingZeros64(rest)
		free := b.free>>i&1 != 0
		p.alikes.flip(b, &b.GPUs[i], free)
		if !b.restricted { // count tells free GPUs apart by their restrictions only
			b.GPUs[i].Free = free
			continue
		}
		g := &b.GPUs[i]
		b.model.count(g, -1)
		g.Free = free
		b.model.count(g, 1)
	}
	for i, v := range b.model.views {
		if in := b.in[i]; in != nil {
			v.flip(b, in, changed)
		}
	}
}

// flip brings the group of a box that flips up to date after some of its GPUs were bound
// or have become free.
func (v *view) flip(b *indexedBox, in *viewBox, changed uint64) {
	g := &in.alone
	if len(g.slots) > 0 {
		v.byBox.remove(g)
	}
	before := len(g.slots)
	for rest := changed & in.members; rest != 0; rest &= rest - 1 {
		i := bits.TrailingZeros64(rest)
		slot, free := b.slot(i), b.free>>i&1 != 0
		at, there := slices.BinarySearch(g.slots, slot)
		switch {
		case free && !there:
			g.slots = slices.Insert(g.slots, at, slot)
		case !free && there:
			g.slots = slices.Delete(g.slots, at, at+1)
		}
	}
	if n := len(g.slots) - before; n != 0 {
		in.free += n
		v.countFree(in, n)
	}
	if b.ProxyGPUs > 0 {
		g.proxyRoom = proxyRoomOf(&b.Box)
	}
	if in.switches {
		g.switches = nil
		g.setSwitches(&b.Box)
	}
	if len(g.slots) > 0 {
		v.byBox.add(g)
	}
}
