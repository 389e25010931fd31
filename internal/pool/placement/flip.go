package placement

import (
	"maps"
	"slices"
)

// SetFree says whether the GPUs in some slots of a box are free: a binding begins or ends.
// An unknown box and slots without a GPU change nothing.
func (p *Pool) SetFree(box string, slots []uint32, free bool) {
	b := p.boxes[box]
	switch {
	case b == nil:
	case b.flips():
		p.flip(b, func(g *GPU) bool { return g.Free != free && slices.Contains(slots, g.Slot) })
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

// flip binds the free GPUs of a box, and frees the bound ones, for which of says so.
func (p *Pool) flip(b *Box, of func(*GPU) bool) {
	m, changed := p.models[b.GPUs[0].Model], false
	for i := range b.GPUs {
		g := &b.GPUs[i]
		if !of(g) {
			continue
		}
		changed = true
		if g.Restriction == "" { // count tells free ones apart by their taints only
			g.Free = !g.Free
			continue
		}
		m.count(g, -1)
		g.Free = !g.Free
		m.count(g, 1)
	}
	if !changed {
		return
	}
	for _, v := range m.views {
		v.flip(b)
	}
}

// flip brings the group of a box of one model up to date after some of its GPUs were bound
// or have become free. The box has no NVLink domains.
func (v *view) flip(b *Box) {
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
	g.slots, g.switches, g.proxyRoom = g.slots[:0], nil, proxyRoomOf(b)
	for i := range b.GPUs {
		if o := &b.GPUs[i]; o.Free && v.has(o) {
			g.slots = append(g.slots, o.Slot)
		}
	}
	if n := len(g.slots) - in.free; n != 0 {
		in.free += n
		v.countFree(in, n)
	}
	if len(g.slots) > 0 {
		g.setSwitches(b)
		v.byBox.add(g)
	}
}
