package predict

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// markPlan is a call that records an event or makes a stream wait for one.
type markPlan struct {
	at          time.Duration
	thread      int32
	event, wait int32 // index into Workload.Events or Workload.EventWaits, and none
	prev, cross int32 // the calls after which it comes, as a call does
	awaited     bool  // see callPlan
}

// waitSet is a set of waits. Lookups are in nearly all steps of a replay, and a map's took a
// third of its time.
type waitSet struct {
	from []int32 // by operation: where on has those for which it waits; nil if there are no waits
	on   []int32 // of one operation in increasing order
}

// newWaitSet returns the set of waits of a number of operations. It sorts waits.
func newWaitSet(ops int, waits []workload.Wait) waitSet {
	if len(waits) == 0 {
		return waitSet{}
	}
	slices.SortFunc(waits, func(x, y workload.Wait) int { return cmp.Or(cmp.Compare(x.Op, y.Op), cmp.Compare(x.On, y.On)) })
	s := waitSet{from: make([]int32, ops+1), on: make([]int32, len(waits))}
	for n, w := range waits {
		s.from[w.Op+1], s.on[n] = int32(n+1), w.On
	}
	for i := range ops {
		s.from[i+1] = max(s.from[i+1], s.from[i])
	}
	return s
}

// has reports whether operation i waits for on.
func (s *waitSet) has(i, on int32) bool {
	if s.from == nil {
		return false
	}
	_, ok := slices.BinarySearch(s.on[s.from[i]:s.from[i+1]], on)
	return ok
}

// planMarks finds the calls for events of which the order of threads decides what they mean:
// other threads launch work on the event's stream, or on the one that waits.
func (a *arrivals) planMarks() {
	w := a.p.w
	a.dynamic = make([]bool, len(w.Events))
	var moving []workload.Wait
	others := a.launchers()
	for i, awaited := range a.awaited() {
		if e := &w.Events[i]; awaited && others(e.Stream, e.Thread) {
			a.dynamic[i] = true
			a.marks = append(a.marks, markPlan{at: e.At, thread: e.Thread, event: int32(i), wait: none})
		}
	}
	for i := range w.EventWaits {
		e := &w.EventWaits[i]
		if !a.dynamic[e.Event] && !others(e.Stream, e.Thread) {
			continue
		}
		a.marks = append(a.marks, markPlan{at: e.At, thread: e.Thread, event: none, wait: int32(i)})
		for _, on := range e.On {
			if e.Op != none {
				moving = append(moving, workload.Wait{Op: e.Op, On: on})
			}
		}
	}
	a.moving = newWaitSet(len(w.Ops), moving)
	slices.SortStableFunc(a.marks, func(x, y markPlan) int { return cmp.Compare(x.at, y.at) })
	a.placeMarks()
}

// awaited tells by event whether something waits for it.
func (a *arrivals) awaited() []bool {
	out := make([]bool, len(a.p.w.Events))
	for i := range a.p.w.EventWaits {
		out[a.p.w.EventWaits[i].Event] = true
	}
	for i := range a.p.w.Calls {
		if e := a.p.w.Calls[i].Record; e != none && int(e) < len(out) {
			out[e] = true
		}
	}
	return out
}

// launchers returns a function that reports whether threads other than one launch work on a
// stream.
func (a *arrivals) launchers() func(stream, thread int32) bool {
	w := a.p.w
	one, two := nones(len(w.Streams)), nones(len(w.Streams))
	for i := range w.Ops {
		op := &w.Ops[i]
		if op.Call == none {
			continue
		}
		switch thread := w.Calls[op.Call].Thread; {
		case one[op.Stream] == none:
			one[op.Stream] = thread
		case one[op.Stream] != thread:
			two[op.Stream] = thread
		}
	}
	return func(stream, thread int32) bool {
		return one[stream] != none && one[stream] != thread || two[stream] != none
	}
}

// placeMarks finds after which calls each mark comes: the one before it on its thread and, if
// the next call of the thread comes after one of another thread that ended before the mark, after that.
func (a *arrivals) placeMarks() {
	w := a.p.w
	if len(a.marks) == 0 {
		return
	}
	a.markBefore, a.markAfter = newChains(len(w.Calls), len(a.marks)), newChains(len(w.Calls), len(a.marks))
	next := nones(len(w.Threads)) // by thread: its next call
	call := len(w.Calls) - 1
	for n, m := range slices.Backward(a.marks) {
		for ; call >= 0 && w.Calls[call].Start >= m.at; call-- {
			next[w.Calls[call].Thread] = int32(call)
		}
		a.place(int32(n), next[m.thread])
	}
	// The marks after the last call of their thread come after that one.
	last := nones(len(w.Threads))
	for i := range w.Calls {
		last[w.Calls[i].Thread] = int32(i)
	}
	for n, m := range slices.Backward(a.marks) {
		if m.prev != none || m.cross != none || last[m.thread] == none || w.Calls[last[m.thread]].Start >= m.at {
			continue
		}
		a.marks[n].prev = last[m.thread]
		a.markAfter.add(last[m.thread], int32(n))
	}
	for n := range a.marks {
		if m := &a.marks[n]; m.prev == none && m.cross == none {
			a.firstMarks = append(a.firstMarks, int32(n))
		}
	}
}

