package workload

import (
	"cmp"
	"slices"
	"sort"
	"time"
)

// following follows commands of streams, events and waits among them, in the order in which
// the host made the calls.
type following struct {
	r      *resolver
	behind [][]int32           // by stream: those whose earlier work its commands wait for
	all    bool                // see follow
	before map[int32][]int32   // by mark of an event: the operations that are before it, one of each stream
	held   map[int32][]waiting // by stream: its waits by time
	waits  []Wait
	awaits []Await
	events map[int32]int32 // by mark of a wait: that of its event
	synced map[int32]int32 // by call that waits for an event: the mark of that
	// mistaken counts waits for events that the recorded times contradict.
	mistaken int
	followed int // operations before events so far, see maxFollow
}

// waiting is a wait of a stream for operations of others.
type waiting struct {
	at time.Duration
	on []int32
}

// Bounds of what a hostile trace makes following look at: operations before an event, streams
// that a stream waits for without a call, and all operations before events.
const (
	maxBefore = 16
	maxBehind = 64
	maxFollow = 4 * MaxRecords
)

// nameStreams tells the marks their streams, as far as the trace does.
func (r *resolver) nameStreams() {
	for i := range r.awaited {
		a := &r.awaited[i]
		event := r.mark(a.Process, a.Event)
		if a.Event != 0 && event != nil && event.kind == EventRecord {
			if a.From == None {
				a.From = r.eventStream(a.Process, a.Event)
			}
			event.stream = a.From
		}
		if m := r.mark(a.Process, a.Corr); m != nil && m.kind == StreamWait {
			m.stream = a.Stream
			m.told = a.Stream != None && event != nil && event.kind == EventRecord && event.stream != None
		}
	}
}

// recorded resolves the waits of which the trace tells more than the time.
func (r *resolver) recorded() {
	f := r.follow(r.behind, false)
	r.keepEvents(f)
	r.w.Waits, r.w.Awaits, r.mistaken = append(r.w.Waits, f.waits...), f.awaits, f.mistaken
	if slices.Equal(r.w.MostAwaits, f.awaits) {
		r.w.MostAwaits = nil
	}
}

// follow finds for what the waits wait of which the trace tells more than the time. A command
// of a stream comes after the work of those that it is behind. Whether a host that waits for a
// blocking stream waits for earlier work of the default stream, too, CUDA does not say: all
// tells to assume so.
func (r *resolver) follow(behind [][]int32, all bool) *following {
	f := &following{r: r, behind: behind, all: all, before: map[int32][]int32{}, held: map[int32][]waiting{}, events: map[int32]int32{}, synced: map[int32]int32{}}
	var syncs []*Awaited
	for i := range r.awaited {
		a := &r.awaited[i]
		n := r.markIndex(a.Process, a.Corr)
		if n == None || r.marks[n].kind != StreamWait {
			syncs = append(syncs, a)
		} else if r.marks[n].told {
			f.events[n] = r.markIndex(a.Process, a.Event)
		}
	}
	for i := range r.marks {
		switch m := &r.marks[i]; {
		case m.stream == None:
		case m.kind == EventRecord:
			f.before[int32(i)] = f.reach(m.stream, m.at, true)
		case m.told:
			f.wait(m, f.before[f.events[int32(i)]])
		}
	}
	for _, a := range syncs {
		f.sync(a)
	}
	slices.SortFunc(f.awaits, func(x, y Await) int { return cmp.Or(cmp.Compare(x.Call, y.Call), cmp.Compare(x.On, y.On)) })
	f.awaits = slices.Clip(slices.Compact(f.awaits))
	return f
}

// reach returns the operations after which a command of a stream at a time comes: the last
// ones on the stream and, if others is set, on those that it is behind, and those of waits since
// then.
func (f *following) reach(stream int32, at time.Duration, others bool) (out []int32) {
	r := f.r
	since := time.Duration(never)
	if last, _ := around(r.streams, stream, at); last != None {
		out, since = append(out, r.ends[last]), r.launchedAt(last)
	}
	if f.followed += len(out); f.followed > maxFollow {
		return out
	}
	var behind []int32
	if others && f.behind != nil {
		behind = f.behind[stream]
	}
	for _, other := range behind[:min(len(behind), maxBehind)] {
		if last, _ := around(r.streams, other, at); last != None && len(out) < maxBefore {
			out = append(out, r.ends[last])
		}
	}
	held := f.held[stream]
	n := sort.Search(len(held), func(i int) bool { return held[i].at >= at })
	for n--; n >= 0 && held[n].at > since && len(out) < maxBefore; n-- {
		out = append(out, held[n].on...)
	}
	out = f.latest(out)
	f.followed += len(out)
	return out
}

// latest keeps the operation of each stream that was launched last, in their order.
func (f *following) latest(ops []int32) []int32 {
	out := ops[:0]
	for _, op := range ops {
		same := slices.IndexFunc(out, func(o int32) bool { return f.r.w.Ops[o].Stream == f.r.w.Ops[op].Stream })
		switch {
		case same < 0 && len(out) < maxBefore:
			out = append(out, op)
		case same >= 0 && f.r.launchedAt(op) > f.r.launchedAt(out[same]):
			out[same] = op
		}
	}
	return out
}

// wait makes the next operation of a stream wait for others, and what waits for the stream.
func (f *following) wait(m *mark, on []int32) {
	if len(on) == 0 {
		return
	}
	f.held[m.stream] = append(f.held[m.stream], waiting{m.at, on})
	_, op := around(f.r.streams, m.stream, m.at)
	for i, o := range on {
		switch {
		case op == None || f.r.w.Ops[op].Stream == f.r.w.Ops[o].Stream:
		case f.r.allows(op, o):
			f.waits = append(f.waits, Wait{Op: op, On: o})
		case i == 0:
			f.mistaken++
		}
	}
}

// sync tells a synchronisation for what it waits.
func (f *following) sync(a *Awaited) {
	r := f.r
	found := find(r.calls, a.Process, a.Corr)
	if len(found) == 0 {
		return
	}
	call := found[0].call
	c := &r.w.Calls[call]
	if c.Stream = a.Stream; c.Stream == None {
		c.Stream = a.From
	}
	var on []int32
	event := r.markIndex(a.Process, a.Event)
	told := a.Event != 0 && event != None && r.marks[event].kind == EventRecord && r.marks[event].stream != None
	switch {
	case told:
		f.synced[call] = event
		if on = f.before[event]; len(on) == 0 {
			c.Event = Nothing
			return
		}
		c.Event = on[0]
	case c.Stream != None && c.Kind == StreamSync:
		on = f.reach(c.Stream, c.Start, f.all || r.defaults[c.Stream])
	}
	for _, o := range on {
		if told && o != on[0] || !told && r.w.Ops[o].Stream != c.Stream {
			f.awaits = append(f.awaits, Await{Call: call, On: o})
		}
	}
}

// launchedAt returns when the host launched an operation.
func (r *resolver) launchedAt(op int32) time.Duration {
	if call := r.w.Ops[op].Call; call != None {
		return r.w.Calls[call].Start
	}
	return r.w.Ops[op].Start
}
