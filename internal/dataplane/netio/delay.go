package netio

import (
	"context"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/machine"
)

// delayed is a datagram that a fault plan holds back.
type delayed struct {
	data []byte
	to   netip.AddrPort
	ecn  uint8
}

// writeFaulty applies the fault plan to one datagram.
func (p *path) writeFaulty(now time.Duration, datagram []byte, to netip.AddrPort, ecn uint8) {
	faults := p.faults.Load()
	if faults == nil { // the plan has just ended
		_ = p.writer.WriteParts([][]byte{datagram}, len(datagram), to, ecn)
		return
	}
	for _, d := range faults.Apply(now, datagram) {
		if d.At <= now {
			_ = p.writer.WriteParts([][]byte{d.Data}, len(d.Data), to, ecn)
			continue
		}
		p.late.Push(d.At, delayed{data: append([]byte(nil), d.Data...), to: to, ecn: ecn})
		p.held.Add(uint64(len(d.Data)))
		p.due.Store(int64(p.late.Wake()))
		if now-time.Duration(p.looked.Load()) >= attended {
			p.rouse()
		}
	}
}

// rouse wakes the loop of deliverDelayed.
func (p *path) rouse() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

// sendDue sends the datagrams that are due.
func (p *path) sendDue(now time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for d, ok := p.late.Pop(now); ok; d, ok = p.late.Pop(now) {
		_ = p.writer.WriteParts([][]byte{d.data}, len(d.data), d.to, d.ecn)
		p.held.Add(-uint64(len(d.data)))
	}
	p.due.Store(int64(p.late.Wake()))
}

const (
	// oversleep is more than a sleep of the kernel takes too long.
	oversleep = 150 * time.Microsecond
	// spinning is how long before a datagram is due nothing else may take the
	// processor.
	spinning = 60 * time.Microsecond
	// sleepStep bounds how late the loop sees a new datagram that is due before the
	// one for which it sleeps.
	sleepStep = 50 * time.Microsecond
	// overdue is more than a timer of the Go runtime is late: in an idle process they
	// fire at whole milliseconds (its netpoller).
	overdue = 2 * time.Millisecond
	// attentive is how long the loop polls for the next datagram after the last one:
	// several round trips of a network with a delay that is worth being exact.
	attentive = time.Millisecond
	// attended is how long ago the reader of the socket may have looked for the
	// loop to leave the datagrams to it: a reader handles a message meanwhile.
	attended = 30 * time.Microsecond
	// unattended bounds how late the loop sees that a reader has stopped to look without
	// a word: a caller that has its answer and does not come back.
	unattended = 2 * time.Millisecond
)

// deliverDelayed sends the datagrams that the fault plan holds back, until ctx ends.
// Delays are exact to some microseconds as long as processors are free: the thread
// polls before a datagram is due, and between those of an exchange, because
// waking up takes longer than a short delay. Between two looks it yields. While the
// reader of the socket polls too, it does the work alone.
func (p *path) deliverDelayed(ctx context.Context, clock func() time.Duration) error {
	select { // most proxies have no fault plan
	case <-ctx.Done():
		return nil
	case <-p.kick:
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // ns instead of 50 µs; if refused, delays are up to 50 µs longer
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for active := clock(); ctx.Err() == nil; {
		now := clock()
		wait := time.Duration(p.due.Load()) - now
		soon := wait <= oversleep || wait > overdue && now-active < attentive
		switch {
		case soon && now-time.Duration(p.looked.Load()) < attended: // the reader does the work
			active = now
			p.await(ctx, timer, unattended)
		case wait <= 0:
			p.sendDue(now)
			active = now
		case wait <= spinning: // other threads may run for longer
		case soon:
			yield()
		case wait <= overdue:
			nap(min(wait-oversleep, sleepStep))
		default:
			p.await(ctx, timer, min(wait-overdue, time.Hour))
			active = clock()
		}
	}
	return nil
}

// await waits until rouse, for at most d.
func (p *path) await(ctx context.Context, timer *time.Timer, d time.Duration) {
	timer.Reset(d)
	select {
	case <-ctx.Done():
	case <-p.kick:
	case <-timer.C:
	}
}

// nap sleeps in the kernel. An interrupted nap is only shorter.
func nap(d time.Duration) {
	span := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&span, nil)
}

// yield lets other threads run. They may run for long, so the Go scheduler must know
// of the call.
func yield() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// attend sends the datagrams that are due, for a reader that polls the socket. It
// returns the time until the next one is due.
func (p *path) attend(clock func() time.Duration) (wait time.Duration) {
	due := time.Duration(p.due.Load())
	if due == machine.Never && p.faults.Load() == nil {
		return machine.Never
	}
	now := clock()
	p.looked.Store(int64(now))
	if due == machine.Never {
		return machine.Never
	}
	if now >= due {
		p.sendDue(now)
		due = time.Duration(p.due.Load())
	}
	return due - now
}

// longAgo is a value of path.looked that no loop takes for recent.
const longAgo = -int64(time.Hour)

// unattend leaves the datagrams that are held back to the loop, for a reader that
// goes to sleep. A writer does the opposite: it holds a datagram back and then looks at
// looked, so one of the two wakes the loop.
func (p *path) unattend() {
	if p.looked.Swap(longAgo) != longAgo && time.Duration(p.due.Load()) != machine.Never {
		p.rouse()
	}
}
