package playback

import (
	"time"

	"github.com/dxpu-project/dxpu/internal/model/predict"
	"github.com/dxpu-project/dxpu/machine"
)

// event is the start or the end of a step on the host.
type event struct {
	kind  kind
	index int32 // of the call or operation
}

type kind uint8

const (
	callStart kind = iota
	opReady        // the doorbell of an operation is due
	callEnd
)

// notYet is the end of an operation that the host has not seen.
const notYet = time.Duration(-1)

// player is the host of a replay: its threads, which make their calls with the
// recorded gaps between them, and the driver, which fills rings and reads fences.
// It is a pure machine: its owner calls step at the time that wake returns and
// after the GPU has written a fence.
//
// Events have the times at which they were due, so a late owner delays only the
// fences that it sees late.
type player struct {
	*script
	timing
	rings   [queues]ring
	data    uint64 // bus address of the host memory that copies use
	request uint64 // bytes of one read request of the GPU

	origin time.Duration // the recording's time 0
	events machine.Queue[event]

	begin   []time.Duration // by call: the latest start that is known to be needed
	before  []uint8         // by call: calls before it that have not ended
	waits   []waiting       // by call
	waiters map[int32][]waiter
	ready   []bool        // by operation: its doorbell is due
	issued  [queues]int32 // operations of each queue put into its ring

	times          predict.Times
	left, unfenced int           // calls that have not ended, fences that were not seen
	put            int           // operations put into rings
	reached        time.Duration // the latest recorded end of what is over
}

// waiting is a call that waits for operations.
type waiting struct {
	left int32
	end  time.Duration // not before
}

// waiter is one operation's side of it.
type waiter struct {
	call int32
	lag  time.Duration
}

func newPlayer(s *script, t timing, g *gpu, request uint64) *player {
	m := &player{
		script: s, timing: t, data: g.data.Segments()[0].Addr, request: request,
		begin: make([]time.Duration, len(s.w.Calls)), before: make([]uint8, len(s.w.Calls)),
		waits: make([]waiting, len(s.w.Calls)), waiters: map[int32][]waiter{}, ready: make([]bool, len(s.w.Ops)),
		times: predict.Times{
			CallStart: make([]time.Duration, len(s.w.Calls)), CallEnd: make([]time.Duration, len(s.w.Calls)),
			OpEnd: make([]time.Duration, len(s.w.Ops)),
		},
		left: len(s.w.Calls), unfenced: s.fences,
	}
	for i := range m.times.OpEnd {
		m.times.OpEnd[i] = notYet
	}
	for q := range m.rings {
		m.rings[q].stream = g.streams[q]
	}
	return m
}

// start begins the replay. origin is the time 0 of the recording.
func (m *player) start(origin time.Duration) {
	m.origin = origin
	for i := range m.w.Calls {
		d := m.plan.Call(int32(i))
		for _, from := range [...]int32{d.Prev, d.Cross} {
			if from != none {
				m.before[i]++
			}
		}
		if m.before[i] == 0 {
			m.events.Push(origin+m.spread(m.w.Calls[i].Start), event{callStart, int32(i)})
		}
	}
	for i := range m.w.Ops {
		if m.w.Ops[i].Call == none && m.plan.Op(int32(i)).Free {
			m.events.Push(max(origin+m.spread(m.w.Ops[i].Start)-m.launch, origin), event{opReady, int32(i)})
		}
	}
}

// done reports whether all calls and operations are over.
func (m *player) done() bool { return m.left == 0 && m.unfenced == 0 }

// callBytes is about as many bytes as move in the time that the simulation of a call or of an
// operation takes: 0.9 KiB to the device and 2.7 KiB to the host in 11 us.
const callBytes = 1 << 10

// share returns the share of the work of a simulation that is done if moved of bytes have
// moved.
func (m *player) share(moved, bytes uint64) float64 {
	all := len(m.w.Calls) + len(m.w.Ops)
	done := len(m.w.Calls) - m.left + m.put
	return (callBytes*float64(done) + float64(min(moved, bytes))) / (callBytes*float64(all) + float64(bytes))
}

