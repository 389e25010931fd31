package perf

import (
	"time"
)

// Term is the time added to an operation as a function of ΔRTT: Fixed + Slope x ΔRTT
// from Knee upwards, and below Knee a straight line from zero to that value. It is
// zero at a ΔRTT of zero and never decreases.
type Term struct {
	Slope float64
	Fixed time.Duration
	// Knee is the smallest ΔRTT at which Fixed was fitted; zero if Fixed is zero.
	Knee time.Duration
}

// At returns the added time, which is never negative.
func (t Term) At(delta time.Duration) time.Duration {
	if delta <= 0 {
		return 0
	}
	d := float64(delta)
	v := t.Slope*d + float64(t.Fixed)
	if delta < t.Knee {
		knee := float64(t.Knee)
		v = d / knee * (t.Slope*knee + float64(t.Fixed))
	}
	return time.Duration(max(v, 0))
}

// Costs holds the time added to each kind of operation. Kernel, GraphNode, Memset,
// HtoD, DtoH and OnDevice (copies within a GPU and between GPUs) occupy the stream. Launch lies between a launch call and the
// earliest start of its work, Sync between the end of the work and the return of a
// waiting call.
type Costs struct {
	Name, Source              string
	Kernel, GraphNode         Term
	Memset                    Term
	HtoD, DtoH, OnDevice      Term
	Launch, GraphLaunch, Sync Term
}

// PaperCosts returns the model of section 3.4.1 as the driver library injects it by
// default: one ΔRTT for each kernel, memset and copy to the device, and half of it
// for each copy to the host. The paper does not mention CUDA graphs, whose launch is
// one command: one ΔRTT. Nor does it mention copies that stay on the device.
func PaperCosts() Costs {
	one, half := Term{Slope: 1}, Term{Slope: 0.5}
	return Costs{
		Name: "paper", Source: "section 3.4.1: one dRTT per kernel, memset and copy to the device, half per copy to the host",
		Kernel: one, Memset: one, HtoD: one, DtoH: half, GraphLaunch: one,
	}
}
