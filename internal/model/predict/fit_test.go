package predict

import (
	"math"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
)

// A fit finds the cost of a kernel from the times of runs.
func TestFitKernel(t *testing.T) {
	p := gpuBound(t)
	truth := perf.Term{Slope: 1.7, Fixed: 3 * us, Knee: 4 * us}
	s := at(perf.NativeRTT)
	var ms []Measurement
	for _, d := range []time.Duration{4 * us, 9 * us, 20 * us} {
		s.Costs, s.RTT = perf.KernelCosts("true", "", truth), perf.NativeRTT+d
		ms = append(ms, Measurement{s.RTT, run(t, p, s).Relative})
	}
	got, err := p.FitKernel(s, ms)
	if err != nil {
		t.Fatal(err)
	}
	if math.Abs(got.Kernel.Slope-truth.Slope) > 0.02 || (got.Kernel.Fixed-truth.Fixed).Abs() > 200*time.Nanosecond || got.Kernel.Knee != truth.Knee {
		t.Errorf("%+v, want %+v", got, truth)
	}
	for i, d := range got.Deviations {
		if math.Abs(d) > 0.001 {
			t.Errorf("measurement %d: %v", i, d)
		}
	}
	// One round trip cannot tell the fixed part from the slope.
	if got, err = p.FitKernel(s, ms[:1]); err != nil || got.Kernel.Fixed != 0 || math.Abs(got.Deviations[0]) > 0.001 {
		t.Errorf("%+v, %v", got, err)
	}
	// A run that is no slower costs nothing.
	if got, err = p.FitKernel(s, []Measurement{{delta10, 1}}); err != nil || got.Kernel != (perf.Term{}) {
		t.Errorf("%+v, %v", got, err)
	}
	for _, bad := range [][]Measurement{nil, {{perf.NativeRTT, 1}}, {{delta10, 0}}} {
		if _, err := p.FitKernel(s, bad); err == nil {
			t.Errorf("%v is accepted", bad)
		}
	}
}
