package placement

import (
	"maps"
	"slices"

	"github.com/dxpu-project/dxpu/internal/plural"
)

// refuseParts explains why the parts have no place.
func (s *partsSearch) refuseParts() (d Decision) {
	where := ""
	if s.req.SameBox == Required {
		where = " of one box"
	}
	if n := len(s.req.Together); n > 0 {
		where += byNumber(n, ", other than that of the lease", ", other than those of the lease")
	}
	d.say("The request needs %s on each of %s%s.", s.part, plural.Count(s.req.Count, "GPU", "GPUs"), where)
	one := *s.req
	one.Count, one.Together = 1, nil
	for _, r := range s.req.Only {
		one.Only = []Ref{r}
		if next := s.pool.placePart(s.reserve, &one); !next.OK() {
			d.Why, d.Kept = append(d.Why, next.Why...), append(d.Kept, next.Kept...)
		}
	}
	if len(s.req.Only) > 0 {
		s.saySpares(&d)
		return d
	}
	if s.req.Brief {
		return d
	}
	if boxes := s.roomy(1); len(boxes) <= maxExplained {
		s.sayRoom(&d, boxes)
	}
	s.sayObstacles(&d, s.pool.shared.all)
	if fresh := s.pool.placeFresh(s.reserve, &one); !fresh.OK() {
		d.Why, d.Kept = append(d.Why, fresh.Why...), append(d.Kept, fresh.Kept...)
	} else {
		s.saySpares(&d)
	}
	return d
}

// sayRoom says on how many GPUs of some boxes there is room for a part, and on how many of one
// model that are shared in one mode, which the parts of a lease need.
func (s *partsSearch) sayRoom(d *Decision, boxes []boxRoom) {
	type kind struct {
		model string
		mode  ShareMode
	}
	all, inBox, alikeInBox, alike := 0, 0, 0, map[kind]int{}
	for _, r := range boxes {
		gpus := map[uint32]bool{}
		for _, model := range modelsIn(r.box) {
			for _, mode := range s.part.modes() {
				places := s.placesIn(r.box, model, mode)
				for _, p := range places {
					gpus[p.gpu.Slot] = true
				}
				alike[kind{model, mode}] += len(places)
				alikeInBox = max(alikeInBox, len(places))
			}
		}
		all, inBox = all+len(gpus), max(inBox, len(gpus))
	}
	d.say("%s room for one, at most %d of them in one box.", plural.Count(all, "GPU has", "GPUs have"), inBox)
	most := 0
	for _, n := range alike {
		most = max(most, n)
	}
	if most < all || alikeInBox < inBox {
		d.say("At most %d of them are of one model and can be shared in one mode, %d in one box.", most, alikeInBox)
	}
}

// saySpares says how many free GPUs of each model are held back from the parts.
func (s *partsSearch) saySpares(d *Decision) {
	for _, name := range slices.Sorted(maps.Keys(s.pool.models)) {
		m := s.pool.model(name).total()
		held := m.held(s.reserve)
		asked := (s.req.Model == "" || s.req.Model == name) && (len(s.req.Only) == 0 || len(s.namedFree(name)) > 0)
		if s.req.UseSpares || held == 0 || !asked {
			continue
		}
		said := len(d.Why)
		if d.sayFree(&m, s.req, held); slices.Contains(d.Why[:said], d.Why[said]) {
			d.Why = slices.Delete(d.Why, said, said+1)
		}
	}
}
