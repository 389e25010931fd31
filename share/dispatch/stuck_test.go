package dispatch_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// A launch that only waits for others is not stuck, however long.
func TestStarvedLaunchIsKept(t *testing.T) {
	flood := &program{id: 1, spec: percent(0), kernel: 20 * time.Millisecond, part: 5 * time.Millisecond}
	starved := &program{id: 2, spec: percent(0), kernel: time.Minute, part: 5 * time.Millisecond}
	starved.spec.Class = share.Offline
	w := newWorld(t, "streams", flood, starved)
	w.run(3 * time.Minute)
	if len(w.evicted) > 0 {
		t.Fatalf("evicted %v", w.evicted)
	}
	w.remove(flood)
	w.run(5 * time.Minute)
	if starved.ranLaunches == 0 && starved.jobs == 0 {
		t.Errorf("the launch did not end; evicted %v", w.evicted)
	}
}

// A launch that does not end within a minute ends its client's use of the GPU.
func TestStuckLaunchIsEvicted(t *testing.T) {
	stuck := &program{id: 1, spec: percent(50), kernel: time.Hour, part: 5 * time.Millisecond}
	fine := &program{id: 2, spec: percent(50), kernel: 5 * time.Millisecond}
	w := newWorld(t, "mps", stuck, fine)
	w.run(61 * time.Second)
	if got := fmt.Sprint(w.evicted); got != "[{1 stuck}]" {
		t.Errorf("evicted %v", got)
	}
	w.remove(stuck)
	jobs := fine.jobs
	w.run(62 * time.Second)
	if fine.jobs < jobs+90 {
		t.Errorf("%d jobs of the neighbour in the next second", fine.jobs-jobs)
	}
}
