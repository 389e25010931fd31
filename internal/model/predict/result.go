package predict

import (
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// Result is the outcome of a replay.
type Result struct {
	RTT, Delta time.Duration
	// Relative is the performance relative to the recorded run, 1 is native. It
	// covers the training steps with GPU work if the trace marks any, else the
	// active part of the trace.
	Relative float64
	Basis    string // the part of the trace that Relative covers
	Covered  Span   // the durations of that part
	Steps    []StepTime
	// Idle is the number of training steps without GPU work.
	Idle int
	// Whole covers the trace, Active the part from the first launch to the last end.
	Whole, Active Span
	// Charged is the time added to all operations, Exposed the time by which the
	// run became longer. The difference fell into idle gaps or was added on
	// several streams at once.
	Charged, Exposed time.Duration
	// KernelCost is the time added to a kernel outside of graphs.
	KernelCost time.Duration
	Additive   Additive
}

// Span is a duration in the recording and in the replay.
type Span struct{ Recorded, Replayed time.Duration }

// Relative returns the performance over this span.
func (s Span) Relative() float64 {
	if s.Replayed <= 0 {
		return 1
	}
	return float64(s.Recorded) / float64(s.Replayed)
}

// Additive is the paper's estimate (section 3.4.1): each operation on the GPU takes
// longer by its term, gaps absorb nothing, and the GPU never idles.
type Additive struct {
	GPUTime, Added time.Duration
	Relative       float64
}

// Run replays the workload. If s.HostScale is less than 1, or the profiler's own time
// is taken out, the recorded times of the result are those of a replay with that scale,
// or without that time, and no added latency.
//
// The performance of the recorded program is 1 at most: an order of threads in which a longer
// round trip makes it faster is luck, and time that moved into a step without GPU work, which
// does not count, is not gained.
func (p *Plan) Run(s Setting) (Result, error) {
	if err := s.Validate(); err != nil {
		return Result{}, err
	}
	r := p.measure(s)
	if s.HostScale != 0 && s.HostScale != 1 || s.WithoutOverhead {
		native := s
		native.RTT, native.Change = s.NativeRTT, Change{}
		r.replaceRecorded(p.measure(native))
	}
	r.conclude()
	if s.Change == (Change{}) {
		r.Relative = min(r.Relative, 1)
	}
	return r, nil
}

// conclude computes the performance and what it is based on.
func (r *Result) conclude() {
	basis := r.Active
	r.Basis = "active part of the trace (it marks no steps)"
	steps := withWork(r.Steps)
	r.Idle = len(r.Steps) - len(steps)
	switch {
	case len(steps) > 0:
		basis = Span{}
		for _, st := range steps {
			basis.Recorded += st.Recorded
			basis.Replayed += st.Replayed
		}
		r.Basis = fmt.Sprintf("%d training steps", len(steps))
	case r.Idle > 0:
		r.Basis = "active part of the trace (its steps contain no GPU work)"
	}
	r.Covered, r.Relative = basis, basis.Relative()
	r.Exposed = r.Active.Replayed - r.Active.Recorded
}

// idleShare returns the share of the steps' host time in steps without GPU work.
func (r *Result) idleShare() float64 {
	var idle, all time.Duration
	for _, st := range r.Steps {
		all += st.HostRecorded
		if st.Operations == 0 {
			idle += st.HostRecorded
		}
	}
	return ratio(idle, all)
}

// measure replays the workload and measures all durations.
func (p *Plan) measure(s Setting) Result {
	rc := p.costsAt(s)
	t := p.replay(rc)
	return p.measureTimes(s, &rc, &t)
}

// measureTimes measures all durations of a replay.
func (p *Plan) measureTimes(s Setting, rc *rttCosts, t *times) Result {
	r := Result{RTT: s.RTT, Delta: s.Delta(), Steps: p.stepTimes(t, rc), KernelCost: rc.byKind[workload.Kernel], Additive: p.additive(s)}
	r.Whole, r.Active = p.spans(t)
	for _, op := range p.w.Ops {
		r.Charged += rc.added(&op)
	}
	return r
}

// replaceRecorded replaces the recorded times by those of the replay of native.
func (r *Result) replaceRecorded(native Result) {
	r.Whole.Recorded, r.Active.Recorded = native.Whole.Replayed, native.Active.Replayed
	for i := range r.Steps {
		r.Steps[i].Recorded, r.Steps[i].HostRecorded = native.Steps[i].Replayed, native.Steps[i].HostReplayed
	}
}

// CalibrateHost returns the scale of host time at which the native run takes want
// per training step with GPU work, or for its active part without steps. A profiler
// makes each call longer, so a recorded run has more idle gaps than the run without
// a profiler, and would absorb too much latency. CalibrateHost fails if the GPU's
// work alone takes longer than want by more than kernelNoise.
func (p *Plan) CalibrateHost(s Setting, want time.Duration) (float64, error) {
	s.RTT = s.NativeRTT
	length := func(scale float64) time.Duration {
		s.HostScale = scale
		r := p.measure(s)
		steps := withWork(r.Steps)
		if len(steps) == 0 {
			return r.Active.Replayed
		}
		var sum time.Duration
		for _, st := range steps {
			sum += st.Replayed
		}
		return sum / time.Duration(len(steps))
	}
	const (
		// stepNoise is what the same step may take longer in another run.
		stepNoise = 0.10
		rounds    = 20
		// kernelNoise is what a trace of a few steps may differ from the mean step: clocks
		// vary, and a profiler makes kernels a little longer. A BERT step of 40.28 ms on an
		// H200 had 40.67 ms of kernels in its trace.
		kernelNoise = 0.03
	)
	switch longest := length(1); {
	case float64(want) > (1+stepNoise)*float64(longest):
		return 0, fmt.Errorf("predict: a native step of %v is longer than the %v of a step in this trace: a profiler makes steps longer, not shorter: give the time of one step", want, longest)
	case want >= longest:
		return 1, nil
	}
	switch shortest := length(leastHost); {
	case want < shortest && float64(want) >= (1-kernelNoise)*float64(shortest):
		return leastHost, nil // the GPU is busy all the time
	case want < shortest:
		return 0, fmt.Errorf("predict: a native step of %v is impossible: the GPU's work alone takes %v in this trace", want, shortest)
	}
	low, high := leastHost, 1.0
	for range rounds {
		if mid := (low + high) / 2; length(mid) > want {
			high = mid
		} else {
			low = mid
		}
	}
	return low, nil
}

// spans returns the durations of the whole trace and of its active part.
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
	skew := max(from-first.Start, 0) // of the clocks: it began before its call
	from, moved = from-skew, min(moved, from)-skew
	return whole, Span{whole.Recorded - from, whole.Replayed - moved}
}

func (p *Plan) additive(s Setting) Additive {
	s.Costs = perf.PaperCosts()
	rc := p.costsAt(s)
	var a Additive
	for _, op := range p.w.Ops {
		a.GPUTime += op.Dur
		a.Added += rc.added(&op)
	}
	for i := range p.w.Calls {
		if p.w.Calls[i].Kind == workload.GraphLaunch {
			a.Added += rc.graphLaunch
		}
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

// Workload returns the workload of the plan.
func (p *Plan) Workload() *workload.Workload { return p.w }
