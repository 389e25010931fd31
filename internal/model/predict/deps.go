package predict

import (
	"iter"
	"time"
)

// CallDeps holds the dependencies of the start of a call. The call starts when
// both other calls have ended and the recorded time since then has passed, see Plan.Since. None
// means no call. Plan.Waits returns the dependencies of its end.
type CallDeps struct {
	Prev  int32 // the previous call on the thread
	Cross int32 // a call of another thread
	// Least is the duration of the call without waiting.
	Least time.Duration
}

// Call returns the dependencies of call i.
func (p *Plan) Call(i int32) CallDeps {
	c := &p.calls[i]
	return CallDeps{c.prev, c.cross, c.least}
}

// Since returns the recorded time from which on call i's thread was busy after the end of
// call from, one of those that it depends on, until call i began: the end of from, or if the
// thread then waited for a call of another thread, the end of that.
func (p *Plan) Since(i, from int32) time.Duration {
	if cp := &p.calls[i]; cp.awaited {
		from = cp.cross
	}
	return p.w.Calls[from].End()
}

// Waits returns the operations that call i waits for. The call ends at the
// earliest the given time after each of them.
func (p *Plan) Waits(i int32) iter.Seq2[int32, time.Duration] {
	return func(yield func(op int32, lag time.Duration) bool) {
		c, cp := &p.w.Calls[i], &p.calls[i]
		if cp.block == none {
			return
		}
		lag := min(c.Dur, syncReturn)
		if cp.waited {
			lag = c.End() - p.w.Ops[cp.block].End()
		}
		if !yield(cp.block, lag) || !c.Kind.IsSync() {
			return
		}
		more := p.devices[i]
		for _, op := range p.extra[more.from:more.to] {
			// min: without added latency no stream may end the wait later than recorded.
			if !yield(op, min(lag, c.End()-p.w.Ops[op].End())) {
				return
			}
		}
	}
}

// OpDeps holds the dependencies of the start of an operation. It starts PrevLag
// after the end of Prev, LaunchLag after the start of its call or CrossLag after
// the end of Cross, whichever is latest. None means no operation.
type OpDeps struct {
	Prev, Cross                  int32
	PrevLag, LaunchLag, CrossLag time.Duration
	// Free is set if the operation depends on nothing and starts when it did in
	// the recording.
	Free bool
}

// Op returns the dependencies of operation i.
func (p *Plan) Op(i int32) OpDeps {
	op, o := &p.w.Ops[i], &p.ops[i]
	d := OpDeps{Prev: o.prev, Cross: o.cross, Free: o.constraint == noConstraint}
	if o.prev != none {
		d.PrevLag = op.Start - p.w.Ops[o.prev].End()
		if o.constraint != streamConstraint {
			d.PrevLag = min(d.PrevLag, p.streamLag)
		}
	}
	if op.Call != none {
		d.LaunchLag = op.Start - p.w.Calls[op.Call].Start
		if o.constraint != launchConstraint {
			d.LaunchLag = min(d.LaunchLag, p.launchLag)
		}
	}
	if o.cross != none {
		d.CrossLag = op.Start - p.w.Ops[o.cross].End()
	}
	return d
}

// StreamWaits returns the operations of other streams that operation i waits for by
// waits that the recording names, besides Op's Cross. It starts at the earliest the
// given time after each of them.
func (p *Plan) StreamWaits(i int32) iter.Seq2[int32, time.Duration] {
	return func(yield func(op int32, lag time.Duration) bool) {
		at := p.ops[i].waits
		if at == none {
			return
		}
		for _, on := range p.extra[at+1:][:p.extra[at]] {
			lag := min(p.w.Ops[i].Start-p.w.Ops[on].End(), p.crossLag)
			if on != p.ops[i].cross && !yield(on, lag) {
				return
			}
		}
	}
}

// Order returns all operations, each after its dependencies, in the plan's own slice.
func (p *Plan) Order() []int32 { return p.order }

// StepOf returns the latest training step that began before i's launch, or -1.
func (p *Plan) StepOf(i int32) int { return p.stepOf(&p.w.Ops[i]) }

// FastestCopy returns the highest rate of a copy to the device in the recording, in
// bytes per second, or 0. A replay has at least the bytes in flight that this rate
// needs at the native round trip.
func (p *Plan) FastestCopy() float64 { return p.window }

// Times holds the times of events in another run of the workload, by index of call
// and operation and relative to the same start as the recording.
type Times struct {
	CallStart, CallEnd []time.Duration
	// OpEnd may be zero for operations other than Plan.Order's first and, on
	// each stream and for each training step, the last.
	OpEnd []time.Duration
}

// Measure computes the result of times. Steps and the active part are those of Run.
func (p *Plan) Measure(t Times) Result {
	var r Result
	own := times{callStart: t.CallStart, callEnd: t.CallEnd, opEnd: t.OpEnd}
	r.Steps = p.stepTimes(&own, &rttCosts{hostScale: 1})
	r.Whole, r.Active = p.spans(&own)
	r.conclude()
	return r
}
