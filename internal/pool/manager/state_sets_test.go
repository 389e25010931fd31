package manager

import (
	"cmp"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// TestSortedSlices checks the sorted slices against sets.
func TestSortedSlices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var s, want []int
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			v := rapid.IntRange(0, 20).Draw(t, "value")
			switch at, there := slices.BinarySearch(want, v); {
			case rapid.Bool().Draw(t, "remove"):
				s = removeSorted(s, v, cmp.Compare[int])
				if there {
					want = slices.Delete(want, at, at+1)
				}
			case !there:
				s, want = insertSorted(s, v, cmp.Compare[int]), slices.Insert(want, at, v)
			}
			if !slices.Equal(s, want) {
				t.Fatalf("%v, want %v", s, want)
			}
		}
	})
}
