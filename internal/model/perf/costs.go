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
// HtoD and DtoH occupy the stream. Launch lies between a launch call and the
// earliest start of its work, Sync between the end of the work and the return of a
// waiting call.
type Costs struct {
	Name, Source              string
	Kernel, GraphNode         Term
	Memset, HtoD, DtoH        Term
	Launch, GraphLaunch, Sync Term
}

// PaperCosts returns the model of section 3.4.1 as the paper's hooks inject it: one
// ΔRTT for each kernel, memset and copy to the device, and half of it for each copy
// to the host. Kernels in a graph pass the same hooks and have the same cost.
func PaperCosts() Costs {
	one, half := Term{Slope: 1}, Term{Slope: 0.5}
	return Costs{
		Name: "paper", Source: "section 3.4.1: one dRTT per kernel, memset and copy to the device, half per copy to the host",
		Kernel: one, GraphNode: one, Memset: one, HtoD: one, DtoH: half,
	}
}
