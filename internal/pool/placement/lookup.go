package placement

import "slices"

// Place decides on a request as the function Place does.
func (p *Pool) Place(reserve Reserve, req Request) Decision {
	p.decisions++
	named := p.namedBoxes(&req)
	var models []model
	if req.Model != "" {
		models = p.appendModel(nil, p.models[req.Model], &req, named)
	} else {
		for _, m := range p.models {
			models = p.appendModel(models, m, &req, named)
		}
		slices.SortFunc(models, compareContention)
	}
	return decide(models, reserve, &req, func(model string) stock {
		return newLookup(p.models[model].view(req.MinMemory, p.decisions), &req, named)
	})
}

// namedBoxes returns the boxes of the GPUs in req.Exclude and req.Together. They
// are few, and are looked at one by one instead of through the index.
func (p *Pool) namedBoxes(req *Request) []*Box {
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

// appendModel counts the GPUs of one model, if the constraints admit any of them.
func (p *Pool) appendModel(to []model, m *modelIndex, req *Request, named []*Box) []model {
	if m == nil {
		return to
	}
	v := m.view(req.MinMemory, p.decisions)
	if v == nil {
		return to
	}
	out := model{name: m.name}
	for _, c := range m.views[0].counts {
		out.usable += c.usable
		out.free += c.free
	}
	for t, c := range v.counts {
		if admits(t, req) {
			out.matches = out.matches || c.usable > 0
			out.available += c.free
		}
	}
	if !out.matches {
		return to
	}
	for _, b := range named {
		if !admits(traitsOf(b), req) {
			continue
		}
		for i := range b.GPUs {
			g := &b.GPUs[i]
			if g.Free && g.Usable && g.Model == m.name && g.Memory >= v.minMemory && slices.Contains(req.Exclude, Ref{b.ID, g.Slot}) {
				out.available--
			}
		}
	}
	return append(to, out)
}

// lookup is the stock of a Pool: the groups of its index, except for those of the
// boxes that the request names, which are in a list.
type lookup struct {
	list
	index   []classes
	named   []*Box
	dropped map[*group]bool
}

func newLookup(v *view, req *Request, named []*Box) *lookup {
	l := &lookup{list: list{req: req}, index: v.classesFor(req), named: named, dropped: map[*group]bool{}}
	for _, b := range named {
		if admits(traitsOf(b), req) {
			l.groups = appendGroups(l.groups, b, req, v.model)
		}
	}
	return l
}

// excluded reports whether a group of the index is not part of the stock.
func (l *lookup) excluded(g *group) bool {
	return l.dropped[g] || slices.ContainsFunc(l.named, func(b *Box) bool { return b.ID == g.box })
}

func (l *lookup) best(o order, n int) *group {
	best := l.list.best(o, n)
	for _, index := range l.index {
		for c, groups := range index {
			if c.free < n || !admits(c.traits, l.req) {
				continue
			}
			for g := range groups.Ascend {
				if l.excluded(g) {
					continue
				}
				if best == nil || o.compare(g, best, n, l.req) < 0 {
					best = g
				}
				break
			}
		}
	}
	return best
}

func (l *lookup) drop(g *group) {
	l.list.drop(g)
	l.dropped[g] = true
}

func (l *lookup) onlyBesideLease() bool {
	l.index = nil
	return l.list.onlyBesideLease()
}
