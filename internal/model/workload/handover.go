package workload

import (
	"cmp"
	"slices"
)

// Handover tells that a call of one thread came after one of another: it, or what the thread
// did just before, waited for an event that the other thread had recorded. Both are indices
// into Workload.Calls.
type Handover struct{ Call, After int32 }

// handovers finds the threads that the recorded waits link.
func (r *resolver) handovers() {
	if len(r.w.Threads) < 2 {
		return
	}
	calls := make([]launch, len(r.w.Calls))
	for i := range r.w.Calls {
		c := &r.w.Calls[i]
		calls[i] = launch{c.Thread, c.Start, int32(i)}
	}
	slices.SortFunc(calls, func(x, y launch) int {
		return cmp.Or(cmp.Compare(x.queue, y.queue), cmp.Compare(x.at, y.at), cmp.Compare(x.op, y.op))
	})
	for i := range r.awaited {
		a := &r.awaited[i]
		event := r.mark(a.Process, a.Event)
		if a.Event == 0 || event == nil || event.kind != EventRecord {
			continue
		}
		thread, call := None, None
		if m := r.mark(a.Process, a.Corr); m != nil && m.kind == StreamWait {
			thread = m.thread
			_, call = around(calls, thread, m.at)
		} else if found := find(r.calls, a.Process, a.Corr); len(found) > 0 {
			call = found[0].call
			thread = r.w.Calls[call].Thread
		}
		if after, _ := around(calls, event.thread, event.at); call != None && after != None && thread != event.thread && after < call {
			r.w.Handovers = append(r.w.Handovers, Handover{Call: call, After: after})
		}
	}
	// Of several for one call, the last is for the call that ended last.
	slices.SortFunc(r.w.Handovers, func(x, y Handover) int {
		return cmp.Or(cmp.Compare(x.Call, y.Call), cmp.Compare(r.w.Calls[x.After].End(), r.w.Calls[y.After].End()), cmp.Compare(x.After, y.After))
	})
}
