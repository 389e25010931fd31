package playback

import (
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/predict"
)

// Run is one replay: the round trip that it had, unstretched, and its times.
type Run struct {
	RTT   time.Duration
	Times predict.Times
}

// Comparison compares a system with the model. Performances are relative to the
// native round trip: 1 is native.
type Comparison struct {
	// Basis says over what times are taken: Unit is one of Units of it.
	Basis string
	Unit  string
	Units int
	// Recorded and Native are the mean time of a unit in the recording and on
	// the system at the native round trip.
	Recorded, Native time.Duration
	NativeRTT        time.Duration
	Points           []Point
}

// Reproduction returns the deviation of the native system from the recording:
// 0.01 is one per cent slower.
func (c *Comparison) Reproduction() float64 { return float64(c.Native)/float64(c.Recorded) - 1 }

// Point is one round trip.
type Point struct {
	RTT  time.Duration
	Unit time.Duration // mean time of a unit on the system
	// System is measured. Model is the predictor's answer for the software GPU,
	// whose costs per operation are Costs; Physical is its answer for a physical
	// GPU, where kernels pay more.
	System, Model, Physical float64
}

// Deviation is that of the system from the model in points of performance:
// 0.01 is one point better.
func (p *Point) Deviation() float64 { return p.System - p.Model }

// Compare measures runs of a plan's workload on a system, the native one first,
// and asks the predictor for the same. physical are the costs of Point.Physical.
func Compare(p *predict.Plan, q perf.Requester, physical perf.Costs, runs []Run) (*Comparison, error) {
	if len(runs) == 0 {
		return nil, fmt.Errorf("replay: nothing to compare")
	}
	native := p.Measure(runs[0].Times)
	c := &Comparison{Basis: native.Basis, Unit: "active part", Units: 1, NativeRTT: runs[0].RTT}
	if n := len(native.Steps); n > 0 {
		c.Unit, c.Units = "step", n
	}
	c.Recorded, c.Native = c.mean(&native)
	for i := range runs {
		got := p.Measure(runs[i].Times)
		_, unit := c.mean(&got)
		point := Point{RTT: runs[i].RTT, Unit: unit, System: float64(c.Native) / float64(max(unit, 1))}
		s := predict.Setting{NativeRTT: c.NativeRTT, RTT: max(runs[i].RTT, c.NativeRTT), Costs: Costs(), Requester: q, RecordedOrder: true}
		for _, ask := range []struct {
			costs perf.Costs
			to    *float64
		}{{Costs(), &point.Model}, {physical, &point.Physical}} {
			s.Costs = ask.costs
			r, err := p.Run(s)
			if err != nil {
				return nil, err
			}
			*ask.to = r.Relative
		}
		c.Points = append(c.Points, point)
	}
	return c, nil
}

// mean is the mean time of a unit, recorded and on the system.
func (c *Comparison) mean(r *predict.Result) (recorded, replayed time.Duration) {
	if len(r.Steps) == 0 {
		return r.Active.Recorded, r.Active.Replayed
	}
	for _, s := range r.Steps {
		recorded += s.Recorded
		replayed += s.Replayed
	}
	n := time.Duration(len(r.Steps))
	return recorded / n, replayed / n
}
