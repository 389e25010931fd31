package reader

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

var errEnd = errors.New("end")

// pipe is a Source of numbers: each names the waiter that it is for.
type pipe struct {
	t       testing.TB
	in      chan *waiter
	readers atomic.Int32
	most    time.Duration // that Receive blocks
}

func (p *pipe) Exchange() bool { return true }

func (p *pipe) Receive(block bool) error {
	if p.readers.Add(1) != 1 {
		p.t.Error("two read at once")
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

// waiter waits for one thing at a time.
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

// ask makes a request whose answer comes after some others, and waits for it.
func (w *waiter) ask(t *Turn, p *pipe, others int) {
	w.over.Store(false)
	w.taken = false
	go func() {
		for range others {
			p.in <- nil
		}
		p.in <- w
	}()
	t.Await(&w.Wait)
	w.take()
}

func run(t *testing.T, polling Polling) (*Turn, *pipe) {
	t.Helper()
	p := &pipe{t: t, in: make(chan *waiter), most: 5 * time.Millisecond}
	turn, err := New(p, polling)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- turn.Serve() }()
	t.Cleanup(func() {
		close(p.in)
		if err := <-done; !errors.Is(err, errEnd) {
			t.Errorf("Serve ended with %v", err)
		}
		if err := turn.Close(); err != nil {
			t.Error(err)
		}
	})
	return turn, p
}

// Whoever reads, each waiter gets his answer, with others at the same time and
// with traffic that nobody waits for.
func TestEveryWaiterIsAnswered(t *testing.T) {
	for _, c := range []struct {
		name            string
		waiters, others int
		polling         Polling
	}{
		{"one", 1, 0, Polling{}},
		{"one, with traffic", 1, 2 * calm, Polling{}},
		{"one that polls", 1, 0, Polling{Window: 20 * time.Millisecond}},
		{"one that spins", 1, 0, Polling{Spin: 20 * time.Microsecond}},
		{"many", 8, 0, Polling{}},
		{"many that poll, with traffic", 8, 1, Polling{Window: 20 * time.Millisecond}},
		{"many, with traffic", 8, 1, Polling{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			turn, p := run(t, c.polling)
			var wg sync.WaitGroup
			for range c.waiters {
				wg.Go(func() {
					w := newWaiter()
					for range 200 {
						w.ask(turn, p, c.others)
					}
				})
			}
			wg.Wait()
		})
	}
}

// Who asks again and again reads himself, and what nobody waits for is read as
// well when he has stopped.
func TestWhoWaitsReads(t *testing.T) {
	turn, p := run(t, Polling{})
	w := newWaiter()
	for limit := time.Now().Add(10 * time.Second); turn.led.Load() < 100; {
		if time.Now().After(limit) {
			t.Fatalf("he has read %d times", turn.led.Load())
		}
		w.ask(turn, p, 0)
	}
	for range 3 {
		p.in <- nil
	}
}

// An answer that comes by another way, or never, does not keep who waits from
// seeing that.
func TestNothingComes(t *testing.T) {
	turn, p := run(t, Polling{})
	w := newWaiter()
	for turn.led.Load() == 0 {
		w.ask(turn, p, 0)
	}
	w.over.Store(false)
	w.taken = false
	go w.deliver()
	turn.Await(&w.Wait)
	w.take()
}

// Who does not wait when he cannot read is answered all the same.
func TestNoBlock(t *testing.T) {
	turn, p := run(t, Polling{})
	w := newWaiter()
	w.Block = nil
	for range 200 {
		w.ask(turn, p, 0)
	}
}
