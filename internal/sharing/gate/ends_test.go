package gate_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/gate"
)

// A program that stands still with a launch in flight, as under a debugger, tells the end late, and
// truly how long the launch ran. It is not charged for the time in which it stood.
func TestProgramThatStoodStill(t *testing.T) {
	w := newWorld(t, "gaiapi")
	w.join(1, percent(30))
	if err := w.g.Enter(0, 1, 100); err != nil {
		t.Fatal(err)
	}
	pass := func(until time.Duration) {
		for w.now < until {
			w.g.Transmit(w.now, nil)
			w.now = min(max(w.g.Wake(), w.now+1), until)
		}
	}
	for id := range uint64(200) {
		from := w.now
		w.g.Launch(w.now, 100, gate.Launch{ID: id, Blocks: 1000, Threads: 256, Kernels: 1, Function: 1})
		for len(w.g.Transmit(w.now, nil)) == 0 {
			w.now = max(w.g.Wake(), w.now+1)
		}
		if waited := w.now - from; waited > time.Second {
			t.Fatalf("launch %d waited for %v", id, waited)
		}
		late := time.Duration(0)
		if id == 100 {
			late = 20 * time.Second
		}
		pass(w.now + time.Millisecond + late)
		w.g.Done(w.now, 100, id, time.Millisecond)
		pass(w.now + 9*time.Millisecond)
	}
}
