package predict

import (
	"math"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// A GPU's clock that is wrong against the host's hides no waits.
func TestWrongClock(t *testing.T) {
	predicted := func(off time.Duration) float64 {
		r := record(t)
		at0 := time.Second
		for range 100 {
			for range 4 {
				r.op(workload.Kernel, r.launch(workload.Launch, 1, at0, 5*us), 7, at0+6*us+off, 4*us)
				at0 += 6 * us
			}
			r.launch(workload.DeviceSync, 1, at0, 7*us) // returns 3us after the last kernel
			at0 += 30 * us
		}
		return 100 * run(t, r.plan(), at(perf.NativeRTT+18*us)).Relative
	}
	want := predicted(0)
	for _, off := range []time.Duration{-500 * us, -20 * us, 5 * us, 20 * us, 500 * us} {
		if got := predicted(off); math.Abs(got-want) > 0.5 {
			t.Errorf("a clock off by %v: %.2f %%, without that %.2f %%", off, got, want)
		}
	}
}

// Work that begins before its call makes the run no faster over the native round trip.
func TestFirstWorkBeforeItsCall(t *testing.T) {
	r := record(t)
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 10*us, 5*us), 7, 4*us, 20*us)
	r.op(workload.Kernel, r.launch(workload.Launch, 1, 40*us, 5*us), 7, 46*us, 20*us)
	if got := run(t, r.plan(), at(perf.NativeRTT)); got.Relative != 1 || got.Active.Recorded != 62*us {
		t.Errorf("%.3f of the native performance, %+v, want all of it and 62us", got.Relative, got.Active)
	}
}