// place puts mark n before a call of its thread, or behind the one before that.
func (a *arrivals) place(n, next int32) {
	m := &a.marks[n]
	m.prev, m.cross = none, none
	if next == none {
		return
	}
	c := &a.p.calls[next]
	m.prev = c.prev
	if c.cross != none && a.p.w.Calls[c.cross].End() <= m.at {
		m.cross, m.awaited = c.cross, c.awaited
		a.markBefore.add(next, n)
	} else if c.prev != none {
		a.markAfter.add(c.prev, n)
	}
}

// mark puts a mark into the queue.
func (r *arriving) mark(n int32) {
	m := &r.marks[n]
	at := time.Duration(math.MinInt64)
	switch {
	case m.prev == none && m.cross == none:
		at = m.at
	case m.prev != none && m.awaited:
		at = r.t.callEnd[m.prev] + r.p.computes(r.rc, m.thread, r.p.w.Calls[m.cross].End(), m.at)
	case m.prev != none:
		at = r.p.moment(r.t, r.rc, m.prev, m.at)
	}
	if m.cross != none {
		at = max(at, r.p.moment(r.t, r.rc, m.cross, m.at))
	}
	r.queue.push(coming{at, marking, n, n})
}

// pass makes the call of a mark.
func (r *arriving) pass(n int32) {
	m := &r.marks[n]
	if m.event == none {
		s := r.p.w.EventWaits[m.wait].Stream
		r.held[s] = append(r.held[s], m.wait)
		return
	}
	r.passed[m.event], r.before[m.event] = true, r.until(r.p.w.Events[m.event].Stream)
}

// until returns the operations after which a command comes that comes to a stream now: the
// last one on the stream, and those for which the stream waits.
func (r *arriving) until(stream int32) (out []int32) {
	if last := r.lastOf(stream); last != none {
		out = append(out, last)
	}
	for _, n := range r.held[stream] {
		for _, on := range r.waitedFor(n) {
			out = r.with(out, on)
		}
	}
	return out
}

// with adds an operation to those before an event, which have the latest one of each stream:
// events that are before each other in turns would collect all there are.
func (r *arriving) with(ops []int32, op int32) []int32 {
	stream := r.p.w.Ops[op].Stream
	n := slices.IndexFunc(ops, func(o int32) bool { return r.p.w.Ops[o].Stream == stream })
	switch {
	case n >= 0 && r.t.opEnd[op] > r.t.opEnd[ops[n]]:
		ops[n] = op
	case n < 0 && len(ops) < mostUntil:
		return append(ops, op)
	}
	return ops
}

// mostUntil bounds how many operations before an event are remembered. A wait of a stream takes
// as long as waitLooks looks, see mostLooks.
const (
	mostUntil = 16
	waitLooks = 8
)

// waitedFor returns the operations for which a wait for an event is. If the call of the event
// has not been made, it is made now.
func (r *arriving) waitedFor(wait int32) (out []int32) {
	e := &r.p.w.EventWaits[wait]
	of := none
	if r.dynamic[e.Event] {
		out = append(out, r.beforeEvent(e.Event)...)
		of = r.p.w.Events[e.Event].Stream
	}
	for _, on := range e.On {
		if on = r.unless(on, of); on != none {
			out = append(out, on)
		}
	}
	r.looks += waitLooks + len(out)
	return out
}

// unless returns the operation for which one waits that waited for on in the recording, or none
// if there is none, or if on is of a stream.
func (r *arriving) unless(on, stream int32) int32 {
	if r.p.w.Ops[on].Stream == stream {
		return none
	}
	return r.instead(on)
}

// beforeEvent returns the operations before an event: until its call, or until now if that has
// not been made.
func (r *arriving) beforeEvent(event int32) []int32 {
	if r.passed[event] {
		return r.before[event]
	}
	if last := r.lastOf(r.p.w.Events[event].Stream); last != none {
		return []int32{last}
	}
	return nil
}
