package placement

import (
	"maps"
	"slices"

	"k8s.io/utils/third_party/forked/golang/btree"
)

// Place decides on a request as the function Place does.
func (p *Pool) Place(reserve Reserve, req Request) Decision {
	p.request = req // the argument would escape
	p.request.setSite()
	p.decisions++
	switch {
	case req.Part != nil && req.Count == 1 && len(req.Together) == 0:
		return p.placePart(reserve, &p.request)
	case req.Part != nil:
		return p.placeParts(reserve, &p.request)
	}
	return p.placeGPUs(reserve, &p.request)
}

// placeGPUs decides on whole GPUs, or on a free one for a part.
func (p *Pool) placeGPUs(reserve Reserve, req *Request) Decision {
	if len(req.Only) > 0 {
		return p.placeNamed(reserve, req)
	}
	named := p.namedBoxes(req)
	models := p.ranked[:0]
	if req.Model != "" {
		models = p.appendModel(models, p.models[req.Model], req, named)
	} else {
		for _, m := range p.models {
			models = p.appendModel(models, m, req, named)
		}
		slices.SortFunc(models, compareContention)
	}
	p.ranked = models
	in := inventory{
		models: models, stock: func(model string) stock { return p.newLookup(p.models[model].view(req, p.decisions), req, named) },
		gpus: p.gpus, others: func(models []model) map[string]bool { return besides(maps.Keys(p.models), models) },
	}
	return in.decide(reserve, req)
}

// namedBoxes returns the boxes of the GPUs in req.Exclude and req.Together. They
// are few, and are looked at one by one instead of through the index.
func (p *Pool) namedBoxes(req *Request) []*Box {
	var out []*Box
	for _, refs := range [][]Ref{req.Exclude, req.Together} {
		for _, r := range refs {
			if b := p.boxes[r.Box]; b != nil && !slices.Contains(out, &b.Box) {
				out = append(out, &b.Box)
			}
		}
	}
	return out
}

// appendModel counts the GPUs of one model, if the constraints admit any of them.
func (p *Pool) appendModel(to []model, m *modelIndex, req *Request, named []*Box) []model {
	if m == nil || !req.mayHave(m.name) {
		return to
	}
	v := m.view(req, p.decisions)
	if v == nil {
		return to
	}
	out := m.total()
	sum := v.matching(req, &p.labels)
	out.matches, out.available = sum.usable > 0, sum.free
	if !out.matches {
		return to
	}
	for _, b := range named {
		if admitsBox(b, req) {
			out.available -= v.excludedFree(b, req)
		}
	}
	return append(to, out)
}

// excludedFree counts the free GPUs of a box that a request excludes.
func (v *view) excludedFree(b *Box, req *Request) (n int) {
	for i := range b.GPUs {
		if g := &b.GPUs[i]; g.Free && v.has(g) && slices.Contains(req.Exclude, Ref{b.ID, g.Slot}) {
			n++
		}
	}
	return n
}

// lookup is the stock of a Pool: the groups of its index, except for those of the
// boxes that the request names, which are in a list.
type lookup struct {
	list
	index   []*classes
	named   []*Box
	dropped map[*group]bool
	// labelled is set if not all boxes have the labels of the request; labels are those that do,
	// by number.
	labelled bool
	labels   []uint64
}

// newLookup returns the stock of a request. It is valid until the next one.
func (p *Pool) newLookup(v *view, req *Request, named []*Box) *lookup {
	l := &p.lookup
	*l = lookup{list: list{req: req}, index: v.appendClasses(l.index[:0], req), named: named}
	if boxes, some := p.labels.having(req.Labels); some && boxes.len() <= maxListed {
		boxes.all(func(n uint32) {
			b := &p.labels.boxes[n].Box
			if !slices.Contains(named, b) && admitsBox(b, req) {
				l.groups = appendGroups(l.groups, b, req, v.model)
			}
		})
		l.index = l.index[:0]
	} else {
		l.labelled, l.labels = some, boxes.bits()
	}
	for _, b := range named {
		if admitsBox(b, req) {
			l.groups = appendGroups(l.groups, b, req, v.model)
		}
	}
	return l
}

// maxListed bounds the boxes with the labels of a request that are looked at one by one instead of
// through the index.
const maxListed = 32

// nearestIn returns the first of the nearest groups of a class, nil if none of them is
// part of the stock. The boxes of the class have addresses on some paths.
func (l *lookup) nearestIn(groups *btree.BTree[entry], paths Paths) *group {
	s := l.req.site
	if s == nil {
		return l.firstFrom(groups, "")
	}
	least, nearer := s.least(paths)
	if nearer != "" {
		if g := l.firstFrom(groups, nearer); g != nil && g.rack == nearer {
			return g
		}
	}
	var best *group
	d := unreachable
	for g := l.firstFrom(groups, ""); g != nil; g = l.firstFrom(groups, g.rack+"\x00") {
		if to := s.distance(g.location()); to < d {
			best, d = g, to
		}
		if d <= least {
			break
		}
	}
	return best
}

// firstFrom returns the first group of the stock in a rack, or in a later one.
func (l *lookup) firstFrom(groups *btree.BTree[entry], rack string) (first *group) {
	if least, ok := groups.Min(); ok && rack == "" && !l.excluded(least.group) {
		return least.group
	}
	start := group{rack: rack}
	groups.AscendGreaterOrEqual(start.entry(), func(e entry) bool {
		if !l.excluded(e.group) {
			first = e.group
		}
		return first == nil
	})
	return first
}

// excluded reports whether a group of the index is not part of the stock.
func (l *lookup) excluded(g *group) bool {
	return l.dropped[g] || l.labelled && !hasBit(l.labels, g.number) || slices.ContainsFunc(l.named, func(b *Box) bool { return b.ID == g.box })
}

func (l *lookup) best(o order, n int) *group {
	best := l.list.best(o, n)
	for _, index := range l.index {
		for _, c := range index.all {
			if c.free < n || c.tree.Len() == 0 || !admits(c.traits, l.req) {
				continue
			}
			if best != nil && l.req.site == nil && o.compareRanks(c.like, best, n, l.req) > 0 {
				continue // no group of the class can win; with a site, its rack counts
			}
			if g := l.nearestIn(c.tree, c.paths); g != nil && (best == nil || o.compare(g, best, n, l.req) < 0) {
				best = g
			}
		}
	}
	return best
}

func (l *lookup) drop(g *group) {
	l.list.drop(g)
	if l.dropped == nil {
		l.dropped = map[*group]bool{}
	}
	l.dropped[g] = true
}

func (l *lookup) onlyBesideLease() bool {
	l.index = l.index[:0]
	return l.list.onlyBesideLease()
}
