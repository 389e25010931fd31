package placement

import (
	"cmp"
	"slices"

	"github.com/dxpu-project/dxpu/internal/plural"
)

// A request for several parts gets them on different GPUs of one model, shared in one mode:
// in one box, or over several boxes if no box has room for all and the request allows it.
// The box is the one to which a part alone would go. If it lacks room for the others, of the
// boxes with room the nearest one wins, then the one whose GPUs the parts fragment least.

// maxFirst bounds the boxes that are tried before all boxes are compared.
const maxFirst = 8

// partsSearch looks for a place for several parts.
type partsSearch struct {
	*partSearch
	reserve Reserve
}

// partPlace is a GPU that can take a part.
type partPlace struct {
	gpu    *GPU
	shared *sharedGPU // nil: the GPU is free
	cost   int64
}

// partsChoice is a place for several parts in one box.
type partsChoice struct {
	box      *Box
	places   []partPlace
	share    ShareMode
	cost     int64
	distance distance
	others   int // GPUs with room that are not taken
}

// placeParts decides on a request for several parts, or for one beside others of its lease.
func (p *Pool) placeParts(reserve Reserve, req *Request) (d Decision) {
	switch {
	case req.Count < 1:
		d.say("The request asks for no parts.")
		return d
	case req.Box != "" && !req.Several:
		d.say("The sharing agent of the host gives each lease one GPU: upgrade it for leases of several.")
		return d
	case req.Part.Affinity != "":
		d.say("Parts with an affinity are on one GPU, and those of a lease are on different ones.")
		return d
	}
	req = p.excludeGPUs(req)
	req.Exclude = append(req.Exclude, req.Together...)
	s := &partsSearch{partSearch: &partSearch{pool: p, req: req, part: req.Part}, reserve: reserve}
	if req.SameBox != Avoided {
		for _, choose := range []func() *partsChoice{s.besideLease, s.aroundOne, s.bestBox} {
			if best := choose(); best != nil {
				return s.takeBox(best)
			}
		}
	}
	if req.SameBox != Required {
		if d = s.split(); d.OK() {
			return d
		}
	}
	return s.refuseParts()
}

// boxRoom is a box and an upper bound of its GPUs that may take a part.
type boxRoom struct {
	box *Box
	n   int
}

// roomy returns the boxes in which n GPUs at least may take a part. It looks at the room of each
// GPU alone, or at those that the request names.
func (s *partsSearch) roomy(n int) (out []boxRoom) {
	if len(s.req.Only) > 0 {
		for _, id := range boxesOf(s.req.Only) {
			if b := s.pool.boxes[id]; b != nil && len(b.GPUs) >= n {
				out = append(out, boxRoom{&b.Box, len(b.GPUs)})
			}
		}
		return out
	}
	var counts []int // by the number of the box: there are many, and few have enough room
	add := func(box uint32, more int) {
		for int(box) >= len(counts) {
			counts = append(counts, 0)
		}
		counts[box] += more
	}
	take := func(box uint32, at func() *Box) {
		if counts[box] >= n {
			out = append(out, boxRoom{at(), counts[box]})
			counts[box] = 0
		}
	}
	var admitted []*plane
	for _, of := range s.admitted() {
		admitted = append(admitted, of)
	}
	for _, of := range admitted {
		for i := range of.table.rows {
			if r := &of.table.rows[i]; s.mayTake(r) {
				add(r.box, 1)
			}
		}
	}
	free := s.freeBoxes()
	for _, in := range free {
		add(in.number, in.free)
	}
	for _, of := range admitted {
		for i := range of.table.rows {
			if r := &of.table.rows[i]; s.mayTake(r) {
				take(r.box, func() *Box { return r.gpu.box })
			}
		}
	}
	for _, in := range free {
		take(in.number, func() *Box { return &s.pool.boxes[in.groups[0].box].Box })
	}
	return out
}

// mayTake reports whether a GPU that parts share has the room for another one.
func (s *partsSearch) mayTake(r *tableRow) bool {
	return r.compute >= s.part.Compute && r.memory >= s.part.Memory && r.gpu != nil
}

// freeBoxes returns the boxes with free GPUs that can be divided.
func (s *partsSearch) freeBoxes() (out []*viewBox) {
	fresh := s.freshRequest()
	for name, m := range s.pool.models {
		v := m.view(fresh, s.pool.decisions)
		if v == nil || s.req.Model != "" && s.req.Model != name {
			continue
		}
		for _, in := range v.numbered {
			if in != nil && in.free > 0 && admits(in.traits, s.req) {
				out = append(out, in)
			}
		}
	}
	return out
}

// freshRequest returns the request for free GPUs that can be divided.
func (s *partsSearch) freshRequest() *Request {
	fresh := *s.req
	fresh.MinMemory = max(fresh.MinMemory, s.part.Memory)
	return &fresh
}

