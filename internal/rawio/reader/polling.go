package reader

import (
	"errors"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Polling configures how long a reader polls its socket before it sleeps in the
// kernel. Waking a sleeping processor takes some microseconds, in a virtual
// machine most of the time of a short message; polling takes the processor
// meanwhile. The zero value does not poll.
type Polling struct {
	// Window is how long a reader polls during an exchange of short messages, as
	// long as each arrives within the window. A reader that is idle or has bulk
	// traffic sleeps. Between two polls the kernel may run other threads, and
	// while others want the processor the reader does not poll.
	Window time.Duration
	// Spin is how long a reader polls each time without letting other threads
	// run, for processors that have no other work.
	Spin time.Duration
}

// DefaultWindow is a good Polling.Window: a few round trips of a network within
// one building, and too short to disturb other threads.
const DefaultWindow = 50 * time.Microsecond

// Brief is the largest size of a short message, in bytes: the read or write of a
// register with everything around it.
const Brief = 256

// Poller waits as its Polling says. It belongs to one goroutine at a time.
type Poller struct {
	Polling
	quick bool      // the last wait of an exchange ended within the window
	pause time.Time // until then the reader does not poll: others want the processor
}

const (
	// preempted is the least time between two polls that shows that another
	// thread used up its time slice. A partner of the exchange runs for less.
	preempted = 200 * time.Microsecond
	// backoff is how long a reader does not poll after that.
	backoff = 100 * time.Millisecond
)

// Wait calls receive(false) while the Polling says so, until it returns anything
// but ErrNothing, and then receive(true). brief tells that the message is part
// of an exchange of short messages.
func (p *Poller) Wait(brief bool, receive func(block bool) error) error {
	if p.Spin > 0 {
		return p.spin(receive)
	}
	if !brief || p.Window == 0 {
		return receive(true)
	}
	start := time.Now()
	if p.quick && start.After(p.pause) {
		if err := p.poll(start, receive); !errors.Is(err, ErrNothing) {
			return err
		}
	}
	err := receive(true)
	p.quick = err == nil && time.Since(start) <= p.Window
	return err
}

// poll returns ErrNothing if no message arrives in the window.
func (p *Poller) poll(start time.Time, receive func(block bool) error) error {
	for last := start; ; {
		if err := receive(false); !errors.Is(err, ErrNothing) {
			return err
		}
		// The other thread may run for its whole time slice, so the Go scheduler
		// must know of the call: not RawSyscall.
		_, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		now := time.Now()
		if now.Sub(last) >= preempted {
			p.pause = now.Add(backoff)
			return ErrNothing
		}
		if now.Sub(start) >= p.Window {
			return ErrNothing
		}
		last = now
	}
}

func (p *Poller) spin(receive func(block bool) error) error {
	for start := time.Now(); time.Since(start) < p.Spin; {
		if err := receive(false); !errors.Is(err, ErrNothing) {
			return err
		}
	}
	return receive(true)
}

// maxBlocking bounds how far Block raises GOMAXPROCS. A host rarely has more
// active readers at one time, and the garbage collector, which goes by
// GOMAXPROCS, stays small.
const maxBlocking = 8

var blocking struct {
	mu    sync.Mutex // guards count
	count int
}

// Block raises GOMAXPROCS by one, until end is called, for a goroutine that will
// wait in the kernel again and again. Between short waits such a goroutine keeps
// its processor (P) of the Go scheduler, for up to ten milliseconds each time.
// If all were taken in this way, the goroutines that it has made ready would wait
// as long.
func Block() (end func()) {
	change(1)
	return sync.OnceFunc(func() { change(-1) })
}

func change(by int) {
	blocking.mu.Lock()
	defer blocking.mu.Unlock()
	before := min(blocking.count, maxBlocking)
	blocking.count += by
	if after := min(blocking.count, maxBlocking); after != before {
		runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + after - before)
	}
}
