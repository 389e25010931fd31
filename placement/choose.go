package placement

import (
	"cmp"
	"fmt"
	"slices"
)

// group is a set of free GPUs that count as being together: those of one box,
// or of one NVLink domain of a box where NVLink is required.
type group struct {
	box    string
	domain string
	kind   Kind
	slots  []uint32
	joined bool // the request has GPUs here already
}

// candidates collects the free GPUs of one model into groups, ordered by box
// ID, each with its slots in order.
func candidates(boxes []Box, req Request, model string) []group {
	var out []group
	for i := range boxes {
		b := &boxes[i]
		if !admits(b, req) {
			continue
		}
		first := len(out)
		for _, g := range b.GPUs {
			if g.Model != model || !matches(g, req) || !g.Usable || !g.Free || slices.Contains(req.Exclude, Ref{b.ID, g.Slot}) {
				continue
			}
			domain := ""
			if req.NVLink == Required {
				if g.Domain == "" && req.Count+len(req.Together) > 1 {
					continue
				}
				domain = g.Domain
			}
			at := slices.IndexFunc(out[first:], func(c group) bool { return c.domain == domain })
			if at < 0 {
				at = len(out) - first
				out = append(out, group{box: b.ID, domain: domain, kind: b.Kind, joined: joins(b, req, domain)})
			}
			out[first+at].slots = append(out[first+at].slots, g.Slot)
		}
	}
	for i := range out {
		slices.Sort(out[i].slots)
	}
	return out
}

// joins reports whether the request has a GPU in this box already (of this
// domain, where one is given).
func joins(b *Box, req Request, domain string) bool {
	return slices.ContainsFunc(req.Together, func(r Ref) bool {
		return r.Box == b.ID && slices.ContainsFunc(b.GPUs, func(g GPU) bool {
			return g.Slot == r.Slot && (domain == "" || g.Domain == domain)
		})
	})
}

// choose picks Count GPUs out of the groups, or none.
func choose(groups []group, req Request, d *Decision) []Ref {
	together := req.SameBox == Required || req.NVLink == Required
	if together && len(req.Together) > 0 {
		groups = slices.DeleteFunc(groups, func(g group) bool { return !g.joined })
		if len(groups) == 0 {
			d.say("The new GPU must sit beside those that the lease has, in %s, where none is free.", req.Together[0].Box)
			return nil
		}
	}
	if req.SameBox == Avoided {
		return spread(groups, req, d)
	}
	if fit := bestFit(groups, req.Count, req); fit != nil {
		left := len(fit.slots) - req.Count
		d.say("Box %s (%s) fits best: %d free, %d left.", fit.box, fit.kind, len(fit.slots), left)
		return take(nil, *fit, req.Count)
	}
	if together {
		d.say("No single box has %d of them free together.", req.Count)
		return nil
	}
	return cut(groups, req, d)
}

// bestFit returns the group that suits a request of n GPUs best, nil when none
// is large enough.
func bestFit(groups []group, n int, req Request) *group {
	var best *group
	for i := range groups {
		g := &groups[i]
		if len(g.slots) >= n && (best == nil || compare(g, best, req) < 0) {
			best = g
		}
	}
	return best
}

// compare orders groups that are large enough: where the lease is already;
// then by kind; then the fullest.
func compare(a, b *group, req Request) int {
	return cmp.Or(
		cmp.Compare(rank(!a.joined), rank(!b.joined)),
		cmp.Compare(kindRank(a.kind, req), kindRank(b.kind, req)),
		cmp.Compare(len(a.slots), len(b.slots)),
		cmp.Compare(a.box, b.box),
		cmp.Compare(a.domain, b.domain),
	)
}

func rank(b bool) int {
	if b {
		return 1
	}
	return 0
}

// kindRank puts NVLink boxes first for those who prefer NVLink and last for
// everybody else.
func kindRank(k Kind, req Request) int {
	return rank((k == NVLink) != (req.NVLink == Preferred))
}

// cut takes whole groups, the largest first, until the rest fits into one, for
// which the best fit is taken: few boxes, small remainders.
func cut(groups []group, req Request, d *Decision) []Ref {
	var picks []Ref
	rest := slices.Clone(groups)
	for len(picks) < req.Count && len(rest) > 0 {
		need := req.Count - len(picks)
		g := bestFit(rest, need, req)
		if g == nil {
			g = slices.MinFunc(pointers(rest), func(a, b *group) int {
				return cmp.Or(cmp.Compare(len(b.slots), len(a.slots)), compare(a, b, req))
			})
		}
		picks = take(picks, *g, min(need, len(g.slots)))
		rest = slices.DeleteFunc(rest, func(o group) bool { return o.box == g.box && o.domain == g.domain })
	}
	if len(picks) < req.Count {
		d.say("Only %d of them are free under the constraints.", len(picks))
		return nil
	}
	d.say("No single box has %d of them free: the request is cut over %s.", req.Count, boxesOf(picks))
	return picks
}

// spread takes one GPU per box in turns, starting with the emptiest box.
func spread(groups []group, req Request, d *Decision) []Ref {
	order := pointers(groups)
	slices.SortFunc(order, func(a, b *group) int {
		return cmp.Or(cmp.Compare(rank(a.joined), rank(b.joined)), cmp.Compare(len(b.slots), len(a.slots)), compare(a, b, req))
	})
	var picks []Ref
	for round := 0; len(picks) < req.Count; round++ {
		before := len(picks)
		for _, g := range order {
			if round < len(g.slots) && len(picks) < req.Count {
				picks = append(picks, Ref{g.box, g.slots[round]})
			}
		}
		if len(picks) == before {
			d.say("Only %d of them are free under the constraints.", len(picks))
			return nil
		}
	}
	d.say("Spread over %s, as asked.", boxesOf(picks))
	return picks
}

func take(picks []Ref, g group, n int) []Ref {
	for _, s := range g.slots[:n] {
		picks = append(picks, Ref{g.box, s})
	}
	return picks
}

func pointers(groups []group) []*group {
	out := make([]*group, len(groups))
	for i := range groups {
		out[i] = &groups[i]
	}
	return out
}

func boxesOf(picks []Ref) string {
	var names []string
	for _, p := range picks {
		if !slices.Contains(names, p.Box) {
			names = append(names, p.Box)
		}
	}
	if len(names) == 1 {
		return "box " + names[0]
	}
	return fmt.Sprintf("%d boxes", len(names))
}
