package network

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// Events leave by time, and by their order of arrival at equal times, as they leave a heap:
// in the present era, in the next ones, and long after an era without events.
func TestAgenda(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	a := newAgenda()
	var want machine.Queue[int32]
	var now time.Duration
	ahead := []int{1, 5, 5, 100, era, 3 * era, 1000 * era}
	for n := range int32(200_000) {
		if n < 100_000 && rng.IntN(2) == 0 {
			at := now + time.Duration(rng.IntN(ahead[rng.IntN(len(ahead))]))
			a.push(at, &packet{bytes: n})
			want.Push(at, n)
			continue
		}
		limit := now + time.Duration(rng.IntN(2*era))
		if n >= 100_000 {
			limit = machine.Never
		}
		e, ok := a.pop(limit)
		if first := want.Wake(); ok != (first < limit) || ok && e.at != first {
			t.Fatalf("event at %v, %v before %v; want one at %v", e.at, ok, limit, first)
		}
		if !ok {
			// As the simulation does after a rare event: now is that of the limit.
			now = limit
			if limit == machine.Never {
				break
			}
			continue
		}
		now = e.at
		if number, _ := want.Pop(now); number != e.bytes {
			t.Fatalf("event %d at %v, want %d", e.bytes, now, number)
		}
	}
	if want.Len() > 0 || len(a.unused) != len(a.chunks) {
		t.Errorf("%d events left, %d of %d chunks free", want.Len(), len(a.unused), len(a.chunks))
	}
}
