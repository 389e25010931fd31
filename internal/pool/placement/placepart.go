package placement

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"

	"k8s.io/utils/third_party/forked/golang/btree"

	"github.com/dxpu-project/dxpu/internal/plural"
)

// partSearch looks for a place for one part among the GPUs that parts share.
type partSearch struct {
	pool *Pool
	req  *Request
	part *Part
	best *sharedGPU
	cost int64
	// tries and cells are the numbers of GPUs and of cells that the search has looked at.
	tries, cells int
	cut          bool     // by the bounds of the search
	keys         []string // see labelKeys
}

// labelKeys returns the keys of the request's labels, in order: many GPUs are compared with them.
func (s *partSearch) labelKeys() []string {
	if s.keys == nil && len(s.req.Labels) > 0 {
		s.keys = slices.Sorted(maps.Keys(s.req.Labels))
	}
	return s.keys
}

// placePart decides on a request for a part. The costs of a GPU that parts share and of a
// free GPU are compared; of equal costs the shared GPU wins, which keeps free ones whole.
func (p *Pool) placePart(reserve Reserve, req *Request) Decision {
	req = p.excludeGPUs(req)
	if req.MaxSize > 0 {
		req.MinMemory = max(req.MinMemory, req.Part.leastGPU(req.MaxSize))
	}
	s := &partSearch{pool: p, req: req, part: req.Part}
	if joined := p.shared.affine[s.part.label(s.part.Affinity)]; s.part.Affinity != "" && joined != nil {
		if s.join(joined) {
			if s.best == nil {
				return s.cannotJoin(joined)
			}
			return s.take()
		}
		s.bring(joined)
	}
	if len(req.Only) > 0 {
		return p.placeNamedPart(reserve, s)
	}
	s.search()
	probe := *req
	probe.Brief = true // where a shared GPU takes the part, nothing is to be explained
	fresh := p.placeFresh(reserve, &probe)
	if s.best == nil && !fresh.OK() && s.cut {
		s.scan(maxFound)
	}
	if s.best != nil && (!fresh.OK() || s.cost <= p.freshCost(fresh.Picks[0], s.part)) {
		return s.take()
	}
	if !fresh.OK() {
		if !req.Brief {
			fresh = p.placeFresh(reserve, req)
		}
		return s.refuse(fresh)
	}
	return p.openFresh(fresh, req)
}

// join considers the GPUs with the affinity of the part that it does not leave. It reports
// whether there are any.
func (s *partSearch) join(joined *btree.BTree[*sharedGPU]) (some bool) {
	joined.Ascend(func(g *sharedGPU) bool {
		if !slices.Contains(s.req.Leaves, g.ref()) {
			some = true
			s.consider(g)
		}
		return true
	})
	return some
}

// bring looks for a place for all parts with the affinity, which are on GPUs that the part
// leaves: the others follow it there.
func (s *partSearch) bring(joined *btree.BTree[*sharedGPU]) {
	all := *s.part
	all.Memory, all.Compute = 0, 0
	joined.Ascend(func(g *sharedGPU) bool {
		for i := range g.box.Parts {
			if o := &g.box.Parts[i]; o.Taken && o.GPU == g.gpu.Slot && o.Part.label(o.Part.Affinity) == s.part.label(s.part.Affinity) {
				all.Memory, all.Compute = all.Memory+o.Part.Memory, all.Compute+o.Part.Compute
			}
		}
		return true
	})
	all.Memory, all.Compute = max(all.Memory, s.part.Memory), max(all.Compute, s.part.Compute)
	s.part, s.req.Part = &all, &all
	s.req.Exclude = append(s.req.Exclude, s.req.Leaves...)
}

// excludeGPUs returns the request with the GPUs of the excluded slots of parts excluded.
func (p *Pool) excludeGPUs(req *Request) *Request {
	out := *req
	out.Exclude = slices.Clone(req.Exclude)
	for _, r := range req.Exclude {
		if b := p.boxes[r.Box]; b != nil {
			if at := slices.IndexFunc(b.Parts, func(s PartSlot) bool { return s.Slot == r.Slot }); at >= 0 {
				out.Exclude = append(out.Exclude, Ref{r.Box, b.Parts[at].GPU})
			}
		}
	}
	return &out
}

// search finds the GPU of least cost.
func (s *partSearch) search() {
	for c, of := range s.admitted() {
		s.searchClass(c, of)
	}
}

