// Package predict predicts how much longer a recorded workload takes over a longer
// round trip to its GPU. It replays the trace's calls and operations with the added
// cost of each, so that idle gaps absorb latency and synchronisations expose it, and
// computes the paper's additive estimate for comparison.
package predict

import (
	"cmp"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
	"github.com/dxpu-project/dxpu/internal/quantile"
)

// Plan is a workload with the dependencies between its calls and operations. It can
// be replayed with any costs. It refers to the workload.
//
// A call has two events, start and end; an operation has one. An event happens a lag
// after each event that it depends on, at the latest of these times. The lags are
// chosen so that without added costs every event falls on its recorded time. Calls on
// a thread keep the order of the trace. So do operations on a stream, and the dependencies
// are fixed and one evaluation of the events in recorded order is the discrete-event
// simulation, unless threads share work of the GPU: then they come to it in the order of
// the replay (see arriving), or with Setting.RecordedOrder in that of the trace.
//
// Invariant: in the recorded order an event depends only on events before it, and every
// lag is fixed. So no event moves earlier when a cost grows, and the prediction is monotone
// in every cost. It need not be where threads come in another order.
type Plan struct {
	w     *workload.Workload
	calls []callPlan
	ops   []opPlan
	ends  []int32 // calls by end
	order []int32 // operations in order of evaluation
	// devices maps each call that waits for several streams to the part of extra that
	// holds the last operations of those streams.
	devices  map[int32]extraOps
	extra    []int32
	steps    []stepPlan
	segments []int32 // by call: the one that would launch it in a graph, or none

	launchLag time.Duration // from launch call to start on an idle stream
	streamLag time.Duration // from one operation to the next on a busy stream
	crossLag  time.Duration // to one of another stream that waits for it
	enqueue   time.Duration // of a call that only enqueues work
	// certain is set if only what the trace tells links streams and threads; guessed
	// counts the links beyond that.
	certain bool
	guessed int
	// least and most are the plans with the least and the most waits, once they are needed.
	least, most *Plan
	bounded     bool
	arrivals    *arrivals // nil if all replays keep the recorded order
	window      float64   // rate of the fastest copy to the device, bytes/s
}

// Thresholds of the reconstruction.
const (
	tightGap    = 5 * time.Microsecond  // most between two operations that run back to back
	crossGap    = 20 * time.Microsecond // most between an operation and one of another stream that waited for it
	threadGap   = 20 * time.Microsecond // least without a call after which a thread may have waited for another
	blockedCall = 20 * time.Microsecond // least of a call that waited although it only enqueues work
	syncReturn  = 5 * time.Microsecond  // duration of a synchronisation that does not wait
	// Typical values of current GPUs, for traces with too few samples.
	defaultLaunchLag = 6 * time.Microsecond
	defaultStreamLag = time.Microsecond
	enoughLags       = 16
)

type callPlan struct {
	prev  int32 // the previous call on the thread
	cross int32 // the call of another thread that ended last before a long gap
	block int32 // the operation that the call waits for
	// waited is set if the call waited for block in the trace: the end of the call
	// then follows the end of block, and the call's own duration is least.
	waited bool
	// awaited is set if the thread waited for cross, as a recorded wait tells: it did nothing
	// of its own since the previous call until cross had ended.
	awaited bool
	least   time.Duration
}

// extraOps is a part of Plan.extra.
type extraOps struct{ from, to int32 }

type opPlan struct {
	prev       int32 // the previous operation on the stream
	cross      int32 // the operation of another stream that it waited for
	waits      int32 // where Plan.extra has the number of its waits and then their operations, or none
	constraint constraint
}

// constraint is the constraint that explains an operation's recorded start.
type constraint uint8

const (
	streamConstraint constraint = iota
	launchConstraint
	crossConstraint
	noConstraint // the first operation on its stream, without a launch
)

const none = workload.None

// NewPlan reconstructs the dependencies of a workload.
func NewPlan(w *workload.Workload) *Plan {
	p := newPlan(w, false, nil)
	p.planSteps()
	p.segments = p.planSegments()
	p.fastestCopy()
	p.arrivals = newArrivals(p)
	return p
}

// newPlan reconstructs the dependencies alone. of is a plan of the same calls and operations
// with other waits, or nil: their order is the same.
func newPlan(w *workload.Workload, certain bool, of *Plan) *Plan {
	p := &Plan{
		w:       w,
		certain: certain,

		calls: make([]callPlan, len(w.Calls)),
		ops:   make([]opPlan, len(w.Ops)),

		devices: map[int32]extraOps{},
	}
	if of != nil {
		p.ends, p.order, p.launchLag, p.streamLag = of.ends, of.order, of.launchLag, of.streamLag
	} else {
		p.sort()
		p.estimate()
	}
	newLinker(p).link()
	return p
}

