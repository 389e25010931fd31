package predict

import (
	"cmp"
	"slices"
	"sort"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// stepPlan holds the last call on the step's thread before the step's start, and
// before its end; none if there is no such call.
type stepPlan struct {
	startCall, endCall int32
}

// planSteps finds the calls that the start and end of each step follow.
func (p *Plan) planSteps() {
	type mark struct {
		at   time.Duration
		call *int32
		th   int32
	}
	p.steps = make([]stepPlan, len(p.w.Steps))
	marks := make([]mark, 0, 2*len(p.steps))
	for i, s := range p.w.Steps {
		marks = append(marks, mark{s.Start, &p.steps[i].startCall, s.Thread}, mark{s.End(), &p.steps[i].endCall, s.Thread})
	}
	slices.SortStableFunc(marks, func(a, b mark) int { return cmp.Compare(a.at, b.at) })
	last := nones(len(p.w.Threads))
	call := 0
	for _, m := range marks {
		for ; call < len(p.w.Calls) && p.w.Calls[call].Start < m.at; call++ {
			last[p.w.Calls[call].Thread] = int32(call)
		}
		*m.call = none
		if m.th != none {
			*m.call = last[m.th]
		}
	}
}

// moment returns the replayed time of a moment that follows call on its thread.
func (p *Plan) moment(t *times, rc *rttCosts, call int32, at time.Duration) time.Duration {
	if call == none {
		return at
	}
	c := &p.w.Calls[call]
	if at >= c.End() {
		return t.callEnd[call] + p.computes(rc, c.Thread, c.End(), at)
	}
	return t.callStart[call] + p.computes(rc, c.Thread, c.Start, at)
}

// StepTime is the time of one training step. A step lasts from the end of the
// previous step to its own end: the end of its mark on the host or of the last
// operation that it launched, whichever is later. Otherwise a host that runs ahead
// of the GPU would make the first steps look short and the last one long.
type StepTime struct {
	Name     string        `json:"name"`
	Recorded time.Duration `json:"recorded_ns"`
	Replayed time.Duration `json:"replayed_ns"`
	// HostRecorded and HostReplayed are the duration of the mark on the host.
	HostRecorded time.Duration `json:"host_recorded_ns"`
	HostReplayed time.Duration `json:"host_replayed_ns"`
	// Operations is the number of operations that the step launched. A step
	// without any is as fast at every round trip, and does not count for the
	// performance.
	Operations int `json:"operations"`
}

// stepTimes measures the steps in a replay.
func (p *Plan) stepTimes(t *times, rc *rttCosts) []StepTime {
	steps := p.w.Steps
	if len(steps) == 0 {
		return nil
	}
	recorded, replayed := make([]time.Duration, len(steps)), make([]time.Duration, len(steps))
	out := make([]StepTime, len(steps))
	var start time.Duration
	for i, s := range steps {
		from, to := p.moment(t, rc, p.steps[i].startCall, s.Start), p.moment(t, rc, p.steps[i].endCall, s.End())
		out[i] = StepTime{Name: s.Name, HostRecorded: s.Dur, HostReplayed: to - from}
		recorded[i], replayed[i] = s.End(), to
		if i == 0 {
			start = from
		}
	}
	for i := range p.w.Ops {
		op := &p.w.Ops[i]
		if s := p.stepOf(op); s >= 0 {
			out[s].Operations++
			recorded[s] = max(recorded[s], op.End())
			replayed[s] = max(replayed[s], t.opEnd[i])
		}
	}
	before, after := steps[0].Start, start
	for i := range out {
		out[i].Recorded, out[i].Replayed = max(recorded[i]-before, 0), max(replayed[i]-after, 0)
		before, after = max(before, recorded[i]), max(after, replayed[i])
	}
	return out
}

// withWork returns the steps that launched operations.
func withWork(steps []StepTime) []StepTime {
	return slices.DeleteFunc(slices.Clone(steps), func(s StepTime) bool { return s.Operations == 0 })
}

// stepOf returns the latest step that began before the operation's launch, or -1.
func (p *Plan) stepOf(op *workload.Op) int {
	if p.w.Beside(op) {
		return -1
	}
	at := op.Start
	if op.Call != none {
		at = p.w.Calls[op.Call].Start
	}
	return p.stepAt(at)
}

// stepAt returns the latest step that began by a time, or -1.
func (p *Plan) stepAt(at time.Duration) int {
	return sort.Search(len(p.w.Steps), func(i int) bool { return p.w.Steps[i].Start > at }) - 1
}
