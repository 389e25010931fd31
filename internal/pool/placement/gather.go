package placement

import (
	"cmp"
	"slices"
)

// gather chooses the GPUs to hold for a request that does not fit now: the free GPUs
// of the place that lacks the fewest. The place is a box if the GPUs must be together,
// otherwise the whole pool. The result has at most Count GPUs. ok is false if the
// request would not fit even if all usable GPUs were free.
//
// The place with the most free GPUs is preferred. So while other requests leave the
// result alone, the next one is not smaller, and the request fits in the end.
func (p *Pool) gather(reserve Reserve, req Request) (hold []Ref, ok bool) {
	req.setSite()
	p.decisions++
	if len(req.Only) > 0 {
		return p.gatherNamed(&req)
	}
	named := p.namedBoxes(&req)
	var models []model
	for name, m := range p.models {
		if req.mayHave(name) {
			models = p.appendModel(models, m, &req, named)
		}
	}
	slices.SortFunc(models, compareContention)
	for _, m := range models {
		if n := m.common().usable; n-reserve.Held(n) < req.Count {
			continue
		}
		v := p.models[m.name].view(&req, p.decisions)
		if req.SameBox == Required || req.NVLink == Required {
			hold, ok = p.gatherInBox(v, &req, named)
		} else {
			hold, ok = p.gatherAnywhere(v, &req, named)
		}
		if ok {
			return hold, true
		}
	}
	return nil, false
}

// gatherInBox returns the free GPUs of the box that has the most, of those that have
// enough usable ones. Excluded GPUs do not count as free.
func (p *Pool) gatherInBox(v *view, req *Request, named []*Box) (hold []Ref, ok bool) {
	excluded := map[string]int{}
	for _, b := range named {
		excluded[b.ID] = v.excludedFree(b, req)
	}
	best, most := "", 0
	boxes, some := p.labels.having(req.Labels)
	labels := boxes.bits()
	for id, b := range v.boxes {
		if !admits(b.traits, req) || some && !hasBit(labels, b.number) || b.usable < req.Count {
			continue
		}
		if free := b.free - excluded[id]; best == "" || cmp.Or(cmp.Compare(most, free), cmp.Compare(id, best)) < 0 {
			best, most = id, free
		}
	}
	if best == "" {
		return nil, false
	}
	for i := range p.boxes[best].GPUs {
		g := &p.boxes[best].GPUs[i]
		r := Ref{best, g.Slot}
		if len(hold) < req.Count && g.Free && v.has(g) && !slices.Contains(req.Exclude, r) {
			hold = append(hold, r)
		}
	}
	return hold, true
}

// gatherAnywhere returns the free GPUs of the boxes that have the most.
func (p *Pool) gatherAnywhere(v *view, req *Request, named []*Box) (hold []Ref, ok bool) {
	if v.matching(req, &p.labels).usable < req.Count {
		return nil, false
	}
	stock := p.newLookup(v, req, named)
	for len(hold) < req.Count {
		g := stock.best(largestFirst, 1)
		if g == nil {
			break
		}
		for _, s := range g.slots[:min(len(g.slots), req.Count-len(hold))] {
			hold = append(hold, Ref{g.box, s})
		}
		stock.drop(g)
	}
	return hold, true
}

// gather chooses the slots to hold for a request that does not fit now: the free slots
// of the domain that has the most, of those of hosts on certain networks that have enough
// slots, free or not. Excluded slots do not count as free. It returns none if each such
// domain is full. ok is false if there is no such domain.
func (h *Hosts) gather(req HostRequest, paths Paths) (hold []HostSlotRef, ok bool) {
	if req.Host != "" {
		row := h.hosts[req.Host]
		if row == nil || !row.mayFit(&req) {
			return nil, false
		}
		return row.gathered(&req).hold(&req), true
	}
	var best *freeSlots
	excluded := req.excludedHosts()
	o := h.firstTolerated(property{of: ofPaths, paths: paths}, &req, func(o *hostOption) found {
		if o.gathers(&req) && !slices.Contains(excluded, o.host) {
			return thisOne
		}
		return goOn
	})
	if o != nil {
		best = &o.freeSlots
	}
	for _, id := range excluded {
		if row := h.hosts[id]; row != nil && row.Paths == paths {
			best = betterOf(best, row.gathered(&req))
		}
	}
	if best != nil {
		return best.hold(&req), true
	}
	for _, row := range h.hosts {
		if row.Paths == paths && row.mayFit(&req) {
			return nil, true
		}
	}
	return nil, false
}

// gathered returns the domain of a host with the most slots that a request may hold, nil
// if there are none.
func (h *indexedHost) gathered(req *HostRequest) (best *freeSlots) {
	for _, o := range h.options {
		left := o.freeSlots
		left.slots = slices.DeleteFunc(slices.Clone(o.slots), func(s uint32) bool { return slices.Contains(req.Exclude, HostSlotRef{h.ID, s}) })
		if len(left.slots) > 0 && o.gathers(req) {
			best = betterOf(best, &left)
		}
	}
	return best
}

// gathers reports whether a request could have its slots in the domain of an option
// that has some free ones.
func (o *hostOption) gathers(req *HostRequest) bool {
	return len(o.slots) > 0 && eligible(&o.in.Host, req) && (req.Domain == "" || req.Domain == o.domain) && o.in.slotsIn(o.domain) >= req.Count
}

// hold returns the first slots, up to the number of a request.
func (f *freeSlots) hold(req *HostRequest) []HostSlotRef {
	if f == nil {
		return nil
	}
	out := make([]HostSlotRef, 0, len(f.slots))
	for _, s := range f.slots[:min(len(f.slots), req.Count)] {
		out = append(out, HostSlotRef{f.host, s})
	}
	return out
}

// mayFit reports whether a request would fit if all usable slots of the host were free.
func (h *Host) mayFit(req *HostRequest) bool {
	return eligible(h, req) && slices.ContainsFunc(h.Slots, func(s HostSlot) bool {
		return (req.Domain == "" || req.Domain == s.Domain) && h.slotsIn(s.Domain) >= req.Count
	})
}

// slotsIn returns the number of usable slots of a domain, free or not.
func (h *Host) slotsIn(domain string) (n int) {
	for _, s := range h.Slots {
		if s.Domain == domain && !s.Unusable {
			n++
		}
	}
	return n
}
