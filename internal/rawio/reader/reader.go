// Package reader shares the reading of a socket between a background goroutine
// and the goroutines that wait for answers.
//
// A goroutine that sends a request and waits for its answer should read the
// socket itself: the kernel then wakes the one thread that continues with the
// answer, and no goroutine hands it to another. While no goroutine waits, the
// background goroutine reads. Only one thread at a time waits on the socket,
// because the kernel might wake the wrong one of two.
package reader

import (
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/fd"
)

// Source is a socket with its protocol. A Reader calls its methods from one
// goroutine at a time.
type Source interface {
	// Receive receives one message, or one batch, and processes it. If none has
	// arrived it returns ErrNothing: at once without block, and after some tens of
	// milliseconds with block. Any other error ends the reading.
	Receive(block bool) error
	// Soon reports whether the next message is likely to come within microseconds:
	// the last message and the bytes sent since are as short as a request and an
	// answer (Brief), or the last one belongs to a transfer at full speed.
	Soon() bool
}

// Expecter is a Source that knows of messages that come within microseconds, for
// example by another socket that its Receive looks at, too.
type Expecter interface {
	// Expects reports whether to poll for such a message now.
	Expects() bool
}

// ReadAhead is a Source that takes several messages from its socket at once and returns
// them one by one: the socket is not readable while only those are left.
type ReadAhead interface {
	// Buffered reports whether the next Receive needs no socket.
	Buffered() bool
}

// ErrNothing is returned by Source.Receive when no message has arrived.
var ErrNothing = errors.New("reader: no message")

const (
	// firstGrace is how long the background goroutine leaves the socket alone after
	// a waiter has left it. A program that reads registers in a row is back long
	// before. While waiters come back the grace period doubles, up to longestGrace,
	// because each look of the background goroutine takes the processor from one
	// of the threads of the exchange. Messages without a waiter are delayed by at
	// most the grace period.
	firstGrace   = 100 * time.Microsecond
	longestGrace = 1600 * time.Microsecond
	// maxUnasked is how many messages between two waits still look like requests
	// and answers. With more, there is traffic without a waiter, and the
	// background goroutine goes on reading.
	maxUnasked = 3
)

// Reader decides which goroutine reads a Source.
//
//	background ──a waiter, and little other traffic──▶ aside
//	    ▲                                              │  ▲ the waiter
//	    └──no waiter for the grace period, or Attend───┘──┘ reads
//
// The goroutine that reads polls as the Polling says.
type Reader struct {
	source Source
	expect Expecter  // source, or nil
	ahead  ReadAhead // source, or nil
	wake   *fd.FD    // an eventfd that calls the background goroutine back
	pause  eventWait // of Serve
	turns  turns     // of Serve, while it stands aside

	role    sync.Mutex           // held by the goroutine that reads
	poller  Poller               // guarded by role
	unasked int                  // messages since the last wait; guarded by role
	err     error                // why reading ended; guarded by role
	waiting atomic.Int32         // goroutines in Await
	blocked atomic.Int32         // goroutines in Await that do not read
	holding atomic.Int32         // callers of Hold
	last    atomic.Pointer[Wait] // of a waiter that found the role taken
	leads   atomic.Uint64        // times that a waiter has read
	left    atomic.Bool          // what ahead last said
	aside   atomic.Bool          // the background goroutine does not read
}

// New makes a Reader of a Source.
func New(s Source, p Polling) (*Reader, error) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	r := &Reader{source: s, poller: Poller{Polling: p}, wake: fd.New(event)}
	r.expect, _ = s.(Expecter)
	r.ahead, _ = s.(ReadAhead)
	return r, nil
}

// Close frees the descriptor of the Reader. It does not end Serve: an error of
// the Source does.
func (r *Reader) Close() error { return r.wake.Close() }

// Serve reads in the background until the Source returns an error, and returns
// that error.
func (r *Reader) Serve() error {
	for {
		if err := r.serveUntilAsked(); err != nil {
			return err
		}
		r.standAside()
	}
}

// serveUntilAsked reads until a waiter should read instead, or not at all if one does.
func (r *Reader) serveUntilAsked() error {
	if !r.role.TryLock() { // to wait for the role would take it from the waiter of the next answer
		r.aside.Store(true)
		return nil
	}
	defer r.role.Unlock()
	for r.err == nil {
		switch err := r.receive(); {
		case errors.Is(err, ErrNothing):
			continue
		case err != nil:
			r.err = err
			continue
		}
		r.unasked++
		if r.leave() {
			r.aside.Store(true)
			return nil
		}
	}
	return r.err
}

// leave reports whether the last waiter has its answer and should read the
// socket itself next time.
func (r *Reader) leave() bool {
	last := r.last.Load()
	if last == nil || !last.Ready() {
		return false
	}
	r.last.Store(nil)
	alone := r.unasked <= maxUnasked && r.waiting.Load() <= 1
	r.unasked = 0
	return alone
}

// receive receives the next message.
func (r *Reader) receive() error {
	defer r.lookAhead()
	if r.expect != nil && r.expect.Expects() {
		if err := r.poller.Expect(r.source.Receive); !errors.Is(err, ErrNothing) {
			return err
		}
	}
	return r.poller.Wait(r.source.Soon(), r.source.Receive)
}

