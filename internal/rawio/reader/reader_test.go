package reader

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var errEnd = errors.New("end")

// pipe is a Source whose messages each name a waiter, or none.
type pipe struct {
	t       testing.TB
	in      chan *waiter
	readers atomic.Int32
	most    time.Duration // that Receive blocks
}

func (p *pipe) Soon() bool { return true }

func (p *pipe) Receive(block bool) error {
	if p.readers.Add(1) != 1 {
		p.t.Error("two goroutines read at once")
	}
	defer p.readers.Add(-1)
	var late <-chan time.Time
	if block {
		late = time.After(p.most)
	} else {
		closed := make(chan time.Time)
		close(closed)
		late = closed
	}
	select {
	case w, ok := <-p.in:
		if !ok {
			return errEnd
		}
		if w != nil {
			w.deliver()
		}
		return nil
	case <-late:
		return ErrNothing
	}
}

// waiter waits for one answer at a time.
type waiter struct {
	Wait
	over  atomic.Bool
	there chan struct{}
	taken bool
}

func newWaiter() *waiter {
	w := &waiter{there: make(chan struct{}, 1)}
	w.Wait = Wait{Ready: w.over.Load, Block: w.take}
	return w
}

func (w *waiter) deliver() {
	w.over.Store(true)
	w.there <- struct{}{}
}

func (w *waiter) take() {
	if !w.taken {
		<-w.there
		w.taken = true
	}
}

// ask makes a request and waits for its answer, which follows other messages.
func (w *waiter) ask(r *Reader, p *pipe, others int) {
	w.over.Store(false)
	w.taken = false
	go func() {
		for range others {
			p.in <- nil
		}
		p.in <- w
	}()
	r.Await(&w.Wait)
	w.take()
}

func run(t *testing.T, polling Polling) (*Reader, *pipe) {
	t.Helper()
	p := &pipe{t: t, in: make(chan *waiter), most: 5 * time.Millisecond}
	r, err := New(p, polling)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- r.Serve() }()
	t.Cleanup(func() {
		close(p.in)
		if err := <-done; !errors.Is(err, errEnd) {
			t.Errorf("Serve ended with %v", err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r, p
}

// Each waiter gets its answer, alone or among others, with and without traffic
// that has no waiter.
func TestEveryWaiterIsAnswered(t *testing.T) {
	for _, c := range []struct {
		name            string
		waiters, others int
		polling         Polling
	}{
		{"one", 1, 0, Polling{}},
		{"one, with traffic", 1, 2 * maxUnasked, Polling{}},
		{"one that polls", 1, 0, Polling{Window: 20 * time.Millisecond}},
		{"one that spins", 1, 0, Polling{Spin: 20 * time.Microsecond}},
		{"many", 8, 0, Polling{}},
		{"many that poll, with traffic", 8, 1, Polling{Window: 20 * time.Millisecond}},
		{"many, with traffic", 8, 1, Polling{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, p := run(t, c.polling)
			var wg sync.WaitGroup
			for range c.waiters {
				wg.Go(func() {
					w := newWaiter()
					for range 200 {
						w.ask(r, p, c.others)
					}
				})
			}
			wg.Wait()
		})
	}
}

// A goroutine that asks again and again reads the answers itself. When it stops,
// messages without a waiter are still read.
func TestWaiterReads(t *testing.T) {
	r, p := run(t, Polling{})
	w := newWaiter()
	for limit := time.Now().Add(10 * time.Second); r.leads.Load() < 100; {
		if time.Now().After(limit) {
			t.Fatalf("the waiter has read %d times", r.leads.Load())
		}
		w.ask(r, p, 0)
	}
	for range 3 {
		p.in <- nil
	}
}

// A waiter returns when its answer comes another way than through the Source.
func TestAnswerFromElsewhere(t *testing.T) {
	r, p := run(t, Polling{})
	w := newWaiter()
	for r.leads.Load() == 0 {
		w.ask(r, p, 0)
	}
	w.over.Store(false)
	w.taken = false
	go w.deliver()
	r.Await(&w.Wait)
	w.take()
}

// A waiter without Block gets its answers too.
func TestNoBlock(t *testing.T) {
	r, p := run(t, Polling{})
	w := newWaiter()
	w.Block = nil
	for range 200 {
		w.ask(r, p, 0)
	}
}

// GOMAXPROCS belongs to the program: a Reader leaves it alone, and a program that
// asks for free processors gets them once.
func TestProcessorsAreThePrograms(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Cleanup(func() {
		reserve = sync.Once{} // as before the program asked
		unraised.Store(0)
		runtime.GOMAXPROCS(before)
	})
	r, p := run(t, Polling{})
	newWaiter().ask(r, p, 0)
	if n := runtime.GOMAXPROCS(0); n != before {
		t.Errorf("GOMAXPROCS is %d with a reader, was %d", n, before)
	}
	ReserveProcessors()
	ReserveProcessors()
	if n := runtime.GOMAXPROCS(0); n != before+reserved {
		t.Errorf("GOMAXPROCS is %d after a reservation, want %d", n, before+reserved)
	}
}

// A goroutine that polls gets the Source for itself, and messages without a waiter
// are still read when it stays away.
func TestPollReads(t *testing.T) {
	r, p := run(t, Polling{})
	var w *waiter // no message has a waiter
	const enough, most = 100, 1_000_000
	ctx, stop := context.WithCancel(t.Context())
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for range most {
			select {
			case p.in <- w:
			case <-ctx.Done():
				return
			}
		}
	}()
	polled := 0
	for open := true; open && polled < enough; {
		if r.Poll() {
			polled++
		}
		select {
		case <-sent:
			open = false
		default:
		}
	}
	stop()
	<-sent
	if polled < enough {
		t.Errorf("the background goroutine has read all of %d messages but %d", most, polled)
	}
	for range 3 {
		p.in <- w
	}
}

// The background goroutine leaves the role to a waiter that reads: one that waited for
// it would take it from the waiter of the next answer.
func TestBackgroundLeavesTheRole(t *testing.T) {
	p := &pipe{t: t, in: make(chan *waiter)}
	r, err := New(p, Polling{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.role.Lock() // as a waiter that reads
	defer r.role.Unlock()
	left := make(chan error, 1)
	go func() { left <- r.serveUntilAsked() }()
	select {
	case err := <-left:
		if err != nil || !r.aside.Load() {
			t.Errorf("aside: %v, %v", r.aside.Load(), err)
		}
	case <-time.After(10 * time.Second):
		t.Error("it waits for the role")
	}
}

// An error that a caller of Poll meets ends Serve, although the caller continues to hold
// and to poll: its socket stays readable after the end of the peer.
func TestPollHandsItsErrorOver(t *testing.T) {
	p := &pipe{t: t, in: make(chan *waiter)}
	r, err := New(p, Polling{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	r.aside.Store(true)
	if !r.Hold() {
		t.Fatal("the background goroutine reads")
	}
	defer r.Release()
	close(p.in)
	ended := make(chan error, 1)
	go func() { // Serve, from where the background goroutine stands aside
		var err error
		for err == nil {
			r.standAside()
			err = r.serveUntilAsked()
		}
		ended <- err
	}()
	for late := time.After(10 * time.Second); ; r.Poll() {
		select {
		case err := <-ended:
			if !errors.Is(err, errEnd) {
				t.Errorf("it ended with %v", err)
			}
			return
		case <-late:
			t.Fatal("the background goroutine stays aside")
		default:
			runtime.Gosched()
		}
	}
}
