package placement

import (
	"maps"
	"slices"

	"github.com/dxpu-project/dxpu/internal/plural"
)

// A request may name its GPUs, because a scheduler outside of the pool has chosen them.
// They are few: they are looked at one by one, without the index.

// placeNamed decides on a request that names its GPUs.
func (p *Pool) placeNamed(reserve Reserve, req *Request) Decision {
	var d Decision
	var picks []Ref
	byModel := map[string]int{}
	switch {
	case req.Box == "" || req.alone():
	case !req.Several:
		d.say("The sharing agent of the host gives each lease one GPU: upgrade it for leases of several.")
		return d
	case len(req.Only) < req.Count:
		d.say("The request is for %d GPUs, and %d are named or the host's own.", req.Count, len(req.Only))
		return d
	}
	for _, r := range req.Only {
		b, g := p.find(r)
		switch why := whyNotNamed(b, g, req); {
		case why != "":
			d.say("GPU %s %s.", r, why)
		case slices.Contains(req.Exclude, r):
			d.say("GPU %s is of this lease already, kept for another one, or could not be attached before.", r)
			if g.Free {
				d.Kept = append(d.Kept, r)
			}
		case !g.Free:
			d.say("GPU %s is in use.", r)
		case len(picks) < req.Count:
			picks = append(picks, r)
			if !g.Restriction.local() {
				byModel[g.Model]++
			}
			if req.site != nil {
				req.site = req.site.settle(b.Location)
			}
		}
	}
	if len(picks) < req.Count {
		return d
	}
	for _, name := range slices.Sorted(maps.Keys(byModel)) {
		n, m := byModel[name], p.model(name).total()
		if held := m.held(reserve); !req.UseSpares && n > m.common().free-held {
			d.say("Model %s: %d of %d usable GPUs are free, %d of them held back as spares.", name, m.free, m.usable, held)
			if m.local.free > 0 {
				d.say("Of the free ones, %s a sharing agent, which serves leases that name its host.", plural.Count(m.local.free, "has", "have"))
			}
			d.say("That leaves %d for this request, which needs %d.", m.common().free-held, n)
			return d
		}
	}
	d.Picks = picks
	d.say("The request names its GPUs.")
	return d
}

// gatherNamed is Gather for a request that names its GPUs.
func (p *Pool) gatherNamed(req *Request) (hold []Ref, ok bool) {
	for _, r := range req.Only {
		b, g := p.find(r)
		if whyNotNamed(b, g, req) != "" {
			return nil, false
		}
		if g.Free && !slices.Contains(req.Exclude, r) {
			hold = append(hold, r)
		}
	}
	return hold, len(req.Only) >= req.Count
}

// find returns a GPU and its box, nil if the pool does not have them.
func (p *Pool) find(r Ref) (*Box, *GPU) {
	b := p.boxes[r.Box]
	if b == nil {
		return nil, nil
	}
	at := slices.IndexFunc(b.GPUs, func(g GPU) bool { return g.Slot == r.Slot })
	if at < 0 {
		return &b.Box, nil
	}
	return &b.Box, &b.GPUs[at]
}

// whyNotNamed returns why a request may not have a GPU that it names, free or not; "" if
// it may.
func whyNotNamed(b *Box, g *GPU, req *Request) string {
	switch {
	case g == nil:
		return "is not in the pool"
	case req.Box != "" && b.ID != req.Box:
		return "is not one of the host's own, and it has no others"
	case !g.Usable:
		return "is out of service"
	case req.Model != "" && g.Model != req.Model:
		return "is of model " + g.Model
	case !req.mayHave(g.Model):
		return "is of model " + g.Model + ", of which the request may not have as many"
	case g.Memory < req.MinMemory:
		return "has too little memory for the request"
	case g.Restriction.local() && req.Box == "":
		return "is for its own host alone, which the request does not name"
	case !req.tolerates(g.Restriction):
		return "has " + obstacles(slices.Values([]Restriction{g.Restriction}), req.Tolerations)
	case req.site != nil && !req.site.reaches(b.Paths):
		return "has no network in common with the host"
	case !admitsBox(b, req):
		return "is in a box that the request does not admit"
	}
	return ""
}

// total counts the GPUs of a model in the whole pool.
func (m *modelIndex) total() model {
	out := model{name: m.name}
	for _, c := range m.views[0].counts {
		out.usable += c.usable
		out.free += c.free
	}
	for r, c := range m.restrictions {
		if r.local() {
			out.local.usable += c.usable
			out.local.free += c.free
		}
	}
	return out
}
