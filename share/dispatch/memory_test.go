package dispatch_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// Slices that have all memory of a GPU together compute, whatever the policy: each has a range
// of its own, which is as full when nothing is in it.
func TestSlicesWithAllMemory(t *testing.T) {
	for _, info := range share.Policies() {
		t.Run(info.Name, func(t *testing.T) {
			half := small.Memory / 2
			if info.Name == "mig" {
				half = small.Memory / 8 * 3
			}
			online := &program{id: 1, spec: share.ClientSpec{Request: share.Percent(40), Memory: half}, kernel: 2 * time.Millisecond, pause: 20 * time.Millisecond}
			offline := &program{id: 2, spec: share.ClientSpec{Class: share.Offline, Request: share.Percent(40), Memory: half}, kernel: 2 * time.Millisecond}
			w := newWorld(t, info.Name, online, offline)
			w.run(time.Minute)
			if offline.ranLaunches < 100 || len(w.evicted) > 0 {
				t.Errorf("%d offline launches in a minute, evicted %v", offline.ranLaunches, w.evicted)
			}
		})
	}
}
