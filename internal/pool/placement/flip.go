package placement

import (
	"cmp"
	"maps"
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
	p.changed = p.changed[:0]
	for _, s := range slots {
		if i := b.at(s); i >= 0 && b.GPUs[i].Free != free && !slices.Contains(p.changed, i) {
			p.changed = append(p.changed, i)
		}
	}
	p.flip(b)
}

// at returns the index of the GPU in a slot, -1 without one.
func (b *Box) at(slot uint32) int {
	if i := int(slot); i < len(b.GPUs) && b.GPUs[i].Slot == slot {
		return i
	}
	i, ok := slices.BinarySearchFunc(b.GPUs, slot, func(g GPU, s uint32) int { return cmp.Compare(g.Slot, s) })
	if !ok {
		return -1
	}
	return i
}

// flips reports whether the index can take over in place which GPUs of a box are free: the
// box has one group in each view.
func (b *Box) flips() bool {
	return b.Kind != NVLink && len(b.Parts) == 0 && len(b.GPUs) > 0 &&
		!slices.ContainsFunc(b.GPUs, func(g GPU) bool { return g.Model != b.GPUs[0].Model })
}

// sameButFree reports whether two states of a box differ at most in which GPUs are free.
func (b *Box) sameButFree(o *Box) bool {
	return b.Kind == o.Kind && b.Location == o.Location && b.ProxyGPUs == o.ProxyGPUs && len(b.Parts)+len(o.Parts) == 0 &&
		maps.Equal(b.Labels, o.Labels) && slices.EqualFunc(b.GPUs, o.GPUs, func(g, h GPU) bool {
		h.Free = g.Free
		return g == h
	})
}

// flip binds the free ones of the GPUs in p.changed, which are indexes of b.GPUs, and frees
// the bound ones.
func (p *Pool) flip(b *indexedBox) {
	if len(p.changed) == 0 {
		return
	}
	m := b.model
	for _, i := range p.changed {
		g := &b.GPUs[i]
		if g.Restriction == "" { // count tells free ones apart by their taints only
			g.Free = !g.Free
			continue
		}
		m.count(g, -1)
		g.Free = !g.Free
		m.count(g, 1)
	}
	for i, v := range m.views {
		if in := b.in[i]; in != nil {
			v.flip(&b.Box, in, p.changed)
		}
	}
}

// flip brings the group of a box that flips up to date after some of its GPUs were bound
// or have become free.
func (v *view) flip(b *Box, in *viewBox, changed []int) {
	g := &in.alone
	if len(g.slots) > 0 {
		v.byBox.remove(g)
	}
	before := len(g.slots)
	for _, i := range changed {
		o := &b.GPUs[i]
		if !v.has(o) {
			continue
		}
		at, there := slices.BinarySearch(g.slots, o.Slot)
		switch {
		case o.Free && !there:
			g.slots = slices.Insert(g.slots, at, o.Slot)
		case !o.Free && there:
			g.slots = slices.Delete(g.slots, at, at+1)
		}
	}
	if n := len(g.slots) - before; n != 0 {
		in.free += n
		v.countFree(in, n)
	}
	if b.ProxyGPUs > 0 {
		g.proxyRoom = proxyRoomOf(b)
	}
	if in.switches {
		g.switches = nil
		g.setSwitches(b)
	}
	if len(g.slots) > 0 {
		v.byBox.add(g)
	}
}
