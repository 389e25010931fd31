package workload

import (
	"slices"
	"time"
)

// The events and waits here are for replays in which threads come to the device in another
// order than in the recording. A wait can then be for another operation, too.

// Event is a call that recorded an event on a stream.
type Event struct {
	At             time.Duration
	Thread, Stream int32 // indices into Workload.Threads and Workload.Streams
}

// EventWait is a call that made a stream wait for an event of another stream.
type EventWait struct {
	At             time.Duration
	Thread, Stream int32 // indices into Workload.Threads and Workload.Streams
	Event          int32 // index into Workload.Events
	Op             int32 // index into Workload.Ops of the first operation behind the wait, or None
	// On are the operations before the event, of its stream and of those for which that one
	// waited: indices into Workload.Ops.
	On []int32
}

// keepEvents keeps the calls that record events and wait for them.
func (r *resolver) keepEvents(f *following) {
	if len(r.w.Threads) < 2 {
		return
	}
	number := map[int32]int32{} // by mark
	for i := range r.marks {
		m := &r.marks[i]
		event, waits := f.events[int32(i)]
		switch {
		case m.stream == None:
		case m.kind == EventRecord:
			number[int32(i)] = int32(len(r.w.Events))
			r.w.Events = append(r.w.Events, Event{m.at, m.thread, m.stream})
		case waits && r.marks[event].stream != m.stream:
			if n, ok := number[event]; ok {
				r.keepWait(m, n, f.before[event])
			}
		}
	}
	for call, event := range f.synced {
		if n, ok := number[event]; ok {
			r.w.Calls[call].Record = n
		}
	}
}

// keepWait keeps a wait for an event, unless the recorded times contradict it.
func (r *resolver) keepWait(m *mark, event int32, before []int32) {
	_, op := around(r.streams, m.stream, m.at)
	on := slices.DeleteFunc(slices.Clone(before), func(o int32) bool {
		return r.w.Ops[o].Stream == m.stream || op != None && !r.allows(op, o)
	})
	if len(on) > 0 || len(before) == 0 {
		r.w.EventWaits = append(r.w.EventWaits, EventWait{m.at, m.thread, m.stream, event, op, on})
	}
}

// setBehind tells that commands of a stream wait for earlier work of another one.
func (w *Workload) setBehind(stream, other int32) {
	if w.Behind == nil {
		w.Behind = make([][]int32, len(w.Streams))
	}
	if of := w.Behind[stream]; len(of) < maxBehind {
		w.Behind[stream] = append(of, other)
	}
}
