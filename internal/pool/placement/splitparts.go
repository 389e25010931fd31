package placement

import (
	"maps"
	"slices"

	"github.com/dxpu-project/dxpu/internal/plural"
)

// split places the parts one by one. It stays in the boxes that it has begun with, as long
// as they have room; a request to spread goes to other boxes first.
func (s *partsSearch) split() (d Decision) {
	models := []string{s.req.Model}
	if s.req.Model == "" && len(s.req.Only) == 0 {
		models = slices.Sorted(maps.Keys(s.pool.models))
	}
	for _, model := range models {
		for _, mode := range s.part.modes() {
			if d = s.oneByOne(model, mode, []uint64{s.req.MinMemory}); d.OK() {
				return d
			}
			if s.req.MaxSize == 0 {
				continue
			}
			if d = s.oneByOne(model, mode, s.memoriesOf(model)); d.OK() {
				return d
			}
		}
	}
	return Decision{}
}

// memoriesOf returns the sizes of the GPUs of a model, or of those that the request names, the
// largest first.
func (s *partsSearch) memoriesOf(model string) (out []uint64) {
	if m := s.pool.models[model]; m != nil {
		for _, has := range m.memories {
			out = append(out, max(has.size, s.req.MinMemory))
		}
	}
	for _, r := range s.req.Only {
		if _, g := s.pool.find(r); g != nil {
			out = append(out, max(g.Memory, s.req.MinMemory))
		}
	}
	slices.Sort(out)
	out = slices.Compact(out)
	slices.Reverse(out)
	return out
}

// oneByOne places the parts on GPUs of a model, in a mode: on those with the first one of some
// sizes of memory as long as there are any, and then on those with the next one.
func (s *partsSearch) oneByOne(model string, mode ShareMode, memories []uint64) (d Decision) {
	part := *s.part
	part.Share = mode
	one := *s.req
	one.Count, one.Model, one.Part, one.Together, one.SameBox = 1, model, &part, nil, Indifferent
	one.Exclude = slices.Clone(s.req.Exclude)
	opened, size := map[string]int{}, uint64(0)
	for len(d.Picks) < s.req.Count {
		if len(memories) == 0 {
			return Decision{}
		}
		one.MinMemory, one.noFresh = memories[0], model != "" && opened[model] >= s.toOpen(model)
		next := s.nextOf(&one, d.Picks)
		if !next.OK() {
			memories = memories[1:]
			continue
		}
		gpu := s.pool.gpuOfSlot(next.Picks[0])
		_, g := s.pool.find(gpu)
		if size += uint64(part.Size(g.Memory)); one.MaxSize > 0 && size > one.MaxSize {
			return Decision{}
		}
		if g.Free && !g.Restriction.local() {
			if opened[g.Model]++; opened[g.Model] >= s.toOpen(g.Model) {
				one.Exclude = append(one.Exclude, s.namedFree(g.Model)...)
			}
		}
		d.Picks, d.Share, one.Exclude = append(d.Picks, next.Picks[0]), next.Share, append(one.Exclude, gpu)
		one.settleAt(s.pool.boxes[gpu.Box].Location)
	}
	boxes := boxesOf(d.Picks)
	if s.req.SameBox == Avoided {
		d.say("Spread over %s, as asked: each of %d GPUs gets a part.", plural.Count(len(boxes), "box", "boxes"), s.req.Count)
		return d
	}
	d.say("No single box has room for a part on each of %d GPUs: the request is split over %d boxes.", s.req.Count, len(boxes))
	return d
}

// namedFree returns the free GPUs of a model that the request names and that may be spares.
func (s *partsSearch) namedFree(model string) (out []Ref) {
	for _, r := range s.req.Only {
		if _, g := s.pool.find(r); g != nil && g.Model == model && g.Free && !g.Restriction.local() {
			out = append(out, r)
		}
	}
	return out
}

// nextOf places one more part.
func (s *partsSearch) nextOf(one *Request, have []Ref) Decision {
	used := boxesOf(slices.Concat(have, s.req.Together))
	try := *one
	if s.req.SameBox == Avoided {
		for _, id := range used {
			for i := range s.pool.boxes[id].GPUs {
				try.Exclude = append(try.Exclude, Ref{id, s.pool.boxes[id].GPUs[i].Slot})
			}
		}
		if d := s.pool.placePart(s.reserve, &try); d.OK() {
			return d
		}
		return s.pool.placePart(s.reserve, one)
	}
	for _, id := range used {
		x := partsSearch{partSearch: &partSearch{pool: s.pool, req: &try, part: try.Part}, reserve: s.reserve}
		c := &partsChoice{box: &s.pool.boxes[id].Box}
		if x.inBox(c, 1) && (c.places[0].shared != nil || !one.noFresh) {
			return x.takeBox(c)
		}
	}
	return s.pool.placePart(s.reserve, one)
}