// sort finds the order of evaluation.
func (p *Plan) sort() {
	w := p.w
	p.ends, p.order = indices(len(w.Calls)), indices(len(w.Ops))
	slices.SortFunc(p.ends, func(a, b int32) int {
		return cmp.Or(cmp.Compare(w.Calls[a].End(), w.Calls[b].End()), cmp.Compare(a, b))
	})
	slices.SortFunc(p.order, func(a, b int32) int {
		return cmp.Or(cmp.Compare(p.opKey(a), p.opKey(b)), cmp.Compare(w.Ops[a].Call, w.Ops[b].Call), cmp.Compare(a, b))
	})
}

// alternatives returns the plans with the least and the most waits that the trace allows, nil
// if they would be the same, and keeps them.
func (p *Plan) alternatives() (least, most *Plan) {
	if !p.bounded {
		p.bounded = true
		p.least, p.most = p.withLeast(), p.withMost()
	}
	return p.least, p.most
}

// withLeast returns the plan with the least waits that the trace allows, or nil if that is p.
func (p *Plan) withLeast() *Plan {
	if p.w.Least == nil && p.guessed == 0 {
		return nil
	}
	return p.with(p.w.Least, nil, true)
}

// withMost returns the plan with the most waits that the trace allows, or nil if that is p.
func (p *Plan) withMost() *Plan {
	if p.w.Most == nil && p.w.MostAwaits == nil {
		return nil
	}
	return p.with(p.w.Most, p.w.MostAwaits, false)
}

// with returns a plan of the same workload with other waits.
func (p *Plan) with(waits []workload.Wait, awaits []workload.Await, certain bool) *Plan {
	w := *p.w
	if waits != nil {
		w.Waits = waits
	}
	if awaits != nil {
		w.Awaits = awaits
	}
	other := newPlan(&w, certain, p)
	other.steps, other.segments, other.window = p.steps, p.segments, p.window
	other.arrivals = p.arrivals.with(other)
	return other
}

func indices(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i)
	}
	return out
}

// opKey returns the time at which an operation is evaluated: its start, but not
// before the call that launched it (the clocks of host and device differ slightly).
func (p *Plan) opKey(i int32) time.Duration {
	op := &p.w.Ops[i]
	if op.Call == none {
		return op.Start
	}
	return max(op.Start, p.w.Calls[op.Call].Start)
}

// estimate measures the typical launch latency and gap between operations.
func (p *Plan) estimate() {
	p.launchLag, p.streamLag = defaultLaunchLag, defaultStreamLag
	last := nones(len(p.w.Streams))
	var launch []time.Duration
	var gap []queued
	for _, i := range p.order {
		op := &p.w.Ops[i]
		prev := last[op.Stream]
		last[op.Stream] = i
		if op.Call == none || prev == none {
			continue
		}
		end, call := p.w.Ops[prev].End(), p.w.Calls[op.Call].Start
		if g := op.Start - end; end <= call {
			launch = append(launch, op.Start-call)
		} else if g >= 0 && g <= tightGap {
			gap = append(gap, queued{g, op.Start - call})
		}
	}
	if len(launch) >= enoughLags {
		// The lower quartile, because some launches waited for something else too.
		p.launchLag = max(quantile.Of(launch, 0.25), 0)
	}
	// A gap that ends no later after its call than a launch may take is that of the launch.
	var gaps []time.Duration
	for _, g := range gap {
		if g.latency > p.slowLaunch() {
			gaps = append(gaps, g.gap)
		}
	}
	if len(gaps) >= enoughLags {
		p.streamLag = quantile.Of(gaps, 0.5)
	}
}

// slowLaunch is as long as a launch takes that waits for nothing: launches differ.
func (p *Plan) slowLaunch() time.Duration { return p.launchLag * 3 / 2 }

// queued is an operation that was launched while the one before it ran: the gap between
// them, and the time since its launch.
type queued struct{ gap, latency time.Duration }

func nones(n int) []int32 { return slices.Repeat([]int32{none}, n) }

// longCopy is long enough for an exact rate: traces of 2021 have whole microseconds.
const longCopy = 20 * time.Microsecond

// fastestCopy finds the highest rate of a copy to the device, so that Equation 1 is
// used with at least the bytes in flight that the trace shows. Short copies count
// only if there are no long ones.
func (p *Plan) fastestCopy() {
	var short, long float64
	for _, op := range p.w.Ops {
		if op.Kind != workload.CopyHtoD || op.Dur <= 0 || op.Bytes <= 0 {
			continue
		}
		rate := float64(op.Bytes) / op.Dur.Seconds()
		switch {
		case rate > workload.MaxCopyRate:
		case op.Dur >= longCopy:
			long = max(long, rate)
		default:
			short = max(short, rate)
		}
	}
	if p.window = long; long == 0 {
		p.window = short
	}
}
