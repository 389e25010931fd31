// Package reader decides who reads a socket: a goroutine of its own, or whoever
// waits for what the socket will bring.
//
// Who sends a request and waits for its answer does best to read the socket
// himself: the kernel then wakes the one thread that goes on with the answer,
// and nothing is handed from one goroutine to another. Somebody must read while
// nobody waits, too, and two threads must not wait on one socket: the kernel
// would wake the wrong one.
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

// Source is what is read. Its methods are called by one goroutine at a time.
type Source interface {
	// Receive takes what has come, or waits for it when block is set, and works
	// on it. It returns ErrNothing when nothing came: at once without block,
	// and after some tens of milliseconds with it. Any other error ends the reading.
	Receive(block bool) error
	// Exchange reports whether what came last and what has been sent since are
	// as short as requests and answers (Brief): the next is likely to come soon.
	Exchange() bool
}

// ErrNothing says that there was nothing to read.
var ErrNothing = errors.New("turn: nothing to read")

const (
	// grace is how long the background reader stays away from a socket that
	// somebody who waited has left. A program that reads registers in a row is
	// back long before; what comes by itself meanwhile waits for so long.
	grace = 100 * time.Microsecond
	// calm is how many receptions between two waits still look like requests
	// and answers. With more there is traffic that nobody waits for, and the
	// background reader is not sent away.
	calm = 3
)

// Turn says whose turn it is to read a Source.
//
//	background ──somebody waits, and little else comes──▶ aside
//	    ▲                                                 │  ▲ who waits
//	    └──nobody has waited for the grace, or Attend─────┘──┘ reads
//
// Whoever reads waits as the Polling says.
type Turn struct {
	source Source
	wake   *fd.FD // an eventfd: the background reader is to come back
	nap    nap    // Serve's

	role    sync.Mutex           // held by who reads
	poller  Poller               // guarded by role
	since   int                  // receptions since somebody waited; guarded by role
	err     error                // why reading ended; guarded by role
	waiting atomic.Int32         // goroutines in Await,
	blocked atomic.Int32         // and those of them that do not read
	asker   atomic.Pointer[Wait] // one of these
	led     atomic.Uint64
	aside   atomic.Bool // the background reader is away
}

// New makes a Turn.
func New(s Source, p Polling) (*Turn, error) {
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	return &Turn{source: s, poller: Poller{Polling: p}, wake: fd.New(event)}, nil
}

// Close frees what New took. The reading is ended by an error of the Source.
func (t *Turn) Close() error { return t.wake.Close() }

// Serve is the background reader. It returns the error by which reading ended.
func (t *Turn) Serve() error {
	defer Block()()
	for {
		if err := t.serveTurn(); err != nil {
			return err
		}
		t.standAside()
	}
}

// serveTurn reads until somebody else had better do it.
func (t *Turn) serveTurn() error {
	t.role.Lock()
	defer t.role.Unlock()
	for t.err == nil {
		switch err := t.receive(); {
		case errors.Is(err, ErrNothing):
			continue
		case err != nil:
			t.err = err
			continue
		}
		t.since++
		if t.wanted() {
			t.aside.Store(true)
			return nil
		}
	}
	return t.err
}

// wanted reports whether who waited now, and has what he waited for, will read
// himself the next time.
func (t *Turn) wanted() bool {
	asker := t.asker.Load()
	if asker == nil || !asker.Ready() {
		return false
	}
	t.asker.Store(nil)
	alone := t.since <= calm && t.waiting.Load() <= 1
	t.since = 0
	return alone
}

// receive waits for the next thing that the source brings.
func (t *Turn) receive() error { return t.poller.Wait(t.source.Exchange(), t.source.Receive) }

// standAside waits until nobody has waited for the grace, or until Attend.
func (t *Turn) standAside() {
	for led := t.led.Load(); !t.called(); {
		now := t.led.Load()
		if t.blocked.Load() > 0 || now == led && t.waiting.Load() == 0 {
			break
		}
		led = now
	}
	t.aside.Store(false)
}

// nap is the wait of the background reader; its structures live here, so that
// it needs nothing from the heap.
type nap struct {
	poll  [1]unix.PollFd
	limit unix.Timespec
	count [8]byte
}

// sleep reports whether the eventfd has ended it.
func (n *nap) sleep(fd uintptr) (called bool) {
	n.poll[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	n.limit = unix.NsecToTimespec(grace.Nanoseconds())
	ready, err := unix.Ppoll(n.poll[:], &n.limit, nil)
	if ready <= 0 || err != nil {
		return false
	}
	_, _ = unix.Read(int(fd), n.count[:])
	return true
}

// called waits for the grace, and reports whether Attend has ended it.
func (t *Turn) called() bool {
	fd, ok := t.wake.Use()
	if !ok {
		return true // closed: reading will tell
	}
	defer t.wake.Done()
	return t.nap.sleep(fd)
}

// Attend makes sure that the Source is read from now on, though nobody waits.
func (t *Turn) Attend() {
	if !t.aside.Load() {
		return
	}
	if fd, ok := t.wake.Use(); ok {
		_, _ = unix.Write(int(fd), one[:])
		t.wake.Done()
	}
}

// one is what is added to the eventfd.
var one = [8]byte{1, 0, 0, 0, 0, 0, 0, 0}

// Wait is something to wait for. It may be waited for again and again.
type Wait struct {
	// Ready reports whether it is there; any goroutine may call it at any time.
	Ready func() bool
	// Block waits for it without reading; it is called by who waits, and may
	// return early. nil: who cannot read does not wait at all.
	Block func()
}

// Await waits until w is ready: it reads the Source itself, if that is to be
// had, and calls w.Block if somebody else reads or nothing comes for long.
func (t *Turn) Await(w *Wait) {
	waiting := t.waiting.Add(1)
	defer t.waiting.Add(-1)
	if t.role.TryLock() {
		lost := t.lead(w.Ready)
		t.role.Unlock()
		if lost || t.waiting.Load() > 1 {
			t.Attend()
		}
	} else if waiting == 1 {
		t.asker.Store(w)
	}
	switch {
	case w.Ready():
	case w.Block == nil:
		t.Attend()
	default:
		t.blocked.Add(1)
		w.Block()
		t.blocked.Add(-1)
	}
}

// lead reads until ready. It reports whether the background reader is needed.
func (t *Turn) lead(ready func() bool) (lost bool) {
	n := 0
	for t.err == nil && !ready() {
		switch err := t.receive(); {
		case errors.Is(err, ErrNothing):
			return true
		case err != nil:
			t.err = err
		default:
			n++
		}
	}
	t.led.Add(1)
	t.since = 0
	return n > calm
}
