package netio

import (
	"container/heap"
	"context"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// path is one socket, and the faults that it is told to have.
type path struct {
	conn *udp.Conn
	turn *reader.Turn  // whose it is to read
	plan fault.Plan    // that it was opened with
	kick chan struct{} // something was put into late

	faults atomic.Pointer[fault.Injector] // nil: none

	mu     sync.Mutex // guards what follows, and what faults points to
	writer *udp.Writer
	late   delayQueue
}

func newPath(conn *udp.Conn, cfg PathConfig) *path {
	p := &path{conn: conn, plan: cfg.Fault, writer: conn.NewWriter(), kick: make(chan struct{}, 1)}
	p.setFault(cfg.Fault, cfg.Seed)
	return p
}

func (p *path) setFault(plan fault.Plan, seed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if plan.Zero() {
		p.faults.Store(nil) // what waits in late still leaves at its time
		return
	}
	p.faults.Store(fault.New(plan, seed))
}

// write sends a batch; what the network does not take is lost, and the link
// finds out. The counters of the socket tell.
func (p *path) write(now time.Duration, w *udp.Writer, batch []byte, segment int, to netip.AddrPort) {
	if p.faults.Load() == nil {
		_ = w.Write(batch, segment, to)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(batch) > 0 {
		n := min(segment, len(batch))
		p.writeFaulty(now, batch[:n], to)
		batch = batch[n:]
	}
}

// writeFaulty does to one datagram what the fault plan says.
func (p *path) writeFaulty(now time.Duration, datagram []byte, to netip.AddrPort) {
	faults := p.faults.Load()
	if faults == nil { // lifted meanwhile
		_ = p.writer.Write(datagram, len(datagram), to)
		return
	}
	for _, d := range faults.Apply(now, datagram) {
		if d.At <= now {
			_ = p.writer.Write(d.Data, len(d.Data), to)
			continue
		}
		heap.Push(&p.late, delayed{at: d.At, order: p.late.pushed, data: append([]byte(nil), d.Data...), to: to})
		p.late.pushed++
		select {
		case p.kick <- struct{}{}:
		default:
		}
	}
}

// deliverDelayed sends the datagrams that the fault plan holds back, until ctx ends.
func (p *path) deliverDelayed(ctx context.Context, clock func() time.Duration) error {
	select { // most proxies never have any
	case <-ctx.Done():
		return nil
	case <-p.kick:
	}
	// Short delays are slept through in this thread: timers of the Go runtime
	// fire at whole milliseconds when nothing else happens (its netpoller).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // ns instead of 50 µs; where refused, delays are that much longer
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := p.sendDue(clock())
		if wait < maxNap && ctx.Err() == nil {
			nap := unix.NsecToTimespec(int64(min(wait, napStep)))
			_ = unix.Nanosleep(&nap, nil) // an interrupted sleep is taken up again
			continue
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			return nil
		case <-p.kick:
		case <-timer.C:
		}
	}
}

const (
	// maxNap is the longest wait that is slept through: two of the netpoller's steps.
	maxNap = 2 * time.Millisecond
	// napStep bounds how late a datagram is noticed that is due before those that wait.
	napStep = 50 * time.Microsecond
)

// sendDue sends what is due and returns how long the next one has to wait.
func (p *path) sendDue(now time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.late.Len() > 0 {
		next := p.late.items[0]
		if next.at > now {
			return next.at - now
		}
		heap.Pop(&p.late)
		_ = p.writer.Write(next.data, len(next.data), next.to)
	}
	return time.Hour
}

// delayQueue orders datagrams by the time they are to be sent at.
type delayQueue struct {
	items  []delayed
	pushed uint64
}

type delayed struct {
	at    time.Duration
	order uint64 // of datagrams due at the same time, the first goes first
	data  []byte
	to    netip.AddrPort
}

func (q *delayQueue) Len() int { return len(q.items) }

func (q *delayQueue) Less(i, j int) bool {
	a, b := &q.items[i], &q.items[j]
	return a.at < b.at || a.at == b.at && a.order < b.order
}

func (q *delayQueue) Swap(i, j int) { q.items[i], q.items[j] = q.items[j], q.items[i] }

func (q *delayQueue) Push(x any) { q.items = append(q.items, x.(delayed)) }

func (q *delayQueue) Pop() any {
	last := len(q.items) - 1
	x := q.items[last]
	q.items[last] = delayed{}
	q.items = q.items[:last]
	return x
}

// batch collects datagrams of one binding that go to one path in a run: equal
// sizes, but for a shorter last one, as segmentation offload wants them. A run
// that nothing can join any more leaves at once, so that no datagram is copied
// but in the rare case that the buffer ends behind an unfinished run.
type batch struct {
	binding     *Binding
	buf         *batchBuffer
	start, used int // the run is buf[start:used]
	segment     int
	path        uint8
}

// batchBuffer holds one batch and leaves room for the largest datagram behind it.
type batchBuffer [2 * udp.ReadBuffer]byte

var batchBuffers = sync.Pool{New: func() any { return new(batchBuffer) }}

// space returns where the link may write the next datagram.
func (o *batch) space() []byte {
	if o.buf == nil {
		o.buf = batchBuffers.Get().(*batchBuffer)
	}
	if len(o.buf)-o.used < udp.MaxDatagram {
		o.used = copy(o.buf[:], o.buf[o.start:o.used])
		o.start = 0
	}
	return o.buf[o.used : o.used+udp.MaxDatagram]
}

// add takes a datagram of n bytes that was written into space.
func (o *batch) add(now time.Duration, n int, path uint8) {
	run := o.used - o.start
	if run > 0 && (path != o.path || n > o.segment || run+n > o.most()) {
		o.send(now)
		run = 0
	}
	if run == 0 {
		o.segment, o.path = n, path
	}
	o.used += n
	if n < o.segment || run+n+o.segment > o.most() {
		o.send(now)
		o.start, o.used = 0, 0
	}
}

// most is how long a run may be.
func (o *batch) most() int { return o.binding.writers[o.path].MaxBatch(o.segment) }

// send sends the run; the next one starts behind it.
func (o *batch) send(now time.Duration) {
	b := o.binding
	b.group.fabric.paths[o.path].write(now, b.writers[o.path], o.buf[o.start:o.used], o.segment, b.peers[o.path])
	o.start = o.used
}

// flush sends what is left.
func (o *batch) flush(now time.Duration) {
	if o.buf == nil {
		return
	}
	if o.used > o.start {
		o.send(now)
	}
	batchBuffers.Put(o.buf)
	o.buf = nil
}
