package manager

import (
	"iter"
	"slices"
)

// sequence is a set of IDs in order. Adding an ID after all others and removing
// any ID cost next to nothing. The next look-up sorts in the IDs that were
// added between others, in a time linear in the size of the set.
type sequence struct {
	compare  func(a, b string) int
	ids      []string // in order, without those in unsorted; some may no longer be in the set
	unsorted []string // added since the last look-up
	set      map[string]struct{}
}

func newSequence(compare func(a, b string) int) sequence {
	return sequence{compare: compare, set: map[string]struct{}{}}
}

func (s *sequence) add(id string) {
	if _, ok := s.set[id]; !ok {
		s.set[id] = struct{}{}
		s.unsorted = append(s.unsorted, id)
	}
}

func (s *sequence) remove(id string) {
	delete(s.set, id)
	if len(s.ids) > 2*len(s.set)+64 {
		s.ids = slices.DeleteFunc(s.ids, func(id string) bool { return !s.has(id) })
	}
}

func (s *sequence) has(id string) bool {
	_, ok := s.set[id]
	return ok
}

// from returns the IDs from an ID on, which need not be in the set; "": from
// the first. The caller must not change the sequence meanwhile.
func (s *sequence) from(id string) iter.Seq[string] {
	s.sort()
	at := 0
	if id != "" {
		at, _ = slices.BinarySearchFunc(s.ids, id, s.compare)
	}
	return func(yield func(string) bool) {
		for _, id := range s.ids[at:] {
			if s.has(id) && !yield(id) {
				return
			}
		}
	}
}

// sort merges the unsorted IDs.
func (s *sequence) sort() {
	fresh := slices.DeleteFunc(s.unsorted, func(id string) bool { return !s.has(id) })
	s.unsorted = nil
	if len(fresh) == 0 {
		return
	}
	slices.SortFunc(fresh, s.compare)
	fresh = slices.Compact(fresh) // an ID may have been removed and added again
	old := s.ids
	if len(old) == 0 || s.compare(old[len(old)-1], fresh[0]) < 0 {
		s.ids = append(old, fresh...)
		return
	}
	s.ids = make([]string, 0, len(s.set))
	for _, id := range fresh {
		for len(old) > 0 && s.compare(old[0], id) < 0 {
			s.ids = append(s.ids, old[0])
			old = old[1:]
		}
		if len(old) > 0 && old[0] == id { // the ID was removed and added again
			old = old[1:]
		}
		s.ids = append(s.ids, id)
	}
	s.ids = append(s.ids, old...)
}
