package agent

import (
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func TestStatusNotesAndBounds(t *testing.T) {
	s := Status{Clock: time.Now}
	s.Begin(&dxpuv1.DesiredBinding{BindingId: "b-1", Epoch: 1})
	s.Advance(dxpuv1.BindingState_BINDING_STATE_ATTACHED, 0, "")
	if !s.Note("no VM", false) || s.Note("no VM", false) {
		t.Error("Note does not report whether the detail is new")
	}
	st := s.Get()
	if o := st.Observed(); o.State != dxpuv1.BindingState_BINDING_STATE_ATTACHED || o.Detail != "no VM" || len(o.Steps) != 1 {
		t.Errorf("got %v", o)
	}
	for range 1000 {
		s.Step("replugged")
	}
	st = s.Get()
	if n := len(st.Steps); n != maxSteps {
		t.Errorf("%d steps, want %d", n, maxSteps)
	}
	s.End()
	st = s.Get()
	if o := st.Observed(); o != nil {
		t.Errorf("after End: got %v", o)
	}
}

// The times of the steps come from the clock of the proxy's driver.
func TestStatusHasTheTimeOfItsClock(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	s := Status{Clock: func() time.Time { return now }}
	s.Begin(&dxpuv1.DesiredBinding{BindingId: "b-1", Epoch: 1})
	s.Step("link_up")
	now = now.Add(3 * time.Second)
	s.Step("probed")
	steps := s.Get().Steps
	if got := steps[1]; !got.Time.AsTime().Equal(now) || got.Duration.AsDuration() != 3*time.Second {
		t.Errorf("got %v", got)
	}
}
