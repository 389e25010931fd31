package placement

import (
	"cmp"
	"maps"
	"slices"
)

// SetFree says whether the GPUs in some slots of a box are free: a binding begins or ends.
// An unknown box and slots without a GPU change nothing.
func (p *Pool) SetFree(box string, slots []uint32, free bool) {
	b := p.boxes[box]
	switch {
	case b == nil:
	case p.inPlace(b):
		p.changed = p.changed[:0]
		for _, s := range slots {
			if i := b.at(s); i >= 0 && b.GPUs[i].Free != free && !slices.Contains(p.changed, i) {
				p.changed = append(p.changed, i)
			}
		}
		p.flip(b)
	default:
		changed := *b
		changed.GPUs = slices.Clone(b.GPUs)
		for i := range changed.GPUs {
			if g := &changed.GPUs[i]; slices.Contains(slots, g.Slot) {
				g.Free = free
			}
		}
		p.replace(b, &changed)
	}
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

// inPlace is Box.flips of a box in the index. It looks at the first of its GPUs alone: a
// large pool does not fit into the processor's caches, so each look at another GPU is a
// wait for memory.
func (p *Pool) inPlace(b *Box) bool {
	if len(b.GPUs) == 0 {
		return false
	}
	in := p.models[b.GPUs[0].Model].views[0].boxes[b.ID]
	return in != nil && in.flips
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
func (p *Pool) flip(b *Box) {
	if len(p.changed) == 0 {
		return
	}
	m := p.models[b.GPUs[0].Model]
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
	for _, v := range m.views {
		v.flip(b, p.changed)
	}
}

// flip brings the group of a box of one model up to date after some of its GPUs were bound
// or have become free. The box has no NVLink domains.
func (v *view) flip(b *Box, changed []int) {
	in := v.boxes[b.ID]
	if in == nil {
		return
	}
	if len(in.groups) == 0 {
		in.groups = []*group{newGroup(b, "", false)}
	}
	g := in.groups[0]
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
	g.proxyRoom, g.switches = proxyRoomOf(b), nil
	if in.switches {
		g.setSwitches(b)
	}
	if len(g.slots) > 0 {
		v.byBox.add(g)
	}
}
