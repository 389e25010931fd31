package predict

import (
	"errors"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
)

// Measurement is the performance of a run over a round trip, relative to native.
type Measurement struct {
	RTT      time.Duration
	Relative float64
}

// Fit is the cost of a kernel that explains measurements best.
type Fit struct {
	Kernel perf.Term
	// Deviations are prediction minus measurement, by measurement.
	Deviations []float64
}

// Bounds of a fit.
const (
	mostSlope = 20
	mostFixed = 50 * time.Microsecond
)

// FitKernel finds the cost of a kernel with which the replays of a trace come closest
// to measurements of the same program, by least squares. Measurements at one round trip
// give no fixed part: zero. s holds all but the round trip and the costs.
func (p *Plan) FitKernel(s Setting, ms []Measurement) (Fit, error) {
	if len(ms) == 0 {
		return Fit{}, errors.New("predict: a fit needs a measurement over a longer round trip")
	}
	knee, most := ms[0].RTT, ms[0].RTT
	for _, m := range ms {
		if m.RTT <= s.NativeRTT || m.Relative <= 0 {
			return Fit{}, fmt.Errorf("predict: a measurement of %.2f %% at %v: want a round trip above the native %v and a performance above 0", 100*m.Relative, m.RTT, s.NativeRTT)
		}
		knee, most = min(knee, m.RTT), max(most, m.RTT)
	}
	knee -= s.NativeRTT
	var failed error
	deviations := func(slope, fixed float64) (out []float64, sum float64) {
		t := perf.Term{Slope: slope, Fixed: time.Duration(fixed)}
		if t.Fixed > 0 {
			t.Knee = knee
		}
		s := s
		s.Costs = perf.KernelCosts("fit", "", t)
		for _, m := range ms {
			s.RTT = m.RTT
			r, err := p.Run(s)
			if err != nil {
				failed = err
			}
			d := r.Relative - m.Relative
			out = append(out, d)
			sum += d * d
		}
		return out, sum
	}
	bestSlope := func(fixed float64) float64 {
		return least(0, mostSlope, func(slope float64) float64 { _, sum := deviations(slope, fixed); return sum })
	}
	fixed := 0.0
	if most > knee+s.NativeRTT {
		fixed = least(0, float64(mostFixed), func(fixed float64) float64 {
			_, sum := deviations(bestSlope(fixed), fixed)
			return sum
		})
	}
	slope := bestSlope(fixed)
	out := Fit{Kernel: perf.Term{Slope: slope, Fixed: time.Duration(fixed)}}
	if out.Kernel.Fixed > 0 {
		out.Kernel.Knee = knee
	}
	out.Deviations, _ = deviations(slope, fixed)
	return out, failed
}

// least returns where f, which falls and then grows, is least between low and high:
// by golden sections, to a ten-thousandth of the range.
func least(low, high float64, f func(float64) float64) float64 {
	const golden, precision = 0.6180339887498949, 1e-4
	stop := (high - low) * precision
	a, b := high-golden*(high-low), low+golden*(high-low)
	fa, fb := f(a), f(b)
	for high-low > stop {
		if fa <= fb {
			high, b, fb = b, a, fa
			a = high - golden*(high-low)
			fa = f(a)
		} else {
			low, a, fa = a, b, fb
			b = low + golden*(high-low)
			fb = f(b)
		}
	}
	if mid := (low + high) / 2; mid > stop {
		return mid
	}
	return 0
}
