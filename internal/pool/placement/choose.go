package placement

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/dxpu-project/dxpu/internal/plural"
)

// group is a set of free GPUs of one model in one box; where NVLink is required,
// in one NVLink domain of the box.
type group struct {
	traits
	box    string
	start  [2]uint64 // of box
	domain string
	rack   string
	number uint32   // of the box, in the index
	slots  []uint32 // in order, at least one
	// switches has the PCIe switch of each slot; nil: they are all below one.
	switches []string
	// proxyRoom is how many more GPUs of the box its proxy serves at full
	// bandwidth; unlimited where that is not known.
	proxyRoom   int
	besideLease bool // the request has GPUs here already
}

// unlimited is the proxyRoom of a box whose proxy's bandwidth is not known.
const unlimited = math.MaxInt32

// proxyRoomOf returns how many more GPUs the proxy of a box serves at full bandwidth.
func proxyRoomOf(b *Box) int {
	if b.ProxyGPUs == 0 {
		return unlimited
	}
	bound := 0
	for i := range b.GPUs {
		if !b.GPUs[i].Free {
			bound++
		}
	}
	return max(0, b.ProxyGPUs-bound)
}

// stock is the groups that a request may choose from: a list, or the index of a Pool.
type stock interface {
	// best returns the first group in an order, for n GPUs, of those that have at
	// least n free. It returns nil where none has.
	best(o order, n int) *group
	// drop removes a group.
	drop(g *group)
	// onlyBesideLease keeps the groups beside the lease, and reports whether any exist.
	onlyBesideLease() bool
}

// choose picks req.Count GPUs from the stock, or none.
func choose(s stock, req *Request, d *Decision) []Ref {
	together := req.SameBox == Required || req.NVLink == Required
	beside := together && len(req.Together) > 0
	if beside && !s.onlyBesideLease() {
		d.sayBesides(req, 0)
		return nil
	}
	if req.SameBox == Avoided {
		return spread(s, req, d)
	}
	if fit := s.best(bestFit, req.Count); fit != nil {
		req.settle(fit)
		d.sayFit(fit, req.Count)
		return pickParts(d, []part{{fit, req.Count}}, req.Count)
	}
	switch most := s.best(order{mostFree}, 1); {
	case beside && most != nil:
		d.sayBesides(req, len(most.slots))
		return nil
	case req.NVLink == Required:
		d.say("No NVLink domain has %d of them free together.", req.Count)
		return nil
	case together:
		d.say("No single box has %d of them free together.", req.Count)
		return nil
	}
	return split(s, req, d)
}

// sayBesides says that beside the GPUs of the lease at most some are free.
func (d *Decision) sayBesides(req *Request, most int) {
	if d.silent {
		return
	}
	domain, boxes := "", boxesOf(req.Together)
	if req.NVLink == Required {
		domain = "their NVLink domain of "
	}
	in := "box " + boxes[0]
	if len(boxes) > 1 {
		in = "one of the boxes " + strings.Join(boxes, ", ")
	}
	free := "none is free for the request"
	if most > 0 {
		free = fmt.Sprintf("at most %d of %d are free for the request", most, req.Count)
	}
	d.say("The new %s must be with the lease's others, in %s%s, where %s.", byNumber(req.Count, "GPU", "GPUs"), domain, in, free)
}

// sayFew says why there are fewer GPUs than the models have: those of a box count only in an
// NVLink domain, or with a network to the host that has been chosen for the first of them.
func (d *Decision) sayFew(req *Request) {
	var what []string
	if req.NVLink == Required {
		what = append(what, "are in an NVLink domain")
	}
	if len(req.Together) > 0 && req.together() {
		what = append(what, "are beside the lease's others")
	}
	if f, ok := req.site.(fixedSite); ok && f.chosen {
		what = append(what, "have a network in common with one host that has the slots")
	}
	d.say("Fewer than %d of them %s.", req.Count, strings.Join(what, " and "))
}

// sayFit says what is left of the box that fits best.
func (d *Decision) sayFit(fit *group, n int) {
	if d.silent {
		return
	}
	d.say("Box %s (%s) fits best: %d free, %d left.", fit.box, fit.kind, len(fit.slots), len(fit.slots)-n)
	if s := fit.switchesOf(fit.take(n)); s > 0 && n > 1 {
		d.say("Its GPUs are below %s.", plural.Count(s, "PCIe switch", "PCIe switches"))
	}
}

