package rootcomplex

import (
	"testing"

	"pgregory.net/rapid"
)

// A queue gives back what was pushed, in order, however pushes and pops alternate.
func TestQueueKeepsOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var q queue[int]
		var want []int
		for i, push := range rapid.SliceOfN(rapid.Bool(), 0, 200).Draw(t, "push") {
			if push {
				*q.push() = i
				want = append(want, i)
			} else if !q.empty() {
				if got := *q.front(); got != want[0] {
					t.Fatalf("%d comes out, want %d", got, want[0])
				}
				q.pop()
				want = want[1:]
			}
			if len(q.list()) != len(want) || q.empty() != (len(want) == 0) {
				t.Fatalf("%d in the queue, want %d", len(q.list()), len(want))
			}
		}
	})
}

// Neither a queue that empties now and then nor one that never does allocates.
func TestQueueKeepsItsMemory(t *testing.T) {
	for _, depth := range []int{1, 7, 256} {
		var q queue[[16]uint64]
		for range depth {
			q.push()
		}
		turn := func() {
			for range 1000 {
				q.push()
				q.pop()
			}
		}
		turn()
		if n := testing.AllocsPerRun(10, turn); n != 0 {
			t.Errorf("%v allocations for 1000 items with %d waiting", n, depth)
		}
	}
}
