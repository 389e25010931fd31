package placement

import "slices"

// list is the stock of Place: all groups that the constraints admit.
type list struct {
	groups []*group
	req    *Request
}

// candidates returns the admitted free GPUs of one model, in groups.
func candidates(boxes []Box, req *Request, model string) *list {
	l := &list{req: req}
	for i := range boxes {
		if admitsBox(&boxes[i], req) {
			l.groups = appendGroups(l.groups, &boxes[i], req, model)
		}
	}
	return l
}

// appendGroups appends the groups of one box, each with its slots in order.
func appendGroups(groups []*group, b *Box, req *Request, model string) []*group {
	first := len(groups)
	proxyRoom := proxyRoomOf(b)
	for _, g := range b.GPUs {
		if g.Model != model || g.Memory < req.MinMemory || !req.divides(&g) || !g.Usable || !g.Free || !req.tolerates(g.Restriction) || slices.Contains(req.Exclude, Ref{b.ID, g.Slot}) {
			continue
		}
		domain := ""
		if req.NVLink == Required {
			if g.Domain == "" && !req.alone() {
				continue
			}
			domain = g.Domain
		}
		at := slices.IndexFunc(groups[first:], func(c *group) bool { return c.domain == domain })
		if at < 0 {
			at = len(groups) - first
			c := newGroup(b, domain, hasLeaseGPU(b, req, domain))
			c.proxyRoom = proxyRoom
			groups = append(groups, c)
		}
		groups[first+at].slots = append(groups[first+at].slots, g.Slot)
	}
	for _, g := range groups[first:] {
		slices.Sort(g.slots)
		g.setSwitches(b)
	}
	return groups
}

// newGroup returns a group of a box without slots.
func newGroup(b *Box, domain string, besideLease bool) *group {
	return &group{traits: traitsOf(b), box: b.ID, start: startOf(b.ID), domain: domain, rack: b.Rack, number: b.number, besideLease: besideLease}
}

// hasLeaseGPU reports whether the request has a GPU in the box and any given domain.
func hasLeaseGPU(b *Box, req *Request, domain string) bool {
	return slices.ContainsFunc(req.Together, func(r Ref) bool {
		return r.Box == b.ID && slices.ContainsFunc(b.GPUs, func(g GPU) bool {
			return g.Slot == r.Slot && (domain == "" || g.Domain == domain)
		})
	})
}

func (l *list) best(o order, n int) *group {
	var best *group
	for _, g := range l.groups {
		if len(g.slots) >= n && admits(g.traits, l.req) && (best == nil || o.compare(g, best, n, l.req) < 0) {
			best = g
		}
	}
	return best
}

func (l *list) drop(g *group) {
	l.groups = slices.DeleteFunc(l.groups, func(o *group) bool { return o == g })
}

func (l *list) onlyBesideLease() bool {
	l.groups = slices.DeleteFunc(l.groups, func(g *group) bool { return !g.besideLease })
	return len(l.groups) > 0
}
