package predict

import (
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// machine simulates a program, apart from the predictor: it takes the thread that is first at
// each turn, and streams, events and synchronisations are those of CUDA. With out it
// records a trace that tells all waits.
type machine struct {
	traits
	*drawn
	delta time.Duration
	out   *recorder

	now         []time.Duration // by thread
	done        []int           // by thread: actions
	entered     []bool          // by thread: it is in a call whose launch takes effect now
	streams     map[int]*queueOf
	events      map[int]*eventOf
	signalled   map[int]time.Duration
	first, last time.Duration // first launch, last end
	started     bool
}

// traits are what a machine does that the predictor does not know, or not always.
type traits struct {
	untold bool // the trace tells for nothing what waits for it
	graphs bool // half of the launches are those of CUDA graphs of three kernels
	late   bool // a launch takes effect at any moment of its call, which the trace does not tell
}

// queueOf is a stream: the end of its last operation, and the least start of the next one by
// waits.
type queueOf struct {
	end, wait time.Duration
	used      bool
}

// eventOf is a recorded event.
type eventOf struct {
	at     time.Duration
	corr   uint32
	stream int
}

const (
	simMark   = 500 * time.Nanosecond // a call that records an event or waits for one
	simHanded = 4 * us                // until a thread goes on that awaited another one
)

// run returns the time from the first launch to the last end.
func (m *machine) run() time.Duration {
	m.now, m.done = make([]time.Duration, len(m.threads)), make([]int, len(m.threads))
	m.entered = make([]bool, len(m.threads))
	m.streams, m.events, m.signalled = map[int]*queueOf{}, map[int]*eventOf{}, map[int]time.Duration{}
	for th := m.next(); th >= 0; th = m.next() {
		a := &m.threads[th][m.done[th]]
		if m.late && a.launches() {
			into := time.Duration(a.effect * float64(a.call))
			if m.entered[th] = !m.entered[th]; m.entered[th] {
				m.now[th] += into
				continue
			}
			m.now[th] -= into
		}
		m.done[th]++
		m.act(th, a)
	}
	if m.out != nil {
		m.tellTypes()
	}
	return m.last - m.first
}

// next returns the thread that is first, or -1.
func (m *machine) next() int {
	best := -1
	for th, actions := range m.threads {
		if m.done[th] == len(actions) {
			continue
		}
		if a := &actions[m.done[th]]; a.kind == awaits {
			at, ok := m.signalled[a.event]
			if !ok {
				continue
			}
			m.now[th] = max(m.now[th], at+simHanded)
		}
		if best < 0 || m.now[th] < m.now[best] {
			best = th
		}
	}
	return best
}

func (m *machine) act(th int, a *action) {
	switch a.kind {
	case computes:
		m.now[th] += a.dur
	case launches, copies, copiesBack, copiesAndWaits:
		m.launch(th, a)
	case recordsEvent, waitsForEvent:
		m.mark(th, a)
	case syncsStream, syncsEvent, syncsDevice:
		m.sync(th, a)
	case signals:
		m.signalled[a.event] = m.now[th]
	case awaits:
	}
}

func (m *machine) queue(stream int) *queueOf {
	if m.streams[stream] == nil {
		m.streams[stream] = &queueOf{}
	}
	return m.streams[stream]
}

// behind returns the end of the work for which the default stream, or a blocking one, waits.
func (m *machine) behind(stream int) (end time.Duration) {
	for other, q := range m.streams {
		if m.legacy && other != stream && (stream == 7 || other == 7) && q.used {
			end = max(end, q.end)
		}
	}
	return end
}

// waiting returns the least start of work that waits for that until an end.
func waiting(end time.Duration) time.Duration {
	if end == 0 {
		return 0
	}
	return end + simWait
}

// call makes a call.
func (m *machine) call(th int, kind workload.CallKind, dur time.Duration) (corr uint32) {
	if m.out != nil {
		corr = m.out.launch(kind, th+1, m.now[th], dur)
	}
	m.now[th] += dur
	m.last = max(m.last, m.now[th])
	return corr
}

func (m *machine) launch(th int, a *action) {
	now, q, c := m.now[th], m.queue(a.stream), &m.costs
	if !m.started {
		m.first, m.started = now, true
	}
	launch, graph := c.Launch, m.graphs && a.kind == launches && a.effect < 0.5
	if graph {
		launch = c.GraphLaunch
	}
	start := max(now+a.lag+launch.At(m.delta), q.wait, waiting(m.behind(a.stream)))
	if q.used {
		start = max(start, q.end+simNext)
	}
	op, kind, term, dur := workload.Kernel, workload.Launch, c.Kernel, a.call
	switch a.kind { //nolint:exhaustive // the others do not copy
	case copies:
		op, kind, term = workload.CopyHtoD, workload.CopyCall, c.HtoD
	case copiesBack:
		op, kind, term = workload.CopyDtoH, workload.CopyCall, c.DtoH
	case copiesAndWaits:
		op, kind, term = workload.CopyDtoH, workload.SyncCopy, c.DtoH
	}
	if graph {
		m.graph(th, a, start)
		return
	}
	*q = queueOf{end: start + a.dur + term.At(m.delta), used: true}
	m.last = max(m.last, q.end)
	if a.kind == copiesAndWaits {
		dur = max(dur, q.end+simReturn+c.Sync.At(m.delta)-now)
	}
	corr := m.call(th, kind, dur)
	if m.out != nil {
		m.out.op(op, corr, a.stream, start, q.end-start)
	}
}

// graph launches a graph of three kernels.
func (m *machine) graph(th int, a *action, start time.Duration) {
	corr, q := m.call(th, workload.GraphLaunch, a.call), m.queue(a.stream)
	for range 3 {
		*q = queueOf{end: start + a.dur/3 + m.costs.GraphNode.At(m.delta), used: true}
		if m.out != nil {
			m.out.node(corr, a.stream, start, q.end)
		}
		start = q.end + simNext
	}
	m.last = max(m.last, q.end)
}

// number returns the index of a stream in the trace.
func (m *machine) number(stream int) int32 {
	i, _ := m.out.b.Stream(workload.Stream{ID: uint64(stream)})
	return i
}

// mark records an event or makes a stream wait for one.
func (m *machine) mark(th int, a *action) {
	var corr uint32
	if m.out != nil {
		m.out.corr++
		corr = m.out.corr
		thread, _ := m.out.b.Thread(workload.Thread{ID: uint64(th + 1)})
		kind := workload.EventRecord
		if a.kind == waitsForEvent {
			kind = workload.StreamWait
		}
		m.out.b.AddMark(kind, m.now[th], corr, thread, here)
	}
	m.now[th] += simMark
	q := m.queue(a.stream)
	if a.kind == recordsEvent {
		m.events[a.event] = &eventOf{max(q.end, q.wait-simWait, m.behind(a.stream)), corr, a.stream}
		if m.out != nil && !m.untold {
			m.out.b.AddEvent(0, corr, m.number(a.stream))
		}
		return
	}
	e := m.events[a.event]
	if e.stream != a.stream {
		q.wait = max(q.wait, e.at+simWait)
	}
	if m.out != nil && !m.untold {
		m.out.b.AddAwaited(workload.Awaited{Corr: corr, Stream: m.number(a.stream), Event: e.corr, From: workload.None})
	}
}

func (m *machine) sync(th int, a *action) {
	kind, end, awaited := workload.StreamSync, time.Duration(0), workload.Awaited{Stream: workload.None, From: workload.None}
	switch a.kind { //nolint:exhaustive // the others do not wait
	case syncsStream:
		q := m.queue(a.stream)
		if end = max(q.end, q.wait-simWait); a.stream == 7 {
			end = max(end, m.behind(a.stream))
		}
		if m.out != nil {
			awaited.Stream = m.number(a.stream)
		}
	case syncsEvent:
		e := m.events[a.event]
		end = e.at
		if m.out != nil {
			awaited.Event, awaited.From = e.corr, m.number(e.stream)
		}
	case syncsDevice:
		kind = workload.DeviceSync
		for _, q := range m.streams {
			end = max(end, q.end)
		}
	}
	dur := 2 * us
	if end > 0 {
		dur = max(dur, end+a.call/2+1500*time.Nanosecond+m.costs.Sync.At(m.delta)-m.now[th])
	}
	awaited.Corr = m.call(th, kind, dur)
	if m.out != nil && !m.untold && kind == workload.StreamSync {
		m.out.b.AddAwaited(awaited)
	}
}

// tellTypes tells which streams block.
func (m *machine) tellTypes() {
	for stream := range m.streams {
		typ := workload.NonBlockingStream
		switch {
		case m.legacy && stream == 7:
			typ = workload.DefaultStream
		case m.legacy:
			typ = workload.BlockingStream
		}
		m.out.b.SetStreamType(workload.Stream{ID: uint64(stream)}, typ)
	}
}