// besideLease returns the best choice in a box where the lease has parts already, nil if there
// is none.
func (s *partsSearch) besideLease() *partsChoice {
	var boxes []boxRoom
	for _, id := range boxesOf(s.req.Together) {
		if b := s.pool.boxes[id]; b != nil {
			boxes = append(boxes, boxRoom{&b.Box, len(b.GPUs)})
		}
	}
	return s.bestOf(boxes)
}

// mustJoin reports whether the parts are only for boxes where the lease has some already.
func (s *partsSearch) mustJoin() bool { return s.req.SameBox == Required && len(s.req.Together) > 0 }

// aroundOne returns the choice in the box to which a part alone would go, or in the next one
// if that lacks room for the others. It looks at few boxes, without the index of all.
func (s *partsSearch) aroundOne() *partsChoice {
	if s.mustJoin() || len(s.req.Only) > 0 {
		return nil
	}
	one := *s.req
	one.Count, one.Together, one.Exclude = 1, nil, slices.Clone(s.req.Exclude)
	for range maxFirst {
		try := one
		d := s.pool.placePart(s.reserve, &try)
		if !d.OK() {
			return nil
		}
		b := &s.pool.boxes[d.Picks[0].Box].Box
		if c := (&partsChoice{box: b}); s.inBox(c, s.req.Count) {
			return c
		}
		for i := range b.GPUs {
			one.Exclude = append(one.Exclude, Ref{b.ID, b.GPUs[i].Slot})
		}
	}
	return nil
}

// bestBox returns the best choice in one box of all, nil if there is none.
func (s *partsSearch) bestBox() *partsChoice {
	if s.mustJoin() {
		return nil
	}
	return s.bestOf(s.roomy(s.req.Count))
}

// bestOf returns the best choice in one of some boxes, nil if there is none.
func (s *partsSearch) bestOf(of []boxRoom) (best *partsChoice) {
	var boxes []*partsChoice
	for _, r := range of {
		if !admitsBox(r.box, s.req) {
			continue
		}
		c := &partsChoice{box: r.box, others: r.n - s.req.Count}
		if s.req.site != nil {
			c.distance = s.req.site.distance(Location{r.box.Rack, r.box.Paths})
		}
		boxes = append(boxes, c)
	}
	slices.SortFunc(boxes, compareParts)
	found := 0
	for _, c := range boxes {
		if !s.inBox(c, s.req.Count) {
			continue
		}
		if best == nil || compareParts(c, best) < 0 {
			best = c
		}
		if found++; found == maxFound {
			break
		}
	}
	return best
}

// compareParts puts the better one of two choices first. NVLink boxes come after others of
// the same cost, which keeps them whole.
func compareParts(a, b *partsChoice) int {
	return cmp.Or(
		cmp.Compare(a.distance, b.distance), cmp.Compare(a.cost, b.cost),
		cmp.Compare(rank(a.box.Kind != NVLink), rank(b.box.Kind != NVLink)), cmp.Compare(a.others, b.others),
		cmp.Compare(a.box.Rack, b.box.Rack), cmp.Compare(a.box.ID, b.box.ID))
}

// inBox completes a choice with the n GPUs of its box that cost least, of one model and in
// one mode. It reports whether the box has them. The GPUs that a request names may be of
// several models.
func (s *partsSearch) inBox(c *partsChoice, n int) bool {
	for _, model := range modelsIn(c.box) {
		s.inModel(c, n, model)
	}
	if c.places == nil && len(s.req.Only) > 0 {
		s.inModel(c, n, "")
	}
	return c.places != nil
}

// inModel completes a choice with GPUs of a model, or of any, if they cost less than those
// that it has.
func (s *partsSearch) inModel(c *partsChoice, n int, model string) {
	for _, mode := range s.part.modes() {
		all := s.placesIn(c.box, model, mode)
		places := s.withinReserve(slices.Clone(all))
		if len(places) >= n && s.tooLarge(places[:n]) {
			s.smallestFirst(all)
			places = s.withinReserve(all)
		}
		if len(places) < n || s.tooLarge(places[:n]) {
			continue
		}
		cost := int64(0)
		for _, p := range places[:n] {
			cost += p.cost
		}
		if c.places == nil || cost < c.cost {
			c.places, c.share, c.cost, c.others = places[:n], mode, cost, len(places)-n
		}
	}
}

// tooLarge reports whether the parts have more than their size on some GPUs.
func (s *partsSearch) tooLarge(places []partPlace) bool {
	sum := uint64(0)
	for _, p := range places {
		sum += uint64(s.part.Size(p.gpu.Memory))
	}
	return s.req.MaxSize > 0 && sum > s.req.MaxSize
}

