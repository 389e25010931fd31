package predict

import (
	"iter"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// CallDeps is what the start of a call depends on. It starts when both others
// have ended and the recorded time since then has passed; None stands for no
// such call. Plan.Waits says what its end depends on.
type CallDeps struct {
	Prev  int32 // the call before on the thread
	Cross int32 // a call of another thread
	// Least is how long the call takes where it waits for nothing.
	Least time.Duration
}

// Call returns what call i depends on.
func (p *Plan) Call(i int32) CallDeps {
	c := &p.calls[i]
	return CallDeps{c.prev, c.cross, c.least}
}

// Waits lists the operations that call i waits for: it ends the given time
// after each of them has ended, at the earliest.
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
		if !yield(cp.block, lag) || c.Kind != workload.DeviceSync {
			return
		}
		more := p.devices[i]
		for _, op := range p.extra[more.from:more.to] {
			// min: with nothing added, no stream may end the wait later than recorded.
			if !yield(op, min(lag, c.End()-p.w.Ops[op].End())) {
				return
			}
		}
	}
}

// OpDeps is what the start of an operation depends on: it starts PrevLag after
// the end of Prev, LaunchLag after the start of its call and CrossLag after the
// end of Cross, whichever is latest. Operations are None where there is none.
type OpDeps struct {
	Prev, Cross                  int32
	PrevLag, LaunchLag, CrossLag time.Duration
	// Free says that nothing holds the operation: it starts when it did in the
	// recording.
	Free bool
}

// Op returns what operation i depends on.
func (p *Plan) Op(i int32) OpDeps {
	op, o := &p.w.Ops[i], &p.ops[i]
	d := OpDeps{Prev: o.prev, Cross: o.cross, Free: o.bound == boundNothing}
	if o.prev != none {
		d.PrevLag = op.Start - p.w.Ops[o.prev].End()
		if o.bound != boundStream {
			d.PrevLag = min(d.PrevLag, p.streamLag)
		}
	}
	if op.Call != none {
		d.LaunchLag = op.Start - p.w.Calls[op.Call].Start
		if o.bound != boundLaunch {
			d.LaunchLag = min(d.LaunchLag, p.launchLag)
		}
	}
	if o.cross != none {
		d.CrossLag = op.Start - p.w.Ops[o.cross].End()
	}
	return d
}

// Order lists all operations so that each follows those that it depends on.
// The slice is the plan's own.
func (p *Plan) Order() []int32 { return p.order }

// StepOf returns the index of the latest training step that began before the
// launch of operation i, -1 where there is none.
func (p *Plan) StepOf(i int32) int { return p.stepOf(&p.w.Ops[i]) }

// FastestCopy is the best rate of a copy to the device in the recording, in
// bytes per second; 0 without one. A replay never has fewer bytes in flight
// than it needs at the native round trip.
func (p *Plan) FastestCopy() float64 { return p.window }

// Times are where something that ran the workload put its events, by index of
// call and operation, counted like the recording's.
type Times struct {
	CallStart, CallEnd []time.Duration
	// OpEnd may be zero for operations other than Plan.Order's first and, on
	// each stream and for each training step, the last.
	OpEnd []time.Duration
}

// Measure says what times come to, with the same definitions of a step and of
// the active part as Run.
func (p *Plan) Measure(t Times) Result {
	var r Result
	own := times{t.CallStart, t.CallEnd, t.OpEnd}
	r.Steps = p.stepTimes(&own, &prices{hostScale: 1})
	r.Whole, r.Active = p.spans(&own)
	r.conclude()
	return r
}
