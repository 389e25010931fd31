package cluster

import (
	"cmp"
	"slices"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// The simulator gives each GPU this memory and these slots for parts: a pod's thousandths
// of a GPU are as many of its memory.
const (
	partMemory = 16 << 30
	partSlots  = 16
)

// addPartSlots makes a GPU of a box shareable, if the manager places parts.
func (c *pool) addPartSlots(b *placement.Box, slot int) {
	if !c.opt.ManagerParts {
		return
	}
	g := &b.GPUs[slot]
	g.Memory, g.Modes = partMemory, placement.NewShareModes(placement.Space)
	for k := range partSlots {
		b.Parts = append(b.Parts, placement.PartSlot{Slot: uint32(maxBoxSize + partSlots*slot + k), GPU: g.Slot, Usable: true})
	}
}

func (c *pool) setBox(b placement.Box) {
	c.served[b.ID] = &b
	c.boxes.SetBox(b)
}

// setTypical tells the manager how often which requests come, as its own statistics do.
func (c *pool) setTypical(pods []Pod) {
	if !c.opt.ManagerParts {
		return
	}
	count := map[int64]int{}
	for i := range pods {
		if pods[i].GPUs > 0 {
			count[pods[i].MilliGPU]++
		}
	}
	var out []placement.Typical
	for milli, n := range count {
		out = append(out, placement.Typical{Compute: uint32(milli), Count: n})
	}
	slices.SortFunc(out, func(a, b placement.Typical) int { return cmp.Compare(a.Compute, b.Compute) })
	c.boxes.SetTypical(out)
}

// findPart asks the manager's placement for a part.
func (c *pool) findPart(p *Pod) (poolUse, bool) {
	node := c.hosts.best(p, c.opt.MaxPerHost)
	if node < 0 {
		return poolUse{}, false
	}
	part := &placement.Part{Memory: uint64(p.MilliGPU) * partMemory / Milli, Compute: uint32(p.MilliGPU)}
	for _, model := range c.modelsFor(p) {
		if d := c.boxes.Place(placement.Reserve{}, placement.Request{Count: 1, Model: model, Part: part}); d.OK() {
			part.Share = placement.Space
			return poolUse{node: node, part: &poolPart{d.Picks[0], part}}, true
		}
	}
	return poolUse{}, false
}

// copyServed returns a copy of a box to change: the index keeps the old one.
func (c *pool) copyServed(id string) placement.Box {
	last := c.served[id]
	if last == nil {
		return c.newBox(c.boxOf(id)) // nothing has changed in it
	}
	b := *last
	b.GPUs, b.Parts = slices.Clone(b.GPUs), slices.Clone(b.Parts)
	return b
}

// setServed marks a whole GPU as free or bound.
func (c *pool) setServed(r placement.Ref, free bool) {
	b := c.copyServed(r.Box)
	b.GPUs[r.Slot].Free, b.GPUs[r.Slot].Whole = free, !free
	c.setBox(b)
}

// setPart puts a part into a slot, or takes the one there away.
func (c *pool) setPart(r placement.Ref, part *placement.Part) {
	b := c.copyServed(r.Box)
	at := slices.IndexFunc(b.Parts, func(s placement.PartSlot) bool { return s.Slot == r.Slot })
	slot := &b.Parts[at]
	slot.Taken, slot.Part = part != nil, placement.Part{}
	if part != nil {
		slot.Part = *part
	}
	free := !slices.ContainsFunc(b.Parts, func(s placement.PartSlot) bool { return s.GPU == slot.GPU && s.Taken })
	if g := &b.GPUs[slot.GPU]; g.Free != free {
		g.Free = free
		n := 1
		if !free {
			n = -1
		}
		s := c.boxOf(r.Box)
		s.free ^= 1 << slot.GPU
		s.nfree += n
		c.free[s.model] += n
	}
	c.setBox(b)
}

// strandedServed returns what is left of GPUs with parts and suffices for no pod.
func (c *pool) strandedServed(pods []*Pod) (out int64) {
	for id, b := range c.served {
		for i := range b.GPUs {
			g := &b.GPUs[i]
			_, left, slots := placement.Room(b, g.Slot)
			if g.Free || g.Whole {
				continue
			}
			fits := func(p *Pod) bool {
				return p.shared() && slots > 0 && p.MilliGPU <= int64(left) && p.accepts(c.boxOf(id).model) && c.hosts.best(p, c.opt.MaxPerHost) >= 0
			}
			if !slices.ContainsFunc(pods, fits) {
				out += int64(left)
			}
		}
	}
	return out
}
