package predict

import (
	"fmt"
	"math"
	"sort"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// Setting holds the parameters of a replay.
type Setting struct {
	NativeRTT, RTT time.Duration // NativeRTT is the round trip of the recorded run
	Costs          perf.Costs
	Requester      perf.Requester // for term ❷, the rate of large copies to the device
	// HostScale multiplies the time that host threads compute: a value below 1
	// removes the time that a profiler added. 0 means 1.
	HostScale float64
	// WithoutOverhead takes the time out that the profiler recorded as its own.
	WithoutOverhead bool
	// RecordedOrder keeps the recorded order of threads, see Plan.
	RecordedOrder bool
	// Change is a change of the program; its zero value is the recorded program.
	Change Change
}

// Validate returns an error for the first value that is out of range.
func (s Setting) Validate() error {
	if s.NativeRTT <= 0 || s.RTT < s.NativeRTT {
		return fmt.Errorf("predict: round trips: native %v, disaggregated %v: want 0 < native <= disaggregated", s.NativeRTT, s.RTT)
	}
	if s.HostScale < 0 || s.HostScale > 1 {
		return fmt.Errorf("predict: host scale %v: want above 0 and at most 1", s.HostScale)
	}
	if err := s.Change.Validate(); err != nil {
		return err
	}
	return s.Requester.Validate()
}

// Delta returns the added round trip.
func (s Setting) Delta() time.Duration { return s.RTT - s.NativeRTT }

// rttCosts are the costs at one ΔRTT.
type rttCosts struct {
	launch, graphLaunch, sync time.Duration
	byKind                    [9]time.Duration
	copyRate                  float64 // bytes per second to the device; +Inf without a bound
	hostScale                 float64
	change                    Change
	withoutOverhead           bool
	recordedOrder             bool
	causes                    bool // see times
}

// host scales the time that a host thread computes.
func (rc *rttCosts) host(d time.Duration) time.Duration {
	if rc.hostScale == 1 {
		return d
	}
	return time.Duration(float64(d) * rc.hostScale)
}

// computes returns how long a thread computes in a replay for what it computed between
// two recorded times.
func (p *Plan) computes(rc *rttCosts, thread int32, from, to time.Duration) time.Duration {
	d := to - from
	if rc.withoutOverhead {
		d -= p.overhead(thread, from, to)
	}
	return rc.host(d)
}

// overhead returns how much of a thread's time between two recorded times is the
// profiler's own.
func (p *Plan) overhead(thread int32, from, to time.Duration) (sum time.Duration) {
	all := p.w.Overheads
	i := sort.Search(len(all), func(i int) bool { return all[i].Thread > thread || all[i].Thread == thread && all[i].End() > from })
	for ; i < len(all) && all[i].Thread == thread && all[i].Start < to; i++ {
		sum += min(all[i].End(), to) - max(all[i].Start, from)
	}
	return sum
}

// inFlight returns the bytes in flight of Equation 1, but not fewer than
// the trace's fastest copy needs at the native round trip.
func (p *Plan) inFlight(s Setting) float64 {
	return max(float64(s.Requester.Window()), p.window*s.NativeRTT.Seconds())
}

// InFlight returns how much a copy to the device keeps in flight: the requester's
// window, or the need of the fastest copy of the trace if that is more.
func (p *Plan) InFlight(s Setting) perf.Bytes { return perf.Bytes(math.Round(p.inFlight(s))) }

func (p *Plan) costsAt(s Setting) rttCosts {
	d := s.Delta()
	c := s.Costs
	rc := rttCosts{launch: c.Launch.At(d), graphLaunch: c.GraphLaunch.At(d), sync: c.Sync.At(d), copyRate: math.Inf(1), hostScale: s.HostScale, change: s.Change, withoutOverhead: s.WithoutOverhead, recordedOrder: s.RecordedOrder}
	if rc.hostScale == 0 {
		rc.hostScale = 1
	}
	rc.byKind[workload.Kernel] = c.Kernel.At(d)
	rc.byKind[workload.GraphKernel] = c.GraphNode.At(d)
	rc.byKind[workload.WholeGraph] = c.GraphNode.At(d) // the launch has its own term
	rc.byKind[workload.Memset] = c.Memset.At(d)
	rc.byKind[workload.CopyHtoD] = c.HtoD.At(d)
	rc.byKind[workload.CopyDtoH] = c.DtoH.At(d)
	rc.byKind[workload.CopyDtoD], rc.byKind[workload.CopyPtoP] = c.OnDevice.At(d), c.OnDevice.At(d)
	if d > 0 {
		rc.copyRate = p.inFlight(s) / s.RTT.Seconds()
	}
	return rc
}

// added returns the time added to an operation.
func (rc *rttCosts) added(op *workload.Op) time.Duration {
	kind := op.Kind
	if rc.change.Graphs && kind == workload.Kernel {
		kind = workload.GraphKernel
	}
	c := rc.byKind[kind]
	if op.Kind == workload.CopyHtoD && op.Bytes > 0 {
		// Term ❷: the larger of the latency and the cost of the lower rate.
		c = max(c, time.Duration(float64(op.Bytes)*rc.change.scale()/rc.copyRate*1e9)-rc.duration(op))
	}
	return c
}

// times holds the replayed times of all events.
type times struct {
	callStart, callEnd, opEnd []time.Duration
	// opBy and callBy are for replays by arrival with causes: by operation and by call, the
	// operation that determined its start, or its end, or none. Else they are nil.
	opBy, callBy []int32
}

func (p *Plan) newTimes() times {
	return times{
		callStart: make([]time.Duration, len(p.calls)),
		callEnd:   make([]time.Duration, len(p.calls)),
		opEnd:     make([]time.Duration, len(p.ops)),
	}
}

// replay computes the times of all events.
func (p *Plan) replay(rc rttCosts) times {
	if p.arrivals != nil && !rc.recordedOrder {
		if t, ok := p.arrivals.replay(&rc); ok {
			return t
		}
	}
	return p.inRecordedOrder(rc)
}

// inRecordedOrder computes the times of all events in the recorded order.
func (p *Plan) inRecordedOrder(rc rttCosts) times {
	t := p.newTimes()
	p.walk(func(e event, i int32) { p.step(&t, &rc, e, i) })
	return t
}

// step computes the time of one event from those of the events before it.
func (p *Plan) step(t *times, rc *rttCosts, e event, i int32) {
	switch e {
	case callStart:
		t.callStart[i] = p.startOfCall(t, rc, i)
	case opStart:
		t.opEnd[i] = p.endOfOp(t, rc, i)
	case callEnd:
		t.callEnd[i] = p.endOfCall(t, rc, i)
	}
}

func (p *Plan) startOfCall(t *times, rc *rttCosts, i int32) time.Duration {
	c, cp := &p.w.Calls[i], &p.calls[i]
	if graph := p.graphOf(rc, i); graph != none && graph != i {
		return t.callEnd[graph]
	}
	if cp.prev == none && cp.cross == none {
		return c.Start
	}
	at := time.Duration(math.MinInt64)
	for _, from := range [...]int32{cp.prev, cp.cross} {
		if from != none {
			at = max(at, t.callEnd[from]+p.computes(rc, c.Thread, p.Since(i, from), c.Start))
		}
	}
	return at
}

func (p *Plan) endOfCall(t *times, rc *rttCosts, i int32) time.Duration {
	if end, ok := p.changedEnd(t, rc, i); ok {
		return end
	}
	end := t.callStart[i] + p.hostTime(rc, i, p.calls[i].least)
	for op, lag := range p.Waits(i) {
		end = max(end, t.opEnd[op]+lag+rc.sync)
	}
	return end
}

// changedEnd returns the end of a call that a change of the program takes out, or from which
// it takes the wait.
func (p *Plan) changedEnd(t *times, rc *rttCosts, i int32) (end time.Duration, ok bool) {
	if graph := p.graphOf(rc, i); graph != none && graph != i {
		return t.callEnd[graph], true
	}
	if rc.change.Pinned && p.w.Calls[i].Kind.IsCopy() && p.calls[i].waited {
		return t.callStart[i] + rc.host(min(p.calls[i].least, p.enqueue)), true
	}
	return 0, false
}

// hostTime returns how long a call takes at least that takes least with the profiler.
func (p *Plan) hostTime(rc *rttCosts, i int32, least time.Duration) time.Duration {
	// The profiler's own time in a call that did not wait.
	if c := &p.w.Calls[i]; rc.withoutOverhead && least == c.Dur {
		least -= p.overhead(c.Thread, c.Start, c.End())
	}
	return rc.host(least)
}

// launchCost returns the time added between a call and the start of its work.
func (p *Plan) launchCost(rc *rttCosts, call int32) time.Duration {
	if p.graphOf(rc, call) != none || p.w.Calls[call].Kind == workload.GraphLaunch {
		return rc.graphLaunch
	}
	return rc.launch
}

func (p *Plan) endOfOp(t *times, rc *rttCosts, i int32) time.Duration {
	op, d := &p.w.Ops[i], p.Op(i)
	at := op.Start
	if !d.Free {
		at = math.MinInt64
	}
	if p.graphOf(rc, op.Call) != none {
		d.PrevLag, d.LaunchLag = min(d.PrevLag, p.streamLag), min(d.LaunchLag, p.launchLag)
	}
	if d.Prev != none {
		at = max(at, t.opEnd[d.Prev]+d.PrevLag)
	}
	if op.Call != none {
		at = max(at, t.callStart[op.Call]+d.LaunchLag+p.launchCost(rc, op.Call))
	}
	if d.Cross != none {
		at = max(at, t.opEnd[d.Cross]+d.CrossLag)
	}
	for on, lag := range p.StreamWaits(i) {
		at = max(at, t.opEnd[on]+lag)
	}
	return at + rc.added(op) + rc.duration(op)
}
