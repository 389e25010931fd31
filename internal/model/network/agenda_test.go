package network

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Events of many lines leave by time, and by their order of arrival at equal times.
func TestAgenda(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var a agenda
	lines := make([]line, 20)
	last := make([]time.Duration, len(lines))
	var now time.Duration
	var order uint64
	pushed, popped := 0, 0
	for pushed < 50_000 || popped < pushed {
		if pushed < 50_000 && rng.IntN(2) == 0 {
			i := rng.IntN(len(lines))
			last[i] = max(last[i], now) + time.Duration(rng.IntN(5))
			a.push(&lines[i], last[i], packet{bytes: int32(pushed)})
			pushed++
			continue
		}
		e, ok := a.pop(now + 1000)
		if !ok {
			if popped < pushed && pushed == 50_000 {
				t.Fatalf("%d of %d events came out", popped, pushed)
			}
			continue
		}
		if e.at < now || e.at == now && e.order < order && popped > 0 {
			t.Fatalf("event %d at %v after %d at %v", e.order, e.at, order, now)
		}
		now, order = e.at, e.order
		popped++
	}
	if _, ok := a.pop(1 << 62); ok {
		t.Error("an event too many")
	}
}
