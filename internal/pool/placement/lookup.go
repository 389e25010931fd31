package placement

import "slices"

// Place decides on a request, as the function of that name does.
func (p *Pool) Place(reserve Reserve, req Request) Decision {
	p.clock++
	near := p.near(&req)
	var models []model
	if req.Model != "" {
		models = p.appendModel(nil, p.models[req.Model], &req, near)
	} else {
		for _, m := range p.models {
			models = p.appendModel(models, m, &req, near)
		}
		slices.SortFunc(models, compareContested)
	}
	return decide(models, reserve, &req, func(model string) stock {
		return newLookup(p.models[model].view(req.MinMemory, p.clock), &req, near)
	})
}

// near returns the boxes that the request speaks of. There are few, and they are
// looked at one by one, whatever the index says.
func (p *Pool) near(req *Request) []*Box {
	var out []*Box
	for _, refs := range [][]Ref{req.Exclude, req.Together} {
		for _, r := range refs {
			if b := p.boxes[r.Box]; b != nil && !slices.Contains(out, b) {
				out = append(out, b)
			}
		}
	}
	return out
}

// appendModel counts one model, if the constraints admit any GPU of it.
func (p *Pool) appendModel(to []model, m *modelIndex, req *Request, near []*Box) []model {
	if m == nil {
		return to
	}
	v := m.view(req.MinMemory, p.clock)
	if v == nil {
		return to
	}
	all := m.views[0]
	out := model{name: m.name}
	for k := range kinds {
		out.usable += all.usable[k]
		out.free += all.free[k]
		if admits(Kind(k), req) {
			out.wanted = out.wanted || v.usable[k] > 0
			out.fit += v.free[k]
		}
	}
	if !out.wanted {
		return to
	}
	for _, b := range near {
		if !admits(b.Kind, req) {
			continue
		}
		for i := range b.GPUs {
			g := &b.GPUs[i]
			if g.Free && g.Usable && g.Model == m.name && g.Memory >= v.floor && slices.Contains(req.Exclude, Ref{b.ID, g.Slot}) {
				out.fit--
			}
		}
	}
	return append(to, out)
}

// lookup is the stock of an index: its shelves, and beside them the groups of
// the boxes that the request speaks of.
type lookup struct {
	shelves []*shelf
	near    []*Box
	groups  []*group // of the boxes near
	dropped []*group
	req     *Request
}

func newLookup(v *view, req *Request, near []*Box) *lookup {
	l := &lookup{shelves: v.shelves(req), near: near, req: req}
	for _, b := range near {
		if admits(b.Kind, req) {
			l.groups = appendGroups(l.groups, b, req, v.model)
		}
	}
	return l
}

// skip says which groups of the shelves are not to be had.
func (l *lookup) skip(g *group) bool {
	return slices.Contains(l.dropped, g) || slices.ContainsFunc(l.near, func(b *Box) bool { return b.ID == g.box })
}

func (l *lookup) fits(n int) *group {
	near := list{groups: l.groups, req: l.req}
	best := near.fits(n)
	for _, s := range l.shelves {
		if g := s.fits(n, l.skip); g != nil && (best == nil || compareFit(g, best, n, l.req) < 0) {
			best = g
		}
	}
	return best
}

func (l *lookup) largest() *group {
	near := list{groups: l.groups, req: l.req}
	best := near.largest()
	for _, s := range l.shelves {
		if g := s.largest(l.skip); g != nil && (best == nil || compareSize(g, best, l.req) < 0) {
			best = g
		}
	}
	return best
}

func (l *lookup) emptiest(n int) []*group {
	all := list{groups: slices.Clone(l.groups), req: l.req}
	for _, s := range l.shelves {
		all.groups = s.emptiest(all.groups, n, l.skip)
	}
	return all.emptiest(n)
}

func (l *lookup) drop(g *group) {
	l.groups = slices.DeleteFunc(l.groups, func(o *group) bool { return o == g })
	l.dropped = append(l.dropped, g)
}

func (l *lookup) beside() bool {
	l.shelves = nil
	l.groups = slices.DeleteFunc(l.groups, func(g *group) bool { return !g.joined })
	return len(l.groups) > 0
}
