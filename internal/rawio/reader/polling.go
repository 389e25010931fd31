package reader

import (
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Polling configures how long a reader polls its socket before it sleeps in the
// kernel. Waking a sleeping processor takes some microseconds, in a virtual
// machine most of the time of a short message; polling takes the processor
// meanwhile. The zero value does not poll.
type Polling struct {
	// Window is how long a reader polls during an exchange of short messages or a
	// transfer, as long as each message arrives within the window. An idle reader
	// sleeps. Between two polls the kernel may run other threads, and while others
	// want the processor the reader does not poll.
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
	quick   bool          // the last wait for a message that was due soon ended within the window
	resume  time.Time     // until then the reader does not poll: others want the processor
	backoff time.Duration // the last pause
	turns   turns
}

const (
	// shared is the least time between two polls that shows that another thread
	// has run in between. The processor is then not idle while this thread sleeps,
	// and the wake-up of a thread costs less there than further polls. An empty
	// poll takes about one microsecond.
	shared = 4 * time.Microsecond
	// preempted is the least time between two polls that shows that another
	// thread used up its time slice. A partner of the exchange, or the idle
	// machine of a VM, runs for less.
	preempted = time.Millisecond
	// A reader does not poll for a while after that: longer each time, while it
	// happens again and again.
	firstBackoff   = 2 * time.Millisecond
	longestBackoff = 100 * time.Millisecond
	// turnEvery is the interval at which a reader lets other goroutines run. A
	// goroutine that makes one system call after the other keeps its processor (P)
	// of the Go scheduler: goroutines that it has made ready wait for up to ten
	// milliseconds, until the runtime preempts it, and for some milliseconds after
	// each preemption a thread of the runtime wakes up every 20 us, which
	// takes the processors from the readers. This also holds for one that sleeps
	// for a millisecond again and again.
	turnEvery = 5 * time.Millisecond
)

// Wait calls receive(false) while the Polling says so, until it returns anything
// but ErrNothing, and then receive(true). soon tells that the message is likely to
// come within microseconds, see Source.
func (p *Poller) Wait(soon bool, receive func(block bool) error) error {
	start := time.Now()
	p.turns.take(start)
	if p.Spin > 0 {
		return p.spin(receive)
	}
	if !soon || p.Window == 0 {
		return receive(true)
	}
	if p.quick && start.After(p.resume) {
		if err := p.poll(start, receive); !errors.Is(err, ErrNothing) {
			return err
		}
	}
	err := receive(true)
	p.quick = err == nil && time.Since(start) <= p.Window
	return err
}

// Expect polls for a message that another socket or this one brings within the
// window. It returns ErrNothing after that, or if others want the processor.
func (p *Poller) Expect(receive func(block bool) error) error {
	start := time.Now()
	if p.Window == 0 || !start.After(p.resume) {
		return ErrNothing
	}
	p.turns.take(start)
	return p.poll(start, receive)
}

// turns lets other goroutines run, every turnEvery.
type turns struct{ last time.Time }

func (t *turns) take(now time.Time) {
	if now.Sub(t.last) >= turnEvery {
		t.last = now
		runtime.Gosched()
	}
}

// poll returns ErrNothing if no message arrives in the window, or if another
// thread has run on the processor and no message has arrived meanwhile.
func (p *Poller) poll(start time.Time, receive func(block bool) error) error {
	for last, alone := start, true; ; {
		if err := receive(false); !errors.Is(err, ErrNothing) || !alone {
			return err
		}
		// The other thread may run for its whole time slice, so the Go scheduler
		// must know of the call: not RawSyscall.
		_, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		now := time.Now()
		alone = now.Sub(last) < shared
		switch {
		case now.Sub(last) >= preempted:
			p.pause(now)
			return ErrNothing
		case now.Sub(start) >= p.Window:
			return ErrNothing
		}
		last = now
	}
}

// pause stops the polling for a time, which doubles if the last pause was recent.
func (p *Poller) pause(now time.Time) {
	const recent = 16 // lengths of a pause
	if now.Sub(p.resume) < recent*p.backoff {
		p.backoff = min(2*p.backoff, longestBackoff)
	} else {
		p.backoff = firstBackoff
	}
	p.resume = now.Add(p.backoff)
}

func (p *Poller) spin(receive func(block bool) error) error {
	for start := time.Now(); time.Since(start) < p.Spin; {
		if err := receive(false); !errors.Is(err, ErrNothing) {
			return err
		}
	}
	return receive(true)
}

// reserved is the number of processors that ReserveProcessors adds. A host rarely
// has more readers that are active at one time, and the garbage collector, which
// goes by GOMAXPROCS, stays small.
const reserved = 4

var (
	reserve  sync.Once
	unraised atomic.Int32 // GOMAXPROCS before ReserveProcessors; 0: not raised
)

// ReserveProcessors raises GOMAXPROCS, once, for a program of proxies: a reader that
// waits in the kernel keeps its processor (P) of the Go scheduler between short
// waits, and without an idle one a thread of the runtime wakes up every 20 us to
// take it away. The program calls it at its start. A library must not: GOMAXPROCS
// belongs to the program, and its readers work without.
func ReserveProcessors() {
	reserve.Do(func() {
		n := runtime.GOMAXPROCS(0)
		unraised.Store(int32(n))
		runtime.GOMAXPROCS(n + reserved)
	})
}

// Processors returns GOMAXPROCS without the reserve: how many goroutines that compute
// for long leave it to the readers.
func Processors() int {
	if n := unraised.Load(); n > 0 {
		return int(n)
	}
	return runtime.GOMAXPROCS(0)
}
