package predict

import (
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// Result is what a replay came to.
type Result struct {
	RTT, Delta time.Duration
	// Relative is the performance against the recorded run, 1 is native: over
	// the training steps where the trace marks some, else over its active part.
	Relative float64
	Basis    string
	Steps    []StepTime
	// Whole is the whole trace, Active the part from the first launch to the
	// last end.
	Whole, Active Span
	// Charged is what all operations together take longer; Exposed is how much
	// of it the run got longer by. The rest went into idle gaps, or ran on
	// several streams at once.
	Charged, Exposed time.Duration
	// KernelCost is what a kernel outside of graphs takes longer.
	KernelCost time.Duration
	Additive   Additive
}

// Span is one time in the recording and in the replay.
type Span struct{ Recorded, Replayed time.Duration }

// Relative is the performance over this span.
func (s Span) Relative() float64 {
	if s.Replayed <= 0 {
		return 1
	}
	return float64(s.Recorded) / float64(s.Replayed)
}

// Additive is the paper's estimate (section 3.4.1): every operation on the GPU
// takes longer by its term, nothing is absorbed, and the GPU never idles.
type Additive struct {
	GPUTime, Added time.Duration
	Relative       float64
}

// Run replays the workload. Where s.HostScale is less than 1, what the result
// calls recorded is the replay with that scale and nothing added.
func (p *Plan) Run(s Setting) (Result, error) {
	if err := s.Validate(); err != nil {
		return Result{}, err
	}
	r := p.measure(s)
	if s.HostScale != 0 && s.HostScale != 1 {
		native := s
		native.RTT = s.NativeRTT
		r.against(p.measure(native))
	}
	r.conclude()
	return r, nil
}

// conclude says what the performance is judged by, and what it is.
func (r *Result) conclude() {
	basis := r.Active
	r.Basis = "active part of the trace (it marks no steps)"
	if len(r.Steps) > 0 {
		basis = Span{}
		for _, st := range r.Steps {
			basis.Recorded += st.Recorded
			basis.Replayed += st.Replayed
		}
		r.Basis = fmt.Sprintf("%d training steps", len(r.Steps))
	}
	r.Relative = basis.Relative()
	r.Exposed = r.Active.Replayed - r.Active.Recorded
}

// measure replays and measures, all but what is relative.
func (p *Plan) measure(s Setting) Result {
	pr := p.prices(s)
	t := p.replay(pr)
	r := Result{RTT: s.RTT, Delta: s.Delta(), Steps: p.stepTimes(&t, &pr), KernelCost: pr.byKind[workload.Kernel], Additive: p.additive(s)}
	r.Whole, r.Active = p.spans(&t)
	for i := range p.w.Ops {
		r.Charged += pr.added(&p.w.Ops[i])
	}
	return r
}

// against takes native's replay for the recording.
func (r *Result) against(native Result) {
	r.Whole.Recorded, r.Active.Recorded = native.Whole.Replayed, native.Active.Replayed
	for i := range r.Steps {
		r.Steps[i].Recorded, r.Steps[i].HostRecorded = native.Steps[i].Replayed, native.Steps[i].HostReplayed
	}
}

// CalibrateHost finds the scale of host time at which the native run takes
// want per training step, or for its active part where there are no steps: a
// profiler makes each call longer, so a recorded run leaves more idle gaps
// than the run without it, and too much latency would seem to be absorbed. It
// fails when no scale does, because the GPU alone takes longer.
func (p *Plan) CalibrateHost(s Setting, want time.Duration) (float64, error) {
	s.RTT = s.NativeRTT
	length := func(scale float64) time.Duration {
		s.HostScale = scale
		r := p.measure(s)
		if len(r.Steps) == 0 {
			return r.Active.Replayed
		}
		var sum time.Duration
		for _, st := range r.Steps {
			sum += st.Replayed
		}
		return sum / time.Duration(len(r.Steps))
	}
	if longest := length(1); want >= longest {
		return 1, nil
	}
	const least, rounds = 0.01, 20
	if shortest := length(least); want < shortest {
		return 0, fmt.Errorf("predict: a native step of %v cannot be: the GPU's work alone takes %v in this trace", want, shortest)
	}
	low, high := least, 1.0
	for range rounds {
		if mid := (low + high) / 2; length(mid) > want {
			high = mid
		} else {
			low = mid
		}
	}
	return low, nil
}

// spans measures the whole trace and its active part.
func (p *Plan) spans(t *times) (whole, active Span) {
	for i := range p.calls {
		whole.Recorded = max(whole.Recorded, p.w.Calls[i].End())
		whole.Replayed = max(whole.Replayed, t.callEnd[i])
	}
	for i := range p.ops {
		whole.Recorded = max(whole.Recorded, p.w.Ops[i].End())
		whole.Replayed = max(whole.Replayed, t.opEnd[i])
	}
	first := &p.w.Ops[p.order[0]]
	from, moved := first.Start, t.opEnd[p.order[0]]-first.Dur
	if first.Call != none {
		from, moved = p.w.Calls[first.Call].Start, t.callStart[first.Call]
	}
	from, moved = min(from, first.Start), min(moved, from)
	return whole, Span{whole.Recorded - from, whole.Replayed - moved}
}

func (p *Plan) additive(s Setting) Additive {
	s.Costs = perf.PaperCosts()
	pr := p.prices(s)
	var a Additive
	for i := range p.w.Ops {
		op := &p.w.Ops[i]
		a.GPUTime += op.Dur
		a.Added += pr.added(op)
	}
	a.Relative = Span{a.GPUTime, a.GPUTime + a.Added}.Relative()
	return a
}

// Sweep runs the workload at each round trip in turn.
func (p *Plan) Sweep(s Setting, rtts []time.Duration) ([]Result, error) {
	out := make([]Result, 0, len(rtts))
	for _, rtt := range rtts {
		s.RTT = rtt
		r, err := p.Run(s)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// Workload returns what the plan was made of.
func (p *Plan) Workload() *workload.Workload { return p.w }
