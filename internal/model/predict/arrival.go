package predict

import (
	"math"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// arrivals is what replays need that put operations on their streams as the threads come to
// launch them in the replay, and not in the recorded order. It refers to its plan.
type arrivals struct {
	p *Plan

	rank    []int32                 // by operation: its place in Plan.order
	made    chains                  // by call: the operations that it launched, in that order
	behind  chains                  // by operation: those without a call that follow it
	first   []int32                 // operations without a call that follow none
	after   chains                  // by call: those that begin after its end, see followers
	needs   []uint8                 // by call: how many calls end before it begins
	late    map[int32]time.Duration // see findLate
	ends    []int32                 // see workload.Workload.GraphEnds
	process []int32                 // by thread: the number of its process
	of      []int32                 // by stream: the same
	beyond  map[reach]bool

	marks      []markPlan // by time
	dynamic    []bool     // by event: the order of threads decides which work is before it
	moving     waitSet
	markBefore chains  // by call: marks that come with it, after what it comes after
	markAfter  chains  // by call: marks that come after its end
	firstMarks []int32 // marks that come after nothing
}

// reach is a thread and a device for whose work its synchronisations do not wait.
type reach struct {
	thread, process int32
	device          int64
}

// chains are lists of numbers by a number.
type chains struct{ head, next []int32 }

func newChains(lists, entries int) chains { return chains{nones(lists), nones(entries)} }

// add puts an entry before those of a list.
func (c *chains) add(list, entry int32) { c.next[entry], c.head[list] = c.head[list], entry }

// of returns the first entry of a list, or none. There may be no lists.
func (c *chains) of(list int32) int32 {
	if c.head == nil {
		return none
	}
	return c.head[list]
}

// newArrivals prepares replays by arrival. It returns nil if no thread can come to the work
// of another in another order than the recorded one, and if a replay without added latency
// is not the recording: calls may overlap so that the order in which they took effect is unclear.
func newArrivals(p *Plan) *arrivals {
	if !p.mixed() {
		return nil
	}
	w := p.w
	a := &arrivals{
		p: p, rank: make([]int32, len(w.Ops)), late: map[int32]time.Duration{}, ends: w.GraphEnds(),
		made:  newChains(len(w.Calls), len(w.Ops)),
		after: newChains(len(w.Calls), 2*len(w.Calls)), needs: make([]uint8, len(w.Calls)), beyond: map[reach]bool{},
	}
	for n, i := range p.order {
		a.rank[i] = int32(n)
	}
	a.number()
	a.chainOps()
	a.followers()
	a.findLate()
	a.findBeyond()
	a.planMarks()
	if !a.exact() {
		return nil
	}
	return a
}

// with returns the same for a plan of the same calls and operations with other waits, on
// which nothing here depends.
func (a *arrivals) with(other *Plan) *arrivals {
	if a == nil {
		return newArrivals(other)
	}
	b := *a
	b.p = other
	if !b.exact() {
		return nil
	}
	return &b
}

// mixed reports whether several threads of a process launch work on one stream, or one waits
// for work that others launch.
func (p *Plan) mixed() bool {
	w := p.w
	by := nones(len(w.Streams))   // the thread that launched its work
	threads := map[uint64]int32{} // by process: the thread that launched work
	for i := range w.Ops {
		op := &w.Ops[i]
		if op.Call == none {
			continue
		}
		thread := w.Calls[op.Call].Thread
		if of := by[op.Stream]; of != none && of != thread {
			return true
		}
		by[op.Stream] = thread
		process := w.Threads[thread].Process
		if other, ok := threads[process]; ok && other != thread {
			threads[process] = none // several
		} else {
			threads[process] = thread
		}
	}
	others := func(stream, thread int32) bool {
		return stream != none && by[stream] != none && by[stream] != thread
	}
	for stream, behind := range w.Behind {
		if by[stream] != none && slices.ContainsFunc(behind, func(s int32) bool { return others(s, by[stream]) }) {
			return true
		}
	}
	return slices.ContainsFunc(w.Events, func(e workload.Event) bool { return others(e.Stream, e.Thread) }) ||
		slices.ContainsFunc(w.EventWaits, func(e workload.EventWait) bool { return others(e.Stream, e.Thread) }) ||
		slices.ContainsFunc(w.Calls, func(c workload.Call) bool {
			launches, ok := threads[w.Threads[c.Thread].Process]
			return ok && launches != c.Thread && c.Kind == workload.DeviceSync || c.Kind == workload.StreamSync && others(c.Stream, c.Thread)
		})
}

// number numbers the processes of threads and streams.
func (a *arrivals) number() {
	numbers := map[uint64]int32{}
	number := func(process uint64) int32 {
		n, ok := numbers[process]
		if !ok {
			n = int32(len(numbers))
			numbers[process] = n
		}
		return n
	}
	for _, t := range a.p.w.Threads {
		a.process = append(a.process, number(t.Process))
	}
	for _, s := range a.p.w.Streams {
		a.of = append(a.of, number(s.Process))
	}
}

// chainOps lists the operations of each call, and those without a call behind others.
func (a *arrivals) chainOps() {
	for _, i := range slices.Backward(a.p.order) {
		switch call, prev := a.p.w.Ops[i].Call, a.p.ops[i].prev; {
		case call != none:
			a.made.add(call, i)
		case prev != none:
			if a.behind.head == nil {
				a.behind = newChains(len(a.p.ops), len(a.p.ops))
			}
			a.behind.add(prev, i)
		default:
			a.first = append(a.first, i)
		}
	}
	slices.Reverse(a.first)
}

// followers lists the calls that begin after the end of each call: entry 2i is call i as the
// next of its thread, and 2i+1 as one of another thread.
func (a *arrivals) followers() {
	for i := range a.p.calls {
		for k, before := range [...]int32{a.p.calls[i].prev, a.p.calls[i].cross} {
			if before != none {
				a.after.add(before, int32(2*i+k))
				a.needs[i]++
			}
		}
	}
}

// findLate finds the operations that came to their stream behind some which another thread
// launched later, because the calls overlap, and by how much later than their call begins
// they come at least.
func (a *arrivals) findLate() {
	w := a.p.w
	last := slices.Repeat([]time.Duration{math.MinInt64}, len(w.Streams))
	lately := make([]bool, len(w.Streams)) // the operation before was late
	for _, i := range a.p.order {
		op := &w.Ops[i]
		if op.Call == none {
			continue
		}
		at, s := w.Calls[op.Call].Start, op.Stream
		if lately[s] = at < last[s] || at == last[s] && lately[s]; lately[s] {
			a.late[i] = last[s] - at
		}
		last[s] = max(last[s], at)
	}
}

// findBeyond finds the devices of which work was launched before a synchronisation of a
// thread and went on after it: the thread does not wait for them.
func (a *arrivals) findBeyond() {
	w, devices := a.p.w, map[reach]bool{}
	for i, s := range w.Streams {
		devices[reach{none, a.of[i], s.Device}] = true
	}
	if len(devices) < 2 {
		return
	}
	last, used := nones(len(w.Streams)), make([][]int32, len(w.Threads)+len(w.Streams))
	looks := 0
	for i := range w.Calls {
		c := &w.Calls[i]
		for op := a.made.head[i]; op != none; op = a.made.next[op] {
			s := w.Ops[op].Stream
			if last[s] == none {
				used[a.of[s]] = append(used[a.of[s]], s)
			}
			last[s] = op
		}
		process := a.process[c.Thread]
		if c.Kind != workload.DeviceSync || looks > mostLooks {
			continue
		}
		looks += len(used[process])
		for _, s := range used[process] {
			if w.Ops[last[s]].End() > c.End()+crossGap {
				a.beyond[reach{c.Thread, process, w.Streams[s].Device}] = true
			}
		}
	}
}

// exact reports whether the replay without added latency is the recording.
func (a *arrivals) exact() bool {
	w := a.p.w
	t, ok := a.replay(&rttCosts{copyRate: math.Inf(1), hostScale: 1})
	for i := range w.Calls {
		ok = ok && t.callStart[i] == w.Calls[i].Start && t.callEnd[i] == w.Calls[i].End()
	}
	for i := range w.Ops {
		ok = ok && t.opEnd[i] == w.Ops[i].End()
	}
	return ok
}