// smallestFirst sorts GPUs by the size that a part has on them, and keeps the order of others.
func (s *partsSearch) smallestFirst(places []partPlace) {
	slices.SortStableFunc(places, func(a, b partPlace) int {
		return cmp.Compare(s.part.Size(a.gpu.Memory), s.part.Size(b.gpu.Memory))
	})
}

// modes returns the modes in which a GPU may be shared for a part.
func (p *Part) modes() []ShareMode {
	if p.Share == AnyShare {
		return []ShareMode{Space, Time, Partition}
	}
	return []ShareMode{p.Share}
}

// placesIn returns the GPUs of a box that can take a part in a mode, those of least cost
// first; of one model, or of any that the request admits.
func (s *partsSearch) placesIn(b *Box, model string, mode ShareMode) (out []partPlace) {
	shared := s.pool.shared.boxes[b.ID]
	for i := range b.GPUs {
		g := &b.GPUs[i]
		if model != "" && g.Model != model {
			continue
		}
		l := s.pool.lossOf(g.Model, g.Memory)
		at := slices.IndexFunc(shared, func(o *sharedGPU) bool { return o.gpu.Slot == g.Slot })
		switch {
		case at >= 0:
			o := shared[at]
			if o.class.share == mode && s.lacks(o) == 0 {
				out = append(out, partPlace{g, o, l.gradient(o.state.room, g.Memory, s.part) + s.pool.interference.slowdown(s.part, o.beside)})
			}
		case g.Free && g.Usable && g.Modes.has(mode) && g.Memory >= s.part.Memory && s.admitsFresh(b, g):
			out = append(out, partPlace{g, nil, l.gradient(room{g.Memory, Whole}, g.Memory, s.part)})
		}
	}
	slices.SortStableFunc(out, func(a, b partPlace) int {
		return cmp.Or(cmp.Compare(a.cost, b.cost), cmp.Compare(rank(a.shared != nil), rank(b.shared != nil)))
	})
	return out
}

// admitsFresh reports whether the request may have a part of a free GPU.
func (s *partsSearch) admitsFresh(b *Box, g *GPU) bool {
	return whyNotNamed(b, g, s.req) == "" && !slices.Contains(s.req.Exclude, Ref{b.ID, g.Slot}) &&
		(len(s.req.Only) == 0 || slices.Contains(s.req.Only, Ref{b.ID, g.Slot}))
}

// withinReserve leaves out the free GPUs that are held back as spares.
func (s *partsSearch) withinReserve(places []partPlace) []partPlace {
	opened := map[string]int{}
	return slices.DeleteFunc(places, func(p partPlace) bool {
		if p.shared != nil || p.gpu.Restriction.local() {
			return false
		}
		opened[p.gpu.Model]++
		return opened[p.gpu.Model] > s.toOpen(p.gpu.Model)
	})
}

// toOpen returns how many free GPUs of a model the request may take.
func (s *partsSearch) toOpen(model string) int {
	m := s.pool.model(model).total()
	if s.req.UseSpares {
		return m.free
	}
	return m.common().free - m.held(s.reserve)
}

// takeBox gives the parts their places in one box, in the order of the GPUs.
func (s *partsSearch) takeBox(c *partsChoice) (d Decision) {
	s.req.settleAt(Location{c.box.Rack, c.box.Paths})
	d.Share = c.share
	slices.SortFunc(c.places, func(a, b partPlace) int { return cmp.Compare(a.gpu.Slot, b.gpu.Slot) })
	shared := 0
	for _, p := range c.places {
		slot := uint32(0)
		if p.shared != nil {
			shared++
			slot = p.shared.slots[0]
		} else {
			slot = freePartSlots(c.box, p.gpu.Slot)[0]
		}
		d.Picks = append(d.Picks, Ref{c.box.ID, slot})
	}
	n := len(c.places)
	d.say("Box %s (%s) fits best: %s a part each, and %d of %s parts of others.",
		c.box.ID, c.box.Kind, plural.Count(n, "GPU gets", "GPUs get"), shared, byNumber(n, "it has", "them have"))
	return d
}

// byNumber returns the words for one, or for several.
func byNumber(n int, one, several string) string {
	if n == 1 {
		return one
	}
	return several
}

// boxesOf returns the boxes of some GPUs, each once.
func boxesOf(refs []Ref) (out []string) {
	for _, r := range refs {
		if !slices.Contains(out, r.Box) {
			out = append(out, r.Box)
		}
	}
	return out
}

// gpuOfSlot returns the GPU of a slot for parts.
func (p *Pool) gpuOfSlot(r Ref) Ref {
	b := p.boxes[r.Box]
	at := slices.IndexFunc(b.Parts, func(s PartSlot) bool { return s.Slot == r.Slot })
	return Ref{r.Box, b.Parts[at].GPU}
}