// wake returns when the next event is due.
func (m *player) wake() time.Duration {
	return m.events.Wake()
}

// news reports whether the GPU has written a fence that step has not seen.
func (m *player) news() bool {
	for q := range m.rings {
		if m.rings[q].news() {
			return true
		}
	}
	return false
}

// step handles the events that are due.
func (m *player) step(now time.Duration) error {
	for q := range m.rings {
		if r := &m.rings[q]; !r.idle() {
			if err := r.poll(func(op int32) { m.seen(now, op) }); err != nil {
				return err
			}
		}
	}
	for at := m.wake(); at <= now; at = m.wake() {
		e, _ := m.events.Pop(at)
		switch e.kind {
		case callStart:
			m.startCall(at, e.index)
		case opReady:
			m.readyOp(e.index)
		case callEnd:
			m.endCall(at, e.index)
		}
	}
	for q := range m.rings {
		m.rings[q].flush()
	}
	return nil
}

func (m *player) startCall(at time.Duration, i int32) {
	m.times.CallStart[i] = at
	for _, op := range m.launched[m.ofCall[i][0]:m.ofCall[i][1]] {
		lag := m.spread(m.plan.Op(op).LaunchLag) - m.launch
		m.events.Push(at+max(lag, 0), event{opReady, op})
	}
	w := &m.waits[i]
	w.end = at + m.spread(m.plan.Call(i).Least)
	for op, lag := range m.plan.Waits(i) {
		lag = max(m.spread(lag)-m.fence, 0)
		if end := m.times.OpEnd[op]; end != notYet {
			w.end = max(w.end, end+m.notice+lag)
			continue
		}
		w.left++
		m.waiters[op] = append(m.waiters[op], waiter{i, lag})
	}
	if w.left == 0 {
		m.events.Push(w.end, event{callEnd, i})
	}
}

func (m *player) endCall(at time.Duration, i int32) {
	m.times.CallEnd[i] = at
	m.left--
	end := m.w.Calls[i].End()
	m.reached = max(m.reached, end)
	follow := func(next int32) {
		m.begin[next] = max(m.begin[next], at+m.spread(m.w.Calls[next].Start-m.plan.Since(next, i)))
		if m.before[next]--; m.before[next] == 0 {
			m.events.Push(m.begin[next], event{callStart, next})
		}
	}
	if next := m.nextCall[i]; next != none {
		follow(next)
	}
	for next := m.crossHead[i]; next != none; next = m.crossNext[next] {
		follow(next)
	}
}

// readyOp puts ready operations into the ring, in the order of the recording.
func (m *player) readyOp(i int32) {
	m.ready[i] = true
	q := m.queue(i)
	for int(m.issued[q]) < len(m.order[q]) && m.ready[m.order[q][m.issued[q]]] {
		op := m.order[q][m.issued[q]]
		m.commands(op)
		m.issued[q]++
		m.put++
		if next := m.follow[op]; next != none {
			m.ready[next] = true
		}
	}
}

// seen notes the end of an operation.
func (m *player) seen(now time.Duration, op int32) {
	// Where the next operation overlapped it, its delay was shorter.
	now += m.spread(max(-m.tail[op], 0))
	m.times.OpEnd[op] = now - m.notice
	m.unfenced--
	m.reached = max(m.reached, m.w.Ops[op].End())
	for _, w := range m.waiters[op] {
		c := &m.waits[w.call]
		c.end = max(c.end, now+w.lag)
		if c.left--; c.left == 0 {
			m.events.Push(c.end, event{callEnd, w.call})
		}
	}
	delete(m.waiters, op)
}

// result returns the times as the recording counts them.
func (m *player) result() predict.Times {
	for _, times := range [][]time.Duration{m.times.CallStart, m.times.CallEnd, m.times.OpEnd} {
		for i, t := range times {
			if t == notYet {
				times[i] = 0
				continue
			}
			times[i] = (t - m.origin) / time.Duration(m.stretch)
		}
	}
	return m.times
}