// split takes whole groups, the largest first, until one group has
// enough for the rest; that one is the best fit. So few boxes are used and small
// remainders stay free.
func split(s stock, req *Request, d *Decision) []Ref {
	var parts []part
	need := req.Count
	for need > 0 {
		g := s.best(bestFit, need)
		if g == nil {
			g = s.best(largestFirst, 1)
		}
		if g == nil {
			d.sayFew(req)
			return nil
		}
		req.settle(g)
		n := min(need, len(g.slots))
		parts = append(parts, part{g, n})
		need -= n
		s.drop(g)
	}
	d.say("No single box has %d of them free: the request is split over %s.", req.Count, placesOf(parts))
	return pickParts(d, parts, req.Count)
}

// spread takes one GPU per group in turns, from the emptiest box first.
func spread(s stock, req *Request, d *Decision) []Ref {
	var groups []*group
	for len(groups) < req.Count {
		g := s.best(emptiestFirst, 1)
		if g == nil {
			break
		}
		req.settle(g)
		groups = append(groups, g)
		s.drop(g)
	}
	parts := make([]part, len(groups))
	var picks []Ref
	for round := 0; len(picks) < req.Count; round++ {
		before := len(picks)
		for i, g := range groups {
			if round < len(g.slots) && len(picks) < req.Count {
				picks = append(picks, Ref{g.box, g.slots[round]})
				parts[i] = part{g, round + 1}
			}
		}
		if len(picks) == before {
			d.sayFew(req)
			return nil
		}
	}
	d.say("Spread over %s, as asked.", placesOf(parts))
	d.sayOverloaded(parts)
	return picks
}

// settle fixes the host once the first group is chosen.
func (r *Request) settle(g *group) { r.settleAt(g.location()) }

// settleAt fixes the host once a place for the first GPU is chosen.
func (r *Request) settleAt(at Location) {
	if r.site != nil {
		r.site = r.site.settle(at)
	}
}

func (g *group) location() Location { return Location{g.rack, g.paths} }

// part is n GPUs of a group.
type part struct {
	*group
	n int
}

func pickParts(d *Decision, parts []part, count int) []Ref {
	picks := make([]Ref, 0, count)
	for _, p := range parts {
		for _, s := range p.take(p.n) {
			picks = append(picks, Ref{p.box, s})
		}
	}
	d.sayOverloaded(parts)
	return picks
}

// sayOverloaded says which proxies the decision overloads.
func (d *Decision) sayOverloaded(parts []part) {
	if d.silent {
		return
	}
	overloaded, name := 0, ""
	for i, p := range parts {
		n := 0 // GPUs taken from this box, over all of its groups
		for _, o := range parts {
			if o.box == p.box {
				n += o.n
			}
		}
		first := !slices.ContainsFunc(parts[:i], func(o part) bool { return o.box == p.box })
		if first && n > p.proxyRoom {
			overloaded, name = overloaded+1, p.box
		}
	}
	switch overloaded {
	case 0:
	case 1:
		d.say("The proxy of box %s then serves more GPUs than it has bandwidth for; no better place was free.", name)
	default:
		d.say("The proxies of %d of the boxes then serve more GPUs than they have bandwidth for; no better place was free.", overloaded)
	}
}

// placesOf returns the name of the one box, or the numbers of boxes and racks.
func placesOf(parts []part) string {
	var boxes, racks []string
	for _, p := range parts {
		if p.n == 0 {
			continue
		}
		if !slices.Contains(boxes, p.box) {
			boxes = append(boxes, p.box)
		}
		if p.rack != "" && !slices.Contains(racks, p.rack) {
			racks = append(racks, p.rack)
		}
	}
	switch {
	case len(boxes) == 1:
		return "box " + boxes[0]
	case len(racks) > 1:
		return fmt.Sprintf("%d boxes in %d racks", len(boxes), len(racks))
	default:
		return fmt.Sprintf("%d boxes", len(boxes))
	}
}
