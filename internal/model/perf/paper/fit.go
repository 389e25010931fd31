// Package paper holds the figures of the DxPU paper and compares the performance
// model with each of them. A figure is an input of the model, fitted, checked, or
// lacks the inputs to compute it.
package paper

import (
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
)

// Round trips of the paper.
const (
	NativeRTT = perf.NativeRTT            // Table 6
	RTTLong   = 6800 * time.Nanosecond    // the first system, and that of section 4
	RTTShort  = 4900 * time.Nanosecond    // the second system
	RTT90     = 8 * time.Microsecond      // Figure 4: performance 90 %
	RTT80     = 19 * time.Microsecond     // Figure 4: performance 80 %
	knee      = RTTShort - perf.NativeRTT // the smallest added round trip of a measurement
)

// Kernel statistics of ResNet-50 training (section 4.3.2), in microseconds.
const (
	mean32, mean64, mean128 = 56.0, 102.3, 193.0
	mean64XLA               = 131.0
	kernelShare             = 0.99 // "GPU kernel execution makes up the most of GPU hardware time (around 99%)"
)

// interval returns the GPU time per kernel of a run with a mean kernel duration:
// kernels are kernelShare of it.
func interval(mean float64) float64 { return mean / kernelShare }

// costFor returns the added time per kernel that slows a GPU-bound run to p.
func costFor(mean, p float64) float64 { return interval(mean) * (1/p - 1) }

// boundBy returns the performance of a GPU-bound run with cost added to each kernel.
func boundBy(mean, cost float64) float64 { return interval(mean) / (interval(mean) + cost) }

// Fit holds the constants of the cost of one kernel, fixed part + Slope x ΔRTT.
type Fit struct {
	Slope float64 // microseconds per microsecond
	// Fixed parts in microseconds: of the paper's software model, and of its
	// hardware with synthetic and with real input.
	Model, Synthetic, Real float64
}

// Fitted computes the constants. Rows used:
//   - Slope and Model: the two points of Figure 4 that section 3.4.3 quotes
//     (8 us: 90 %, 19 us: 80 %);
//   - Synthetic: Table 9, synthetic dataset, training, XLA off, batch 32 and 128;
//   - Real: the same rows of the ImageNet dataset.
//
// All other rows are checked and not fitted, such as both columns of Table 4 and
// batch 64 of Table 9.
func Fitted() Fit {
	at90, at80 := costFor(mean64, 0.90), costFor(mean64, 0.80)
	f := Fit{Slope: (at80 - at90) / micros(RTT80-RTT90)}
	f.Model = at90 - f.Slope*micros(RTT90-NativeRTT)
	atLong := f.Slope * micros(RTTLong-NativeRTT)
	f.Synthetic = (costFor(mean32, 0.852)+costFor(mean128, 0.955))/2 - atLong
	f.Real = (costFor(mean32, 0.838)+costFor(mean128, 0.943))/2 - atLong
	return f
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// kernel returns the cost of one kernel in microseconds.
func (f Fit) kernel(fixed float64, rtt time.Duration) float64 {
	return fixed + f.Slope*micros(rtt-NativeRTT)
}

// HardwareCosts returns the costs of the paper's hardware for replaying traces. The
// cost of a kernel is the one fitted on synthetic input, because a replay charges the
// copies of a trace one by one. Memsets behave like kernels (section 3.4.2), and so do
// copies that stay on the device, which are commands of the same kind; copies to and
// from the host have their own term. A launch's doorbell and the write that ends a wait are posted
// and cross the network once: half a round trip. The nodes of a graph do not depend
// on the host.
func HardwareCosts() perf.Costs {
	f := Fitted()
	kernel := perf.Term{Slope: f.Slope, Fixed: time.Duration(f.Synthetic * 1e3), Knee: knee}
	return perf.KernelCosts("hardware",
		"kernels: slope from Figure 4, fixed part from Table 9 (synthetic, training, XLA off, batch 32 and 128); copies: section 3.4.1; launch and sync: one posted crossing", kernel)
}
