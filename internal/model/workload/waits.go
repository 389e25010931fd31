package workload

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"strings"
	"time"
)

// Awaited is what a trace tells of a call that waits: a synchronisation or a
// cudaStreamWaitEvent.
type Awaited struct {
	Process uint64
	Corr    uint32 // of the call that waits
	// Stream is the stream that a cudaStreamWaitEvent makes wait, or the one that a
	// synchronisation waits for; None if the trace does not tell.
	Stream int32
	Event  uint32 // correlation of the call that recorded the event; 0 if the trace does not tell
	From   int32  // the stream on which the event was recorded, or None
}

// mark is a call that records an event or makes a stream wait for one.
type mark struct {
	at      time.Duration
	process uint64
	corr    uint32
	thread  int32
	stream  int32 // the stream that waits or on which the event is recorded, or None if the trace does not tell
	kind    MarkKind
	told    bool // the trace tells for what the call waits
}

// eventRecord is the stream on which a call recorded an event.
type eventRecord struct {
	process uint64
	corr    uint32
	stream  int32
}

// launch is an operation and when the host launched it.
type launch struct {
	queue int32 // stream or thread
	at    time.Duration
	op    int32
}

// resolver turns calls that wait for events into dependencies between operations.
type resolver struct {
	w        *Workload
	calls    []key  // from flatten
	marks    []mark // by time
	byCorr   []int32
	events   []eventRecord
	awaited  []Awaited
	streams  []launch // by stream and time of the launch
	threads  []launch // by thread and time of the launch
	defaults map[int32]bool
	behind   [][]int32     // by stream: those whose earlier work its commands wait for
	perhaps  [][]int32     // the same with those for which they may
	mistaken int           // recorded waits that the recorded times contradict
	rounded  time.Duration // resolution of the recorded times
	tries    int           // see mostTries
	lag      time.Duration // a launch that nothing held up starts its operation this late
	ends     []int32       // see GraphEnds
}

func newResolver(b *Builder, base time.Duration, calls []key) *resolver {
	r := &resolver{w: &b.w, calls: calls, marks: b.marks, events: b.events, awaited: b.waits}
	for i := range r.marks {
		r.marks[i].at -= base
	}
	for i := range b.queries {
		b.queries[i].start -= base
		b.queries[i].end -= base
	}
	slices.SortStableFunc(r.marks, func(x, y mark) int { return cmp.Compare(x.at, y.at) })
	r.byCorr = make([]int32, len(r.marks))
	for i := range r.byCorr {
		r.byCorr[i] = int32(i)
	}
	slices.SortStableFunc(r.byCorr, func(x, y int32) int { return compareCorr(&r.marks[x], r.marks[y].process, r.marks[y].corr) })
	slices.SortStableFunc(r.events, func(x, y eventRecord) int {
		return cmp.Or(cmp.Compare(x.process, y.process), cmp.Compare(x.corr, y.corr))
	})
	return r
}

func compareCorr(m *mark, process uint64, corr uint32) int {
	return cmp.Or(cmp.Compare(m.process, process), cmp.Compare(m.corr, corr))
}

// resolve sets Workload.Waits and what the synchronisations wait for.
func (r *resolver) resolve(b *Builder) {
	if len(r.w.Streams) < 2 && len(r.awaited) == 0 && len(r.marks) == 0 && len(b.queries) < leastSpin {
		return
	}
	r.ends = r.w.GraphEnds()
	r.sortLaunches()
	r.spins(b.queries)
	r.nameStreams()
	r.infer()
	inferred := r.w.Waits
	explained := sortWaits(append(slices.Clone(inferred), r.follow(nil, false).waits...))
	r.w.Waits = nil
	shown, possible := r.implicit(b.types, explained)
	if slices.ContainsFunc(r.perhaps, func(of []int32) bool { return len(of) > 0 }) {
		most := r.follow(r.perhaps, true)
		possible, r.w.MostAwaits = append(possible, most.waits...), most.awaits
	}
	r.recorded()
	r.handovers()
	told := slices.Clone(r.w.Waits)
	r.w.Waits = sortWaits(slices.Concat(told, shown, inferred))
	r.guess(told, shown, possible)
	if r.mistaken > 0 {
		r.w.Report.Note("%d waits of a stream for an event contradict the recorded times and were left out", r.mistaken)
	}
}

// sortLaunches orders the operations by launch, for each stream and each thread.
func (r *resolver) sortLaunches() {
	ops := r.w.Ops
	r.streams = make([]launch, 0, len(ops))
	r.threads = make([]launch, 0, len(ops))
	for i := range ops {
		op := &ops[i]
		at := op.Start
		if op.Call != None {
			c := &r.w.Calls[op.Call]
			at = c.Start
			r.threads = append(r.threads, launch{c.Thread, at, int32(i)})
		}
		r.streams = append(r.streams, launch{op.Stream, at, int32(i)})
	}
	for _, l := range [][]launch{r.streams, r.threads} {
		slices.SortFunc(l, func(x, y launch) int {
			return cmp.Or(cmp.Compare(x.queue, y.queue), cmp.Compare(x.at, y.at), cmp.Compare(x.op, y.op))
		})
	}
}

