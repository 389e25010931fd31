package manager

import (
	"strings"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// The paths of many bindings that come and go do not fill the log of events: a node has some
// events at once, and summaries tell how many changes there were.
func TestPathEventsAreBounded(t *testing.T) {
	const gpus = 64
	w := newWorld(t, Config{}, hostNode("h1", gpus), boxNode("b1", gpus))
	w.create(&dxpuv1.LeaseSpec{Count: gpus})
	w.settle()
	h := w.nodes["h1"]
	const ok, failed = dxpuv1.Health_HEALTH_OK, dxpuv1.Health_HEALTH_FAILED
	report := func(second dxpuv1.Health) string {
		before := len(w.events())
		h.pathHealth = []dxpuv1.Health{ok, second}
		w.report("h1")
		return w.events()[before:]
	}
	report(ok)
	first := report(failed)
	if n := strings.Count(first, "path 1 of binding "); n != pathEventBurst-1 {
		t.Errorf("%d events of paths, want %d", n, pathEventBurst-1)
	}
	if want := "paths of bindings of host h1: 33 changes without an event of its own, 33 failed and 0 work again"; !strings.Contains(first, want) {
		t.Errorf("no summary:\n%s", first)
	}
	for range 100 {
		if again := report(ok) + report(failed); again != "" {
			t.Fatalf("events without an allowance:\n%s", again)
		}
	}
	w.passReporting(pathEventPause)
	if got := report(ok); !strings.Contains(got, "changes without an event of its own") {
		t.Errorf("no summary after a pause:\n%s", got)
	}
	w.clock.pass(-time.Hour)
	if got := report(failed); got != "" {
		t.Errorf("events when the clock was set back:\n%s", got)
	}
	w.passReporting(pathEventPause * pathEventBurst)
	if got := report(ok); strings.Count(got, "path 1 of binding ") != pathEventBurst-1 {
		t.Errorf("after a long pause:\n%s", got)
	}
}
