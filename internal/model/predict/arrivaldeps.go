package predict

import (
	"math"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// earliest is the earliest time of an event, and the operation that allows it no earlier, or
// none.
type earliest struct {
	at time.Duration
	by int32
}

// after delays the event to a time that an operation allows.
func (e *earliest) after(at time.Duration, by int32) {
	if at > e.at {
		e.at, e.by = at, by
	}
}

// endOfOp returns when an operation ends that comes to its stream now.
func (r *arriving) endOfOp(i int32) time.Duration {
	p, rc := r.p, r.rc
	op, d := &p.w.Ops[i], p.Op(i)
	start := earliest{math.MinInt64, none}
	if d.Free {
		start.at = op.Start
	}
	if d.Cross != none && !r.came[d.Cross] && p.launched(d.Cross) >= p.launched(i) {
		// It was launched later in the recording, too, so no call made this one wait for it:
		// the device was full, or the two met by chance.
		d.LaunchLag, d.Cross = op.Start-p.launched(i), none
	}
	if p.graphOf(rc, op.Call) != none {
		d.PrevLag, d.LaunchLag = min(d.PrevLag, p.streamLag), min(d.LaunchLag, p.launchLag)
	}
	if op.Call != none {
		start.after(r.t.callStart[op.Call]+d.LaunchLag+p.launchCost(rc, op.Call), none)
	}
	r.afterStream(i, &d, &start)
	r.afterHeld(i, &d, &start)
	r.afterWaits(i, &d, &start)
	r.afterBehind(i, &d, &start)
	if r.t.opBy != nil {
		r.t.opBy[i] = start.by
	}
	return start.at + rc.added(op) + rc.duration(op)
}

// afterOp delays operation i after another one. Without added latency that delays it no more
// than in the recording.
func (r *arriving) afterOp(i, on int32, lag time.Duration, start *earliest) {
	if on == none {
		return
	}
	if r.rank[on] < r.rank[i] {
		lag = min(lag, r.p.w.Ops[i].Start-r.p.w.Ops[on].End())
	}
	start.after(r.t.opEnd[on]+lag, on)
}

// afterStream delays operation i after those before it on its stream.
func (r *arriving) afterStream(i int32, d *OpDeps, start *earliest) {
	w, prev := r.p.w, r.last[r.p.w.Ops[i].Stream]
	if prev == none {
		return
	}
	if prev == d.Prev {
		start.after(r.t.opEnd[prev]+d.PrevLag, prev)
		return
	}
	r.afterOp(i, prev, r.p.streamLag, start)
	if end := r.lastOf(w.Ops[i].Stream); end != prev && w.Ops[prev].Call != w.Ops[i].Call {
		r.afterOp(i, end, r.p.crossLag, start)
	}
}

// afterHeld delays operation i, the first one behind waits of its stream, after the events for
// which these are.
func (r *arriving) afterHeld(i int32, d *OpDeps, start *earliest) {
	s := r.p.w.Ops[i].Stream
	for _, n := range r.held[s] {
		for _, on := range r.waitedFor(n) {
			if i == r.p.w.EventWaits[n].Op && on == d.Cross {
				start.after(r.t.opEnd[on]+d.CrossLag, on)
			} else {
				r.afterOp(i, on, r.p.crossLag, start)
			}
		}
	}
	r.held[s] = r.held[s][:0]
}

// afterWaits delays operation i after those of other streams of which the order of threads
// does not decide whether it waits for them.
func (r *arriving) afterWaits(i int32, d *OpDeps, start *earliest) {
	if on := d.Cross; on != none && !r.moves(i, on) {
		if r.came[on] {
			start.after(r.t.opEnd[on]+d.CrossLag, on)
		} else {
			r.afterOp(i, r.instead(on), r.p.crossLag, start)
		}
	}
	for on, lag := range r.p.StreamWaits(i) {
		switch {
		case r.moves(i, on):
		case r.came[on]:
			start.after(r.t.opEnd[on]+lag, on)
		default:
			r.afterOp(i, r.instead(on), r.p.crossLag, start)
		}
	}
}

// instead returns the operation for which one waits that waited for on in the recording: on, or
// if that has not come yet, the last one on its stream.
func (r *arriving) instead(on int32) int32 {
	if r.came[on] {
		return on
	}
	return r.lastOf(r.p.w.Ops[on].Stream)
}

// moves reports whether the order of threads decides whether operation i waits for on: the
// wait is for an event, or their streams wait for each other without a call.
func (r *arriving) moves(i, on int32) bool {
	w := r.p.w
	if r.moving.has(i, on) {
		return true
	}
	a, b := &w.Ops[i], &w.Ops[on]
	if w.Behind == nil || a.Call == none || b.Call == none || w.Calls[a.Call].Thread == w.Calls[b.Call].Thread {
		return false
	}
	return slices.Contains(w.Behind[a.Stream], b.Stream)
}

// afterBehind delays operation i after the work of the streams that its own is behind.
func (r *arriving) afterBehind(i int32, d *OpDeps, start *earliest) {
	w := r.p.w
	if w.Behind == nil {
		return
	}
	for _, s := range w.Behind[w.Ops[i].Stream] {
		r.looks++
		switch on := r.lastOf(s); {
		case on != none && on == d.Cross:
			start.after(r.t.opEnd[on]+d.CrossLag, on)
		default:
			r.afterOp(i, on, r.p.crossLag, start)
		}
	}
}

// endOfCall returns when a call ends whose operations have come.
func (r *arriving) endOfCall(i int32) time.Duration {
	p, c, cp := r.p, &r.p.w.Calls[i], &r.p.calls[i]
	if end, ok := p.changedEnd(r.t, r.rc, i); ok {
		return end
	}
	least := cp.least
	if on := cp.block; on != none && !r.came[on] && !r.order(c) && p.launched(on) >= c.Start {
		least = c.Dur // it waited for work that another thread launched meanwhile, or by chance
	}
	end := earliest{r.t.callStart[i] + p.hostTime(r.rc, i, least), none}
	switch {
	case c.Kind == workload.DeviceSync:
		r.afterDevice(i, &end)
	case r.ofEvent(c):
		r.afterAwaited(i, r.beforeEvent(c.Record), &end)
	case r.order(c):
		r.afterAwaited(i, r.until(c.Stream), &end)
	}
	r.afterRecorded(i, &end)
	if r.t.callBy != nil {
		r.t.callBy[i] = end.by
	}
	return end.at
}

// ofEvent reports whether a call waits for an event of which the order of threads decides what
// is before it.
func (r *arriving) ofEvent(c *workload.Call) bool {
	return c.Record != none && int(c.Record) < len(r.dynamic) && r.dynamic[c.Record]
}

// order reports whether the order of threads decides for which operation a call waits.
func (r *arriving) order(c *workload.Call) bool {
	return c.Kind == workload.DeviceSync || r.ofEvent(c) || c.Kind == workload.StreamSync && c.Event == none && c.Stream != none
}

// afterAwaited delays the end of call i after operations. Without added latency that delays it
// no more than in the recording.
func (r *arriving) afterAwaited(i int32, ops []int32, end *earliest) {
	for _, on := range ops {
		lag := r.returns(i, on)
		if w := r.p.w; lag < 0 && w.Calls[i].Kind == workload.StreamSync && w.Ops[on].Stream != w.Calls[i].Stream {
			lag = min(w.Calls[i].Dur, syncReturn) // the stream did not wait for this yet
		}
		end.after(r.t.opEnd[on]+lag+r.rc.sync, on)
	}
}

// returns is how long after the end of an operation call i returns that waits for it.
func (r *arriving) returns(i, on int32) time.Duration {
	w, c, cp := r.p.w, &r.p.w.Calls[i], &r.p.calls[i]
	lag := min(c.Dur, syncReturn)
	if cp.waited {
		lag = c.End() - w.Ops[cp.block].End()
	}
	switch {
	case on == cp.block:
		return lag
	case r.p.launched(on) <= c.Start || w.Ops[on].Call == none:
		return min(lag, c.End()-w.Ops[on].End())
	}
	return min(lag, syncReturn)
}

// afterDevice delays the end of a device's synchronisation after all work that has come.
func (r *arriving) afterDevice(i int32, end *earliest) {
	thread := r.p.w.Calls[i].Thread
	process := r.process[thread]
	left := r.running[process][:0]
	for _, s := range r.running[process] {
		r.looks++
		if r.beyond[reach{thread, process, r.p.w.Streams[s].Device}] {
			left = append(left, s)
			continue
		}
		on := r.lastOf(s)
		if r.t.opEnd[on]+syncReturn+r.rc.sync <= r.t.callStart[i] {
			r.runs[s] = false // for later synchronisations, too
			continue
		}
		left = append(left, s)
		r.afterAwaited(i, []int32{on}, end)
	}
	r.running[process] = left
}

// afterRecorded delays the end of call i after the operations for which it waited in the
// recording, where the order of threads does not decide that.
func (r *arriving) afterRecorded(i int32, end *earliest) {
	p, c := r.p, &r.p.w.Calls[i]
	for on, lag := range p.Waits(i) {
		op := &p.w.Ops[on]
		switch {
		case c.Kind == workload.DeviceSync && !r.beyond[reach{c.Thread, r.process[c.Thread], p.w.Streams[op.Stream].Device}]:
		case r.ofEvent(c) && op.Stream == p.w.Events[c.Record].Stream:
		case r.came[on]:
			end.after(r.t.opEnd[on]+lag+r.rc.sync, on)
		case !r.order(c) && p.launched(on) < c.Start:
			r.afterAwaited(i, r.until(op.Stream), end)
		}
	}
}