// around returns the last operation that was launched on a queue before t, and the
// first one that was launched from t on.
func around(l []launch, queue int32, t time.Duration) (before, from int32) {
	before, from = None, None
	n := sort.Search(len(l), func(i int) bool { return l[i].queue > queue || l[i].queue == queue && l[i].at >= t })
	if n > 0 && l[n-1].queue == queue {
		before = l[n-1].op
	}
	if n < len(l) && l[n].queue == queue {
		from = l[n].op
	}
	return before, from
}

// mark returns the mark with a correlation number, or nil.
func (r *resolver) mark(process uint64, corr uint32) *mark {
	n := r.markIndex(process, corr)
	if n == None {
		return nil
	}
	return &r.marks[n]
}

func (r *resolver) markIndex(process uint64, corr uint32) int32 {
	n, ok := sort.Find(len(r.byCorr), func(i int) int { return -compareCorr(&r.marks[r.byCorr[i]], process, corr) })
	if !ok {
		return None
	}
	return r.byCorr[n]
}

// eventStream returns the stream on which a call recorded an event, or None.
func (r *resolver) eventStream(process uint64, corr uint32) int32 {
	n, ok := sort.Find(len(r.events), func(i int) int {
		return cmp.Or(cmp.Compare(process, r.events[i].process), cmp.Compare(corr, r.events[i].corr))
	})
	if !ok {
		return None
	}
	return r.events[n].stream
}

// add adds a dependency, unless the recorded times contradict it.
func (r *resolver) add(op, on int32) bool {
	if op == None || r.w.Ops[op].Stream == r.w.Ops[on].Stream {
		return true // nothing was launched behind the wait, or the stream's order suffices
	}
	if !r.allows(op, on) {
		return false
	}
	r.w.Waits = append(r.w.Waits, Wait{Op: op, On: on})
	return true
}

// allows reports whether by the recorded times one operation may have waited for another.
func (r *resolver) allows(op, on int32) bool {
	return r.w.Ops[on].End() <= r.w.Ops[op].Start+roundedTime && r.w.Ops[on].Start <= r.w.Ops[op].Start
}

// infer resolves the waits whose event the trace does not tell, as is usual unless
// the profiler was asked for it. A program records the event after the work that a
// thread launched last and then launches the work that waits: these two are on
// different streams. Of several waits in a row the first is for the latest event, the
// second for the latest of another stream, and so on.
func (r *resolver) infer() {
	threads := make([]inferred, len(r.w.Threads))
	for i := range threads {
		threads[i].latest = None
	}
	next := 0
	name := func(until time.Duration) {
		for ; next < len(r.w.Calls) && r.w.Calls[next].Start < until; next++ {
			c := &r.w.Calls[next]
			if c.Kind == StreamSync && strings.Contains(r.w.Names[c.Name], "EventSynchronize") {
				c.Latest = threads[c.Thread].latest
			}
		}
	}
	defer name(math.MaxInt64)
	for i := range r.marks {
		m := &r.marks[i]
		name(m.at)
		t := &threads[m.thread]
		before, from := around(r.threads, m.thread, m.at)
		if before != None {
			before = r.ends[before]
		}
		if m.kind == EventRecord {
			t.record(r.w, before)
			t.latest = before
			continue
		}
		if m.stream != None {
			_, from = around(r.streams, m.stream, m.at)
		}
		on := t.next(before)
		if !m.told && from != None && on != None {
			r.add(from, on)
		}
	}
}

// inferred is what the calls of one thread tell so far.
type inferred struct {
	events []int32 // the last operation before the latest event of each stream, the latest last
	waits  int     // since the latest event or launch
	before int32   // the operation that was launched before the latest wait
	latest int32   // the last operation before the latest event, or None
}

// maxEvents bounds how many streams with events are remembered.
const maxEvents = 8

func (t *inferred) record(w *Workload, op int32) {
	if t.waits = 0; op == None {
		return
	}
	t.events = slices.DeleteFunc(t.events, func(e int32) bool { return w.Ops[e].Stream == w.Ops[op].Stream })
	if len(t.events) == maxEvents {
		t.events = slices.Delete(t.events, 0, 1)
	}
	t.events = append(t.events, op)
}

// next returns the operation before the event for which a wait is, and before which the
// thread launched before.
func (t *inferred) next(before int32) int32 {
	if t.before != before {
		t.before, t.waits = before, 0
	}
	t.waits++
	if t.waits > len(t.events) {
		return None
	}
	return t.events[len(t.events)-t.waits]
}
