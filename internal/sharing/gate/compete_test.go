package gate_test

import (
	"testing"
	"time"
)

// Two shares that want more than their limits have them, whatever the length of their kernels: the
// waits for kernels of the other one are no use of the GPU.
func TestSharesThatCompete(t *testing.T) {
	for _, kernels := range [][2]time.Duration{
		{7 * time.Millisecond, 7 * time.Millisecond}, {7 * time.Millisecond, time.Millisecond}, {500 * time.Microsecond, 2 * time.Millisecond},
	} {
		w := newWorld(t, "gaiapi")
		var programs []*program
		for i, kernel := range kernels {
			p := &program{id: 100, client: 1, kernel: kernel}
			if i > 0 {
				p.id, p.client = 101, 2
			}
			w.join(p.client, percent(30))
			w.add(p)
			programs = append(programs, p)
		}
		w.run(10 * time.Second)
		before := [...]time.Duration{programs[0].ran, programs[1].ran}
		w.run(20 * time.Second)
		for i, p := range programs {
			if got := (p.ran - before[i]).Seconds() * 10; got < 30*0.97 || got > 30*1.03 {
				t.Errorf("kernels of %v beside others of %v: %.2f %% of the GPU, want 30 %% within 3 %%", p.kernel, kernels[1-i], got)
			}
		}
	}
}
