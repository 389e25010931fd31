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

// path is one socket and the fault plan of its outgoing datagrams.
type path struct {
	conn   *udp.Conn
	reader *reader.Reader
	heard  listening
	plan   fault.Plan    // of PathConfig
	kick   chan struct{} // late has a new datagram

	faults atomic.Pointer[fault.Injector] // nil: none

	mu     sync.Mutex // guards the fields below, and the injector
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
		p.faults.Store(nil) // the datagrams in late still leave at their time
		return
	}
	p.faults.Store(fault.New(plan, seed))
}

// write sends a batch. Datagrams that the network does not take are counted by
// the socket and recovered by the link.
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

// writeFaulty applies the fault plan to one datagram.
func (p *path) writeFaulty(now time.Duration, datagram []byte, to netip.AddrPort) {
	faults := p.faults.Load()
	if faults == nil { // the plan has just ended
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
	select { // most proxies have no fault plan
	case <-ctx.Done():
		return nil
	case <-p.kick:
	}
	// This thread sleeps through short delays. Timers of the Go runtime fire at
	// whole milliseconds when the process is idle (its netpoller).
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // ns instead of 50 µs; if refused, delays are up to 50 µs longer
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		wait := p.sendDue(clock())
		if wait < maxSleep && ctx.Err() == nil {
			span := unix.NsecToTimespec(int64(min(wait, sleepStep)))
			_ = unix.Nanosleep(&span, nil) // the loop resumes an interrupted sleep
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
	// maxSleep is the longest delay that is slept through: two steps of the netpoller.
	maxSleep = 2 * time.Millisecond
	// sleepStep bounds how late the loop sees a new datagram that is due first.
	sleepStep = 50 * time.Microsecond
)

// sendDue sends the datagrams that are due and returns how long the next one waits.
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
