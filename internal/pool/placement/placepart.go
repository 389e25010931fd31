package placement

import (
	"cmp"
	"fmt"
	"slices"

	"k8s.io/utils/third_party/forked/golang/btree"
)

// partSearch looks for a place for one part among the GPUs that parts share.
type partSearch struct {
	pool *Pool
	req  *Request
	part *Part
	best *sharedGPU
	cost int64
}

// placePart decides on a request for a part. The costs of a GPU that parts share and of a
// free GPU are compared; of equal costs the shared GPU wins, which keeps free ones whole.
func (p *Pool) placePart(reserve Reserve, req *Request) Decision {
	if req.Count != 1 {
		var d Decision
		d.say("A request for a part is for one part.")
		return d
	}
	req = p.excludeGPUs(req)
	s := &partSearch{pool: p, req: req, part: req.Part}
	if joined := p.shared.affine[s.part.label(s.part.Affinity)]; s.part.Affinity != "" && len(joined) > 0 {
		for _, g := range joined {
			s.consider(g)
		}
		if s.best == nil {
			return s.cannotJoin(joined)
		}
		return s.take()
	}
	if len(req.Only) > 0 {
		return p.placeNamedPart(reserve, s)
	}
	s.search()
	fresh := p.placeFresh(reserve, req)
	if s.best != nil && (!fresh.OK() || s.cost <= p.freshCost(fresh.Picks[0], s.part)) {
		return s.take()
	}
	if !fresh.OK() {
		return s.refuse(fresh)
	}
	return p.openFresh(fresh, req)
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

// search finds the GPU of least cost. Only GPUs without exclusion, or with that of the
// request, come into question.
func (s *partSearch) search() {
	of := s.pool.shared.classes[s.part.label(s.part.Exclusion)]
	admitted := make([]sharedClass, 0, len(of))
	for c := range of {
		if s.admitsClass(c) {
			admitted = append(admitted, c)
		}
	}
	// A search looks at a bounded number of states, fewer after a good one, so the order decides.
	slices.SortFunc(admitted, compareClasses)
	for _, c := range admitted {
		s.searchClass(c, of[c])
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

// consider offers one GPU.
func (s *partSearch) consider(g *sharedGPU) {
	if s.obstacle(g) == "" {
		l := s.pool.lossOf(g.class.model, g.class.memory)
		s.offer(g, l.gradient(g.state.room, g.class.memory, s.part)+s.pool.interference.slowdown(s.part, g.state.neighbours()))
	}
}

// offer takes a GPU if it is better than the best one: of less cost, then nearer, then
// tighter, then first by name.
func (s *partSearch) offer(g *sharedGPU, cost int64) {
	if s.best != nil {
		switch d := s.distance(g) - s.distance(s.best); {
		case cost > s.cost || cost == s.cost && d > 0:
			return
		case cost == s.cost && d == 0 && s.compareTight(g, s.best) >= 0:
			return
		}
	}
	s.best, s.cost = g, cost
}

func (s *partSearch) compareTight(a, b *sharedGPU) int {
	left := func(g *sharedGPU) int {
		return int(g.state.compute + permille(g.state.memory, g.class.memory))
	}
	if d := left(a) - left(b); d != 0 {
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

// nearestIn returns the nearest GPU of a state that the rules of the request admit.
func (s *partSearch) nearestIn(gpus *btree.BTree[*sharedGPU], paths Paths) *sharedGPU {
	if s.req.site == nil {
		return s.firstFrom(gpus, "")
	}
	least, nearer := s.req.site.least(paths)
	if nearer != "" {
		if g := s.firstFrom(gpus, nearer); g != nil && g.box.Rack == nearer {
			return g
		}
	}
	var best *sharedGPU
	d := unreachable
	for g := s.firstFrom(gpus, ""); g != nil && d > least; g = s.firstFrom(gpus, g.box.Rack+"\x00") {
		if to := s.distance(g); to < d {
			best, d = g, to
		}
	}
	return best
}

// firstFrom returns the first admitted GPU in a rack, or in a later one.
func (s *partSearch) firstFrom(gpus *btree.BTree[*sharedGPU], rack string) (first *sharedGPU) {
	gpus.AscendGreaterOrEqual(&sharedGPU{box: &Box{Location: Location{Rack: rack}}}, func(g *sharedGPU) bool {
		if s.obstacle(g) == "" {
			first = g
		}
		return first == nil
	})
	return first
}

// Obstacles of a GPU for a part, in words.
const (
	lacksMemory  = "lack the memory"
	lacksCompute = "lack the compute"
	lacksSlot    = "have no slot for another part"
	otherMode    = "are shared in another mode"
	excluded     = "have parts of another exclusion"
	sameAverse   = "have a part with the same anti-affinity"
	unusable     = "are cordoned or have failed"
	otherKind    = "do not meet the constraints"
)

// obstacle returns why a GPU cannot take the part, "" if it can.
func (s *partSearch) obstacle(g *sharedGPU) string {
	switch {
	case !g.usable:
		return unusable
	case !s.admitsGPU(g):
		return otherKind
	case s.part.Share != AnyShare && g.class.share != s.part.Share:
		return otherMode
	case g.exclusion != s.part.label(s.part.Exclusion):
		return excluded
	case s.part.AntiAffinity != "" && slices.Contains(g.averse, s.part.label(s.part.AntiAffinity)):
		return sameAverse
	case g.state.compute < s.part.Compute:
		return lacksCompute
	case g.state.memory < s.part.Memory:
		return lacksMemory
	case len(g.slots) == 0:
		return lacksSlot
	}
	return ""
}

func (s *partSearch) admitsGPU(g *sharedGPU) bool {
	r := s.req
	return (r.Model == "" || g.class.model == r.Model) && g.class.memory >= r.MinMemory && admits(g.class.traits, r) &&
		hasLabels(g.box.Labels, r.Labels) && r.tolerates(g.gpu.Restriction) && !slices.Contains(r.Exclude, g.ref()) &&
		(len(r.Only) == 0 || slices.Contains(r.Only, g.ref()))
}

// take gives the part its place on the best GPU.
func (s *partSearch) take() (d Decision) {
	g := s.best
	s.req.settleAt(Location{g.box.Rack, g.box.Paths})
	left := g.state.less(s.part)
	d.Picks, d.Share = []Ref{{g.box.ID, g.slots[0]}}, g.class.share
	d.say("GPU %s (%s) fits best: %d other parts share it, and %s and %s of the compute stay free.",
		g.ref(), g.class.model, g.parts, bytesText(left.memory), percent(left.compute))
	if lost := s.pool.interference.slowdown(s.part, g.state.neighbours()); lost > 0 {
		d.say("By the measured interference the parts on it lose %s of its compute.", percent(uint32(min(lost/(2*million), Whole))))
	}
	return d
}

// cannotJoin explains why no GPU with the part's affinity takes it.
func (s *partSearch) cannotJoin(joined map[Ref]*sharedGPU) (d Decision) {
	d.say("Parts with affinity %q are on %d GPUs, and the part must join them:", s.part.Affinity, len(joined))
	s.sayObstacles(&d, func(yield func(*sharedGPU)) {
		for _, g := range joined {
			yield(g)
		}
	})
	return d
}

// sayObstacles counts the GPUs of a set by what keeps the part from them.
func (s *partSearch) sayObstacles(d *Decision, all func(yield func(*sharedGPU))) {
	count, n := map[string]int{}, 0
	all(func(g *sharedGPU) {
		n++
		count[s.obstacle(g)]++
	})
	if n == 0 {
		return
	}
	text := ""
	for _, why := range []string{lacksMemory, lacksCompute, lacksSlot, otherMode, excluded, sameAverse, unusable, otherKind} {
		if count[why] > 0 {
			text += fmt.Sprintf(", %d %s", count[why], why)
		}
	}
	d.say("Of %s: %s.", plural(n, "GPU that parts share", "GPUs that parts share"), text[2:])
}

// refuse explains why neither a shared GPU nor a free one takes the part.
func (s *partSearch) refuse(fresh Decision) (d Decision) {
	d.say("The part needs %s of one GPU.", s.part)
	s.sayObstacles(&d, func(yield func(*sharedGPU)) {
		for _, of := range s.pool.shared.boxes {
			for _, g := range of {
				yield(g)
			}
		}
	})
	d.Why = append(d.Why, fresh.Why...)
	return d
}

// placeFresh looks for a free GPU that can be divided, as for a request of one GPU.
func (p *Pool) placeFresh(reserve Reserve, req *Request) Decision {
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
				d.say("GPU %s cannot take the part: such GPUs %s.", r, s.obstacle(o))
			}
			continue
		}
		whole := *s.req
		whole.Only = []Ref{r}
		if why := namedPartObstacle(b, g, &whole); why != "" {
			d.say("GPU %s %s.", r, why)
			continue
		}
		whole.Part, whole.MinMemory = nil, max(s.req.MinMemory, s.part.Memory)
		if one := p.placeNamed(reserve, &whole); one.OK() {
			return p.openFresh(one, s.req)
		} else {
			d.Why = append(d.Why, one.Why...)
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