// lookAhead notes whether the goroutine that reads leaves messages behind.
func (r *Reader) lookAhead() { r.left.Store(r.ahead != nil && r.ahead.Buffered()) }

// arrived is the Wait of Poll's caller.
var arrived = Wait{Ready: func() bool { return true }}

// Poll receives a message if one has arrived and no other goroutine reads, and
// reports whether it did. It is for a caller that looks at several sockets in turn
// while it expects an answer: the background goroutine soon leaves the Source to
// it, until the caller stays away for the grace period or calls Attend.
func (r *Reader) Poll() bool {
	if !r.role.TryLock() {
		if r.waiting.Load() == 0 {
			r.last.Store(&arrived)
		}
		return false
	}
	defer r.role.Unlock()
	r.leads.Add(1)
	if r.err == nil {
		err := r.source.Receive(false)
		r.lookAhead()
		switch {
		case err == nil:
			r.unasked = 0
			return true
		case !errors.Is(err, ErrNothing):
			r.err = err
		}
		r.unasked = 0
	}
	if r.err != nil { // Serve returns it, also while the caller polls on or holds
		r.Attend()
	}
	return false
}

// Hold keeps the background goroutine aside until Release, for a caller of Poll that
// sleeps until one of several sockets is readable. It returns false, and the caller
// must not call Release, if the background goroutine reads now, or has to, because of
// messages that make no socket readable.
func (r *Reader) Hold() bool {
	r.holding.Add(1)
	left := r.left.Load() // read after the addition: lead does the opposite
	if r.aside.Load() && !left {
		return true
	}
	r.Release()
	if left {
		r.Attend()
	}
	return false
}

// Release ends a Hold. The background goroutine soon reads again.
func (r *Reader) Release() { r.holding.Add(-1) }

// standAside waits until there was no waiter for the grace period, or until Attend.
func (r *Reader) standAside() {
	grace := firstGrace
	for before := r.leads.Load(); ; grace = min(2*grace, longestGrace) {
		r.turns.take(time.Now())
		urgent := r.called(grace) || r.blocked.Load() > 0
		now := r.leads.Load()
		if urgent || now == before && r.waiting.Load() == 0 {
			r.aside.Store(false)
			if urgent || r.holding.Load() == 0 { // read after the store: Hold does the opposite
				return
			}
			r.aside.Store(true)
		}
		before = now
	}
}

// eventWait holds the structures of the system calls that wait for an eventfd, so
// that a wait allocates nothing.
type eventWait struct {
	poll  [1]unix.PollFd
	limit unix.Timespec
	count [8]byte
}

// called waits for the grace period, and reports whether Attend ended the wait.
func (r *Reader) called(grace time.Duration) bool {
	fd, ok := r.wake.Use()
	if !ok {
		return true // closed: the next Receive returns an error
	}
	defer r.wake.Done()
	w := &r.pause
	w.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	w.limit = unix.NsecToTimespec(grace.Nanoseconds())
	if ready, err := unix.Ppoll(w.poll[:], &w.limit, nil); ready <= 0 || err != nil {
		return false
	}
	_, _ = unix.Read(int(fd), w.count[:])
	return true
}

// Attend makes the background goroutine read again, for a caller that has sent a
// request and does not wait for its answer.
func (r *Reader) Attend() {
	if !r.aside.Load() {
		return
	}
	if fd, ok := r.wake.Use(); ok {
		_, _ = unix.Write(int(fd), one[:])
		r.wake.Done()
	}
}

// one is added to the eventfd.
var one = [8]byte{1, 0, 0, 0, 0, 0, 0, 0}

// Wait is an event that a goroutine can wait for, any number of times.
type Wait struct {
	// Ready reports whether the event has happened. Any goroutine may call it at
	// any time.
	Ready func() bool
	// Block waits for the event without reading. The waiter calls it, and it may
	// return early. nil: a waiter that cannot read returns at once.
	Block func()
}

// Await waits until w is ready. It reads the Source itself if no other goroutine
// does, and calls w.Block if another one reads or no message comes for long.
func (r *Reader) Await(w *Wait) {
	waiting := r.waiting.Add(1)
	defer r.waiting.Add(-1)
	if r.role.TryLock() {
		attend := r.lead(w.Ready)
		r.role.Unlock()
		if attend || r.waiting.Load() > 1 {
			r.Attend()
		}
	} else if waiting == 1 {
		r.last.Store(w)
	}
	switch {
	case w.Ready():
	case w.Block == nil:
		r.Attend()
	default:
		r.blocked.Add(1)
		w.Block()
		r.blocked.Add(-1)
	}
}

// lead reads until ready. It reports whether the background goroutine has to
// read from now on.
func (r *Reader) lead(ready func() bool) (attend bool) {
	n := 0
	for r.err == nil && !ready() {
		switch err := r.receive(); {
		case errors.Is(err, ErrNothing):
			return true
		case err != nil:
			r.err = err
		default:
			n++
		}
	}
	r.leads.Add(1)
	r.unasked = 0
	return n > maxUnasked || r.left.Load() && r.holding.Load() > 0
}
