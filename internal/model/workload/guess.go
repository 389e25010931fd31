package workload

import (
	"cmp"
	"slices"
	"time"
)

// Bounds of what is tried for a wait of which the trace tells only the time.
const (
	mostStreams = 8  // all streams may wait for all others
	mostBack    = 64 // operations of a stream that the recorded times rule out
	mostTries   = 10_000_000
)

// guess sets Workload.Least and Workload.Most, if they differ from Waits. In these, told
// are the waits that the trace names, and shown those that its times show.
func (r *resolver) guess(told, shown, possible []Wait) {
	most := slices.Concat(r.w.Waits, possible, r.possible())
	if r.w.Most = sortWaits(most); slices.Equal(r.w.Most, r.w.Waits) {
		r.w.Most = nil
	}
	least := slices.Concat(told, slices.DeleteFunc(shown, r.ofTwoThreads))
	if r.w.Least = sortWaits(least); slices.Equal(r.w.Least, r.w.Waits) {
		r.w.Least = nil
	} else if r.w.Least == nil {
		r.w.Least = []Wait{}
	}
}

func sortWaits(w []Wait) []Wait {
	slices.SortFunc(w, func(x, y Wait) int { return cmp.Or(cmp.Compare(x.Op, y.Op), cmp.Compare(x.On, y.On)) })
	return slices.Clip(slices.Compact(w))
}

// ofTwoThreads reports whether two threads launched the operations of a wait, so that
// their order may be another one when calls take longer.
func (r *resolver) ofTwoThreads(w Wait) bool {
	a, b := r.w.Ops[w.Op].Call, r.w.Ops[w.On].Call
	return a != None && b != None && r.w.Calls[a].Thread != r.w.Calls[b].Thread
}

// possible returns all dependencies that the waits may be of which the trace does not tell
// the event: of the next operation of each stream that may wait for the last one of each
// other stream that was launched before an event was recorded.
func (r *resolver) possible() (out []Wait) {
	var event time.Duration
	events := false
	for i := range r.marks {
		m := &r.marks[i]
		switch {
		case m.kind == EventRecord:
			event, events = m.at, true
		case m.told || !events:
		case m.stream != None:
			_, op := around(r.streams, m.stream, m.at)
			out = r.mayWait(out, op, event)
		case len(r.w.Streams) <= mostStreams:
			for s := range r.w.Streams {
				_, op := around(r.streams, int32(s), m.at)
				out = r.mayWait(out, op, event)
			}
		default:
			_, op := around(r.threads, m.thread, m.at)
			out = r.mayWait(out, op, event)
		}
		if len(out) > MaxRecords || r.tries > mostTries {
			return out
		}
	}
	return out
}

// mayWait adds a dependency of an operation on the last one of each other stream that was
// launched before an event and that the recorded times allow.
func (r *resolver) mayWait(out []Wait, op int32, event time.Duration) []Wait {
	if op == None {
		return out
	}
	o := &r.w.Ops[op]
	for s := range min(len(r.w.Streams), mostStreams) {
		if int32(s) == o.Stream {
			continue
		}
		at := event
		for range mostBack {
			r.tries++
			on, _ := around(r.streams, int32(s), at)
			if on == None {
				break
			}
			before := &r.w.Ops[on]
			if before.End() <= o.Start && before.Start < o.Start {
				out = append(out, Wait{Op: op, On: on})
				break
			}
			if at = before.Start; before.Call != None {
				at = r.w.Calls[before.Call].Start
			}
		}
	}
	return out
}