// admitted returns the classes in which the part may have a place. Only GPUs without
// exclusion, or with that of the request, come into question.
func (s *partSearch) admitted() iter.Seq2[sharedClass, *plane] {
	all := s.pool.shared.classes[s.part.label(s.part.Exclusion)]
	averse := s.part.label(s.part.AntiAffinity)
	out := make([]sharedClass, 0, len(all))
	for c, of := range all {
		if s.admitsClass(c) && of.averse[averse].len() < of.gpus.Len() {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, compareClasses) // the bounds of a search make the order count
	return func(yield func(sharedClass, *plane) bool) {
		for _, c := range out {
			if !yield(c, all[c]) {
				return
			}
		}
	}
}

func (s *partSearch) admitsClass(c sharedClass) bool {
	switch {
	case s.req.Model != "" && c.model != s.req.Model, c.memory < max(s.req.MinMemory, s.part.Memory):
		return false
	case s.part.Share != AnyShare && c.share != s.part.Share:
		return false
	}
	return admits(c.traits, s.req) && s.req.tolerates(c.restriction)
}

// consider offers one GPU, if it can take the part.
func (s *partSearch) consider(g *sharedGPU) bool {
	if s.lacks(g) != 0 {
		return false
	}
	l := s.pool.lossOf(g.class.model, g.class.memory)
	s.offer(g, l.gradient(g.state.room, g.class.memory, s.part)+s.pool.interference.slowdown(s.part, g.beside))
	return true
}

// offer takes a GPU if it is better than the best one: of less cost, then nearer, then
// tighter, then first by name.
func (s *partSearch) offer(g *sharedGPU, cost int64) {
	if s.best != nil {
		switch d := s.distance(g) - s.distance(s.best); {
		case cost > s.cost || cost == s.cost && d > 0:
			return
		case cost == s.cost && d == 0 && compareTight(g, s.best) >= 0:
			return
		}
	}
	s.best, s.cost = g, cost
}

// compareTight compares what is left of two GPUs, in thousandths and then in bytes, and
// their names.
func compareTight(a, b *sharedGPU) int {
	if d := cmp.Or(cmp.Compare(a.left(), b.left()), cmp.Compare(a.state.memory, b.state.memory)); d != 0 {
		return d
	}
	return compareShared(a, b)
}

func (s *partSearch) distance(g *sharedGPU) distance {
	if s.req.site == nil {
		return 0
	}
	return s.req.site.distance(Location{g.box.Rack, g.box.Paths})
}

// lacks returns what keeps a GPU from the part.
func (s *partSearch) lacks(g *sharedGPU) (l lack) {
	l = s.req.lacksBox(g.box, s.labelKeys()) | s.req.lacks(g.box, &g.gpu)&^(notUsable|undivided)
	if !g.usable {
		l |= notUsable
	}
	if len(s.req.Only) > 0 && !slices.Contains(s.req.Only, g.ref()) {
		l |= notNamed
	}
	if s.req.Box != "" && s.req.Box != g.box.ID {
		l |= ofOtherHost
	}
	if s.part.Share != AnyShare && g.class.share != s.part.Share {
		l |= otherMode
	}
	if g.exclusion != s.part.label(s.part.Exclusion) {
		l |= otherExclusion
	}
	if s.part.AntiAffinity != "" && slices.Contains(g.averse, s.part.label(s.part.AntiAffinity)) {
		l |= sameAverse
	}
	if g.state.compute < s.part.Compute {
		l |= lessCompute
	}
	if g.state.memory < s.part.Memory {
		l |= lessFree
	}
	switch {
	case g.changes:
		l |= changing
	case len(g.slots) == 0 && g.usable: // the slots of a GPU that takes no bindings do not either
		l |= noSlot
	}
	return l
}

// take gives the part its place on the best GPU.
func (s *partSearch) take() (d Decision) {
	g := s.best
	s.req.settleAt(Location{g.box.Rack, g.box.Paths})
	left := g.state.less(s.part)
	d.Picks, d.Share = []Ref{{g.box.ID, g.slots[0]}}, g.class.share
	d.say("GPU %s (%s) fits best: %d other parts share it, and %s and %s of the compute stay free.",
		g.ref(), g.class.model, g.parts, bytesText(left.memory), percent(left.compute))
	if lost := s.pool.interference.slowdown(s.part, g.beside); lost > 0 {
		d.say("By the measured interference the parts on it lose %s of its compute.", percent(uint32(min(lost/(2*million), Whole))))
	}
	return d
}

// cannotJoin explains why no GPU with the part's affinity takes it.
func (s *partSearch) cannotJoin(joined *btree.BTree[*sharedGPU]) (d Decision) {
	d.say("Parts with affinity %q are on %s, and the part must join them:", s.part.Affinity, plural.Count(joined.Len(), "GPU", "GPUs"))
	s.sayObstacles(&d, joined)
	return d
}

// maxExplained bounds the GPUs for which a refusal says what keeps the part from them.
const maxExplained = 1000

// sayObstacles counts the GPUs of a set by what keeps the part from them.
func (s *partSearch) sayObstacles(d *Decision, all *btree.BTree[*sharedGPU]) {
	if s.req.Brief || all.Len() == 0 {
		return
	}
	count, n := &lacking{}, 0
	all.Ascend(func(g *sharedGPU) bool {
		n++
		l := s.lacks(g)
		if l != 0 {
			count.add(l, g.gpu.Restriction, 1)
		}
		if l == kept {
			d.Kept = append(d.Kept, s.excludedOf(g)...)
		}
		return n < maxExplained
	})
	if len(count.sets) == 0 {
		return
	}
	of := plural.Count(all.Len(), "GPU that parts share", "GPUs that parts share")
	if n < all.Len() {
		of = fmt.Sprintf("the first %d of %s", n, of)
	}
	d.say("Of %s, %s.", of, count.text(s.req))
}

// excludedOf returns what of a GPU and its slots for parts the request excludes.
func (s *partSearch) excludedOf(g *sharedGPU) (out []Ref) {
	for _, r := range s.req.Exclude {
		if r.Box == g.box.ID && (r.Slot == g.gpu.Slot || slices.ContainsFunc(g.box.Parts, func(p PartSlot) bool { return p.Slot == r.Slot && p.GPU == g.gpu.Slot })) {
			out = append(out, r)
		}
	}
	return out
}

// refuse explains why neither a shared GPU nor a free one takes the part.
func (s *partSearch) refuse(fresh Decision) (d Decision) {
	d.say("The part needs %s of one GPU.", s.part)
	s.sayObstacles(&d, s.pool.shared.all)
	d.Why, d.Kept = append(d.Why, fresh.Why...), append(d.Kept, fresh.Kept...)
	return d
}

// placeFresh looks for a free GPU that can be divided, as for a request of one GPU.
func (p *Pool) placeFresh(reserve Reserve, req *Request) Decision {
	if req.noFresh {
		return Decision{}
	}
	whole := *req
	whole.MinMemory = max(req.MinMemory, req.Part.Memory)
	whole.Only, whole.Together, whole.NVLink, whole.SameBox = nil, nil, Indifferent, Indifferent
	if f, ok := req.site.(*freeSite); ok {
		probe := *f // settling belongs to the choice
		whole.site = &probe
	}
	return p.placeGPUs(reserve, &whole)
}

// freshCost returns what a part adds to the fragmentation of a free GPU.
func (p *Pool) freshCost(r Ref, part *Part) int64 {
	_, g := p.find(r)
	return p.lossOf(g.Model, g.Memory).gradient(room{g.Memory, Whole}, g.Memory, part)
}

// openFresh gives the part the first slot of a free GPU.
func (p *Pool) openFresh(fresh Decision, req *Request) (d Decision) {
	r := fresh.Picks[0]
	b, g := p.find(r)
	req.settleAt(Location{b.Rack, b.Paths})
	left := room{g.Memory, Whole}.less(req.Part)
	d.Why = fresh.Why
	d.Picks, d.Share = []Ref{{r.Box, freePartSlots(b, r.Slot)[0]}}, cmp.Or(req.Part.Share, g.Modes.List()[0])
	d.say("GPU %s is opened for parts: %s and %s of its compute stay free.", r, bytesText(left.memory), percent(left.compute))
	return d
}

// placeNamedPart decides on a part of one of the GPUs that the request names.
func (p *Pool) placeNamedPart(reserve Reserve, s *partSearch) (d Decision) {
	for _, r := range s.req.Only {
		b, g := p.find(r)
		if g == nil {
			d.say("GPU %s does not exist.", r)
			continue
		}
		if at := slices.IndexFunc(p.shared.boxes[r.Box], func(o *sharedGPU) bool { return o.gpu.Slot == r.Slot }); at >= 0 {
			o := p.shared.boxes[r.Box][at]
			if s.consider(o); s.best == nil {
				var one lacking
				one.add(s.lacks(o), o.gpu.Restriction, 1)
				d.say("GPU %s %s.", r, one.sets[0].words(s.req))
			}
			continue
		}
		whole := *s.req
		whole.Only = []Ref{r}
		if why := cmp.Or(whyNotNamed(b, g, s.req), namedPartObstacle(b, g, &whole)); why != "" {
			d.say("GPU %s %s.", r, why)
			continue
		}
		whole.Part, whole.MinMemory = nil, max(s.req.MinMemory, s.part.Memory)
		if one := p.placeNamed(reserve, &whole); one.OK() {
			return p.openFresh(one, s.req)
		} else {
			d.Why, d.Kept = append(d.Why, one.Why...), append(d.Kept, one.Kept...)
		}
	}
	if s.best != nil {
		return s.take()
	}
	return d
}

func namedPartObstacle(b *Box, g *GPU, req *Request) string {
	switch {
	case !g.Modes.has(req.Part.Share):
		return "cannot be divided in that mode"
	case len(freePartSlots(b, g.Slot)) == 0:
		return "has no slot for a part"
	}
	return ""
}
