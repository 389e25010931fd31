package placement

import (
	"cmp"
	"fmt"
	"math"
	"slices"
)

// group is a set of free GPUs that count as being together: those of one box,
// or of one NVLink domain of a box where NVLink is required.
type group struct {
	box    string
	domain string
	rack   string
	kind   Kind
	slots  []uint32 // in order, at least one
	// room is how many more GPUs of the box may be bound before its proxy runs
	// out of bandwidth; unlimited where that is not known.
	room   int
	joined bool // the request has GPUs here already
}

// unlimited is the room of a box whose proxy's bandwidth is not known.
const unlimited = math.MaxInt32

// roomOf returns how many more GPUs the proxy of a box serves at full bandwidth.
func roomOf(b *Box) int {
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

// stock is what a request may choose from: the list of the scan or the index of
// a Pool.
type stock interface {
	// fits returns the group that suits a request of n GPUs best (compareFit),
	// nil when none is large enough.
	fits(n int) *group
	// largest returns the first group by compareSize, nil when none is left.
	largest() *group
	// emptiest returns the first n groups by compareSpread, or all.
	emptiest(n int) []*group
	// drop takes a group out.
	drop(g *group)
	// beside leaves only the groups where the request has GPUs already, and
	// reports whether there are any.
	beside() bool
}

// choose picks Count GPUs out of the stock, or none.
func choose(s stock, req *Request, d *Decision) []Ref {
	together := req.SameBox == Required || req.NVLink == Required
	if together && len(req.Together) > 0 && !s.beside() {
		d.say("The new GPU must sit beside those that the lease has, in %s, where none is free.", req.Together[0].Box)
		return nil
	}
	if req.SameBox == Avoided {
		return spread(s, req, d)
	}
	if fit := s.fits(req.Count); fit != nil {
		left := len(fit.slots) - req.Count
		d.say("Box %s (%s) fits best: %d free, %d left.", fit.box, fit.kind, len(fit.slots), left)
		return picked(d, []part{{fit, req.Count}}, req.Count)
	}
	if together {
		d.say("No single box has %d of them free together.", req.Count)
		return nil
	}
	return cut(s, req, d)
}

// cut takes whole groups, the largest first, until the rest fits into one, for
// which the best fit is taken: few boxes, small remainders.
func cut(s stock, req *Request, d *Decision) []Ref {
	var parts []part
	need := req.Count
	for need > 0 {
		g := s.fits(need)
		if g == nil {
			g = s.largest()
		}
		if g == nil {
			d.say("Only %d of them are free under the constraints.", req.Count-need)
			return nil
		}
		n := min(need, len(g.slots))
		parts = append(parts, part{g, n})
		need -= n
		s.drop(g)
	}
	d.say("No single box has %d of them free: the request is cut over %s.", req.Count, placesOf(parts))
	return picked(d, parts, req.Count)
}

// spread takes one GPU per box in turns, starting with the emptiest box.
func spread(s stock, req *Request, d *Decision) []Ref {
	order := s.emptiest(req.Count)
	parts := make([]part, len(order))
	var picks []Ref
	for round := 0; len(picks) < req.Count; round++ {
		before := len(picks)
		for i, g := range order {
			if round < len(g.slots) && len(picks) < req.Count {
				picks = append(picks, Ref{g.box, g.slots[round]})
				parts[i] = part{g, round + 1}
			}
		}
		if len(picks) == before {
			d.say("Only %d of them are free under the constraints.", len(picks))
			return nil
		}
	}
	d.say("Spread over %s, as asked.", placesOf(parts))
	d.sayCrowded(parts)
	return picks
}

// part is how many GPUs of a group are taken.
type part struct {
	*group
	n int
}

func picked(d *Decision, parts []part, count int) []Ref {
	picks := make([]Ref, 0, count)
	for _, p := range parts {
		for _, s := range p.slots[:p.n] {
			picks = append(picks, Ref{p.box, s})
		}
	}
	d.sayCrowded(parts)
	return picks
}

// sayCrowded tells where proxies are left with more GPUs than they have
// bandwidth for.
func (d *Decision) sayCrowded(parts []part) {
	crowded, name := 0, ""
	for i, p := range parts {
		n := 0 // taken from this box, which may have several groups
		for _, o := range parts {
			if o.box == p.box {
				n += o.n
			}
		}
		first := !slices.ContainsFunc(parts[:i], func(o part) bool { return o.box == p.box })
		if first && n > p.room {
			crowded, name = crowded+1, p.box
		}
	}
	switch crowded {
	case 0:
	case 1:
		d.say("The proxy of box %s then serves more GPUs than it has bandwidth for; no better place was free.", name)
	default:
		d.say("The proxies of %d of the boxes then serve more GPUs than they have bandwidth for; no better place was free.", crowded)
	}
}

// compareFit orders groups that are large enough for n GPUs: where the lease is
// already; then by kind; then where the proxy has bandwidth for them; then the
// fullest; then the proxy that is used best.
func compareFit(a, b *group, n int, req *Request) int {
	crowdedA, crowdedB := a.room < n, b.room < n
	byRoom := cmp.Compare(a.room, b.room)
	if crowdedA {
		byRoom = -byRoom
	}
	return cmp.Or(
		cmp.Compare(rank(!a.joined), rank(!b.joined)),
		cmp.Compare(kindRank(a.kind, req), kindRank(b.kind, req)),
		cmp.Compare(rank(crowdedA), rank(crowdedB)),
		cmp.Compare(len(a.slots), len(b.slots)),
		byRoom,
		compareName(a, b),
	)
}

// compareSize orders groups to be taken whole.
func compareSize(a, b *group, req *Request) int {
	return cmp.Or(
		cmp.Compare(len(b.slots), len(a.slots)),
		cmp.Compare(rank(!a.joined), rank(!b.joined)),
		cmp.Compare(kindRank(a.kind, req), kindRank(b.kind, req)),
		cmp.Compare(b.room, a.room),
		compareName(a, b),
	)
}

// compareSpread orders groups to take one GPU of each.
func compareSpread(a, b *group, req *Request) int {
	return cmp.Or(
		cmp.Compare(rank(a.joined), rank(b.joined)),
		cmp.Compare(rank(a.room < 1), rank(b.room < 1)),
		cmp.Compare(len(b.slots), len(a.slots)),
		cmp.Compare(kindRank(a.kind, req), kindRank(b.kind, req)),
		cmp.Compare(b.room, a.room),
		compareName(a, b),
	)
}

func compareName(a, b *group) int {
	return cmp.Or(cmp.Compare(a.box, b.box), cmp.Compare(a.domain, b.domain))
}

func rank(b bool) int {
	if b {
		return 1
	}
	return 0
}

// kindRank puts NVLink boxes first for those who prefer NVLink and last for
// everybody else.
func kindRank(k Kind, req *Request) int {
	return rank((k == NVLink) != (req.NVLink == Preferred))
}

// placesOf names the one box, or counts the boxes and the racks they are in.
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
