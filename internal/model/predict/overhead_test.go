package predict

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// withOverhead is hostBound with kernels of 30us, whose profiler spends some time in each
// gap between two calls, and none where own is zero.
func withOverhead(t *testing.T, own time.Duration) *Plan {
	r := record(t)
	at := time.Duration(0)
	th, _ := r.b.Thread(workload.Thread{ID: 1})
	for range 50 {
		c := r.launch(workload.Launch, 1, at, 5*us)
		r.op(workload.Kernel, c, 7, at+6*us, 30*us)
		if own > 0 { // in two records that overlap
			r.b.AddOverhead(workload.Overhead{Thread: th, Start: at + 10*us, Dur: own}, here)
			r.b.AddOverhead(workload.Overhead{Thread: th, Start: at + 10*us + own/2, Dur: own / 2}, here)
		}
		at += 40*us + own
	}
	r.launch(workload.DeviceSync, 1, at, 5*us)
	return r.plan()
}

// A run whose profiler's own time is taken out is predicted as the run without it.
func TestOverheadIsTakenOut(t *testing.T) {
	s := at(delta10 + 10*us)
	want := run(t, withOverhead(t, 0), s)
	profiled := withOverhead(t, 20*us)
	if with := run(t, profiled, s); with.Relative <= want.Relative {
		t.Fatalf("%v with the profiler, %v without: it must hide latency", with.Relative, want.Relative)
	}
	s.WithoutOverhead = true
	got := run(t, profiled, s)
	if got.Active.Recorded != want.Active.Recorded || got.Active.Replayed != want.Active.Replayed {
		t.Errorf("%+v, want %+v", got.Active, want.Active)
	}
	c, err := profiled.Critical(s)
	if err != nil {
		t.Fatal(err)
	}
	if first := c.Parts()[0]; first.From != 0 {
		t.Errorf("the critical path does not reach the beginning: %+v", first)
	}
}
