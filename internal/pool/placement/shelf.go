package placement

import (
	"iter"
	"math"
)

// shelf is an ordered set of groups that differ in nothing that a request can
// ask for but their size: by number of free GPUs, then by room of the proxy,
// then by name.
type shelf struct {
	tree tree[*group]
}

func shelfKey(g *group) key {
	return key{major: len(g.slots), minor: g.room, name: g.box, sub: g.domain}
}

func (s *shelf) add(g *group)    { s.tree.put(shelfKey(g), g) }
func (s *shelf) remove(g *group) { s.tree.remove(shelfKey(g)) }

// fits returns the first group for n GPUs in the order of compareFit that is not
// to be skipped. It takes a few descents for each size there is of n and more.
func (s *shelf) fits(n int, skip func(*group) bool) *group {
	for e := s.tree.from(key{major: n, minor: n}); e != nil; {
		switch {
		case e.key.minor < n: // its proxy has no room for n
			e = s.tree.from(key{major: e.key.major, minor: n})
		case skip(e.value):
			e = s.tree.after(e.key)
		default:
			return e.value
		}
	}
	for e := s.tree.from(key{major: n}); e != nil; e = s.tree.from(key{major: e.key.major + 1}) {
		for g := range s.level(e.key.major, 0, n) {
			if !skip(g) {
				return g
			}
		}
	}
	return nil
}

// largest returns the first group in the order of compareSize that is not to be
// skipped.
func (s *shelf) largest(skip func(*group) bool) *group {
	for g := range s.descending(0, math.MaxInt) {
		if !skip(g) {
			return g
		}
	}
	return nil
}

// emptiest appends the first n groups in the order of compareSpread that are not
// to be skipped.
func (s *shelf) emptiest(to []*group, n int, skip func(*group) bool) []*group {
	end := len(to) + n
	for _, room := range [][2]int{{1, math.MaxInt}, {0, 1}} {
		for g := range s.descending(room[0], room[1]) {
			if len(to) == end {
				return to
			}
			if !skip(g) {
				to = append(to, g)
			}
		}
	}
	return to
}

// descending yields the groups with room from low to less than high, the
// largest first, then those with most room, then by name.
func (s *shelf) descending(low, high int) iter.Seq[*group] {
	return func(yield func(*group) bool) {
		for e := s.tree.before(key{major: math.MaxInt}); e != nil; e = s.tree.before(key{major: e.key.major}) {
			for g := range s.level(e.key.major, low, high) {
				if !yield(g) {
					return
				}
			}
		}
	}
}

// level yields the groups of one size with room from low to less than high, those
// with most room first, then by name.
func (s *shelf) level(size, low, high int) iter.Seq[*group] {
	return func(yield func(*group) bool) {
		cell := key{major: size, minor: high}
		for {
			last := s.tree.before(cell)
			if last == nil || last.key.major != size || last.key.minor < low {
				return
			}
			cell.minor = last.key.minor
			for e := s.tree.from(cell); e != nil && e.key.major == size && e.key.minor == cell.minor; e = s.tree.after(e.key) {
				if !yield(e.value) {
					return
				}
			}
		}
	}
}
