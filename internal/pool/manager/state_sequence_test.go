package manager

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A sequence equals a sorted set after any additions and removals.
func TestSequenceIsSorted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, want := newSequence(compareLeaseIDs), map[string]bool{}
		drawID := func() string { return fmt.Sprintf("l-%d", rapid.IntRange(1, 120).Draw(t, "id")) }
		next := 200
		t.Repeat(map[string]func(*rapid.T){
			"add": func(*rapid.T) {
				id := drawID()
				s.add(id)
				want[id] = true
			},
			"append": func(*rapid.T) {
				next++
				id := fmt.Sprintf("l-%d", next)
				s.add(id)
				want[id] = true
			},
			"remove": func(*rapid.T) {
				id := drawID()
				s.remove(id)
				delete(want, id)
			},
			"clear": func(*rapid.T) {
				for id := range want {
					s.remove(id)
				}
				clear(want)
			},
			"": func(t *rapid.T) {
				if rapid.Bool().Draw(t, "look") {
					all := slices.SortedFunc(maps.Keys(want), compareLeaseIDs)
					if got := slices.Collect(s.from("")); !slices.Equal(got, all) {
						t.Fatalf("got %v, want %v", got, all)
					}
					from := drawID()
					at, _ := slices.BinarySearchFunc(all, from, compareLeaseIDs)
					if got := slices.Collect(s.from(from)); !slices.Equal(got, all[at:]) {
						t.Fatalf("from %s: got %v, want %v", from, got, all[at:])
					}
				}
			},
		})
	})
}
