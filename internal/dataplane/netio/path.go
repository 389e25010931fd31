package netio

import (
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
	"github.com/dxpu-project/dxpu/machine"
)

// path is one socket, and the faults that it is told to have.
type path struct {
	conn *udp.Conn
	turn *reader.Reader // whose it is to read
	plan fault.Plan     // that it was opened with
	kick chan struct{}  // something was put into late

	faults atomic.Pointer[fault.Injector] // nil: none

	mu     sync.Mutex // guards what follows, and what faults points to
	writer *udp.Writer
	late   machine.Queue[delayed]
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
		p.late.Push(d.At, delayed{data: append([]byte(nil), d.Data...), to: to})
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
	for {
		d, ok := p.late.Pop(now)
		if !ok {
			return min(p.late.Wake()-now, time.Hour)
		}
		_ = p.writer.Write(d.data, len(d.data), d.to)
	}
}

// delayed is a datagram that a fault plan holds back.
type delayed struct {
	data []byte
	to   netip.AddrPort
}
