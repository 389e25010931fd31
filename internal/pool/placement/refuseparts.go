package placement

// refuseParts explains why the parts have no place.
func (s *partsSearch) refuseParts() (d Decision) {
	where := ""
	if s.req.SameBox == Required {
		where = " of one box"
	}
	if n := len(s.req.Together); n > 0 {
		where += byNumber(n, ", other than that of the lease", ", other than those of the lease")
	}
	d.say("The request needs %s on each of %s%s.", s.part, plural(s.req.Count, "GPU", "GPUs"), where)
	one := *s.req
	one.Count, one.Together = 1, nil
	for _, r := range s.req.Only {
		one.Only = []Ref{r}
		if next := s.pool.placePart(s.reserve, &one); !next.OK() {
			d.Why = append(d.Why, next.Why...)
		}
	}
	if len(s.req.Only) > 0 {
		return d
	}
	if boxes := s.roomy(1); len(boxes) <= maxExplained {
		s.sayRoom(&d, boxes)
	}
	s.sayObstacles(&d, s.pool.shared.all)
	if fresh := s.pool.placeFresh(s.reserve, &one); !fresh.OK() {
		d.Why = append(d.Why, fresh.Why...)
	}
	return d
}

// sayRoom says on how many GPUs of some boxes there is room for a part.
func (s *partsSearch) sayRoom(d *Decision, boxes []boxRoom) {
	most, all := 0, 0
	for _, r := range boxes {
		n := 0
		for _, model := range modelsIn(r.box) {
			for _, mode := range s.part.modes() {
				n = max(n, len(s.placesIn(r.box, model, mode)))
			}
		}
		most, all = max(most, n), all+n
	}
	d.say("%s room for one, at most %d of them in one box.", plural(all, "GPU has", "GPUs have"), most)
}
