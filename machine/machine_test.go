package machine_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

func TestAfterSaturates(t *testing.T) {
	for _, c := range []struct{ now, d, want time.Duration }{
		{0, 0, 0},
		{1, 2, 3},
		{machine.Never - 1, 1, machine.Never},
		{machine.Never - 1, 2, machine.Never},
		{machine.Never, machine.Never, machine.Never},
		{0, machine.Never, machine.Never},
	} {
		if got := machine.After(c.now, c.d); got != c.want {
			t.Errorf("After(%d, %d) = %d, want %d", c.now, c.d, got, c.want)
		}
	}
}

func TestQueueOrdersByTimeThenInsertion(t *testing.T) {
	type event struct {
		at time.Duration
		id int
	}
	rng := rand.New(rand.NewPCG(1, 1))
	var q machine.Queue[event]
	var want []event
	pop := func(now time.Duration) {
		due := 0
		for due < len(want) && want[due].at <= now {
			due++
		}
		for _, w := range want[:due] {
			if at := q.Wake(); at != w.at {
				t.Fatalf("Wake() = %v, want %v", at, w.at)
			}
			if got, ok := q.Pop(now); !ok || got != w {
				t.Fatalf("Pop(%v) = %v, %v, want %v", now, got, ok, w)
			}
		}
		want = want[due:]
		if got, ok := q.Pop(now); ok {
			t.Fatalf("Pop(%v) = %v, which is not due", now, got)
		}
	}
	for id := range 2000 {
		e := event{time.Duration(rng.IntN(200)), id}
		q.Push(e.at, e)
		want = append(want, e)
		slices.SortStableFunc(want, func(a, b event) int { return int(a.at - b.at) })
		if q.Len() != len(want) {
			t.Fatalf("Len() = %d, want %d", q.Len(), len(want))
		}
		if id%50 == 49 {
			pop(time.Duration(rng.IntN(150)))
		}
	}
	pop(machine.Never)
	if q.Len() != 0 || q.Wake() != machine.Never {
		t.Errorf("Len() = %d, Wake() = %v of an empty queue", q.Len(), q.Wake())
	}
}

func TestQueueDoesNotAllocate(t *testing.T) {
	var q machine.Queue[[4]uint64]
	for i := range 64 {
		q.Push(time.Duration(i), [4]uint64{})
	}
	if n := testing.AllocsPerRun(100, func() {
		q.Push(q.Wake()+7, [4]uint64{})
		q.Pop(machine.Never)
	}); n != 0 {
		t.Errorf("%v allocations for Push and Pop, want 0", n)
	}
}
