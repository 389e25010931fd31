package netio

import (
	"errors"
	"log/slog"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// counter counts the settings of a timer.
type counter struct {
	timer
	sets atomic.Int32 // the timer's goroutine counts too
}

func (c *counter) Reset(d time.Duration) bool {
	c.sets.Add(1)
	return c.timer.Reset(d)
}

// idle is a timer that the test fires.
type idle struct{ set time.Duration }

func (i *idle) Reset(d time.Duration) bool { i.set = d; return true }
func (i *idle) Stop() bool                 { i.set = machine.Never; return true }

func TestAlarm(t *testing.T) {
	const us, ms = time.Microsecond, time.Millisecond
	timer := &idle{set: machine.Never}
	a := newAlarm(timer)
	now := time.Duration(0)
	// fire is an entry of the timer that leaves with a deadline.
	fire := func(wake, next time.Duration) {
		now = a.at
		a.entered(now, wake)
		a.fired()
		a.set(now, next)
	}
	want := func(what string, at time.Duration) {
		t.Helper()
		if a.at != at || timer.set != at-now {
			t.Fatalf("%s: fires at %v, set to %v, want %v", what, a.at, timer.set+now, at)
		}
	}
	a.set(now, 250*us)
	want("at first", 250*us)
	a.set(now, 300*us)
	want("for a later deadline", 250*us)
	a.set(now, 200*us)
	want("for an earlier deadline", 200*us)
	for _, slack := range []time.Duration{250 * us, 500 * us, ms, ms} {
		next := a.at + 250*us
		fire(next, next)
		want("after a firing for nothing", next+slack)
	}
	a = newAlarm(timer)
	a.slack = ms
	a.set(now, now+20*ms)
	want("a slack later", now+21*ms)
	a.set(now, now+18*ms)
	want("for a deadline within three slacks", now+21*ms)
	a.set(now, now+18*ms-us)
	want("for a deadline before that", now+19*ms-us)
	a.setExactly(now, now+18*ms)
	want("exactly", now+18*ms)
	for _, slack := range []time.Duration{500 * us, 250 * us, 0, 0} {
		next := a.at + 5*ms
		fire(a.at, next)
		want("after a firing whose deadline has passed", next+slack)
	}
	a.slack = ms
	a.entered(now+us, now) // an entry does the work of a deadline
	next := a.at + 5*ms
	fire(next, next)
	want("when an entry found a deadline passed", next+500*us)
}

// exchange is two groups in virtual time whose sockets the test reads.
type exchange struct {
	t     *testing.T
	in    [2]*input
	ends  [2]end
	timer [2]*counter
}

func newExchange(t *testing.T) *exchange {
	x := &exchange{t: t}
	r := &fabrics{t: t}
	for side := range x.ends {
		f, err := Open(Config{Paths: []PathConfig{{Listen: "127.0.0.1:0"}}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.closeSockets() })
		g := f.newGroup()
		x.timer[side] = &counter{timer: g.alarm.timer}
		g.alarm.timer = x.timer[side]
		r.fabric[side], r.group[side] = f, g
		x.in[side] = newInput(f, f.paths[0], 0)
	}
	r.join(r.configs(1, link.CipherAES256GCM), &x.ends[0], &x.ends[1])
	for x.state(0) != link.Up || x.state(1) != link.Up {
		for side := range x.in {
			_ = x.in[side].Receive(false)
		}
		time.Sleep(5 * time.Microsecond)
	}
	return x
}

func (x *exchange) state(side int) link.State {
	g := x.ends[side].group
	e := g.Enter()
	defer g.Leave(e)
	return x.ends[side].binding.State(e)
}

// send sends a TLP of an end.
func (x *exchange) send(side int, p *tlp.Packet) {
	g := x.ends[side].group
	e := g.Enter()
	defer g.Leave(e)
	if err := x.ends[side].binding.Send(e, p); err != nil {
		x.t.Error(err)
	}
}

// receive receives a datagram, which the kernel may deliver late but without the
// passing of virtual time.
func (x *exchange) receive(side int) {
	for range 10_000_000 {
		err := x.in[side].Receive(false)
		if err == nil {
			return
		}
		if !errors.Is(err, reader.ErrNothing) {
			x.t.Fatal(err)
		}
		runtime.Gosched()
	}
	x.t.Fatal("no datagram")
}

// drain takes the datagrams of an end, and reports whether there were any.
func (x *exchange) drain(side int) (any bool) {
	for x.in[side].Receive(false) == nil {
		any = true
	}
	return any
}

// Reads in a row set a timer less than once in a hundred: each setting and each firing
// wakes a thread. When they end, the last acknowledgement still leaves.
func TestReadsSetNoTimers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newExchange(t)
		answer := &tlp.Packet{Type: tlp.CplD, Data: make([]byte, 4), Length: 1, ByteCount: 4}
		answered := 0
		x.ends[1].receive = func(e engine.Entry, _ *tlp.Packet) bool {
			if err := x.ends[1].binding.Send(e, answer); err != nil {
				t.Error(err)
			}
			return true
		}
		x.ends[0].receive = func(engine.Entry, *tlp.Packet) bool {
			answered++
			return true
		}
		read := &tlp.Packet{Type: tlp.MRd}
		read.SetMemory(4096, 4)
		reads := func(n int) {
			for range n {
				x.send(0, read)
				time.Sleep(6 * time.Microsecond)
				x.receive(1)
				time.Sleep(6 * time.Microsecond)
				for before := answered; answered == before; {
					x.receive(0)
				}
				time.Sleep(2 * time.Microsecond)
			}
		}
		reads(1000) // the slack grows
		for _, timer := range x.timer {
			timer.sets.Store(0)
		}
		const n = 10_000
		reads(n)
		for side, timer := range x.timer {
			if sets := timer.sets.Load(); sets > n/100 {
				t.Errorf("%s: %d reads set the timer %d times", []string{"host", "box"}[side], n, sets)
			}
		}
		for late := time.Duration(0); !x.drain(1); late += 100 * time.Microsecond {
			if late > firstSlack+keep*mostSlack {
				t.Fatal("the last answer is not acknowledged")
			}
			time.Sleep(100 * time.Microsecond)
		}
	})
}

// The timer does not wait for a goroutine that has entered the group: that one does its
// work and sets it again.
func TestTimerLeavesItsWork(t *testing.T) {
	f := open(t, PathConfig{})
	g := f.newGroup()
	e := g.Enter()
	g.alarm.setExactly(e.Now(), e.Now()+time.Hour)
	fired := make(chan struct{})
	go func() {
		g.fire()
		close(fired)
	}()
	wait(t, fired, "the timer waits for the group")
	g.Leave(e)
	e = g.Enter()
	defer g.Leave(e)
	if g.alarm.at != machine.Never {
		t.Errorf("the group without a binding has a timer at %v", g.alarm.at)
	}
}

// A reader that goes to sleep hands the datagrams that a fault plan holds back over to
// the loop that sends them, and a writer wakes the loop unless a reader looks.
func TestSleepingReaderHandsOver(t *testing.T) {
	in := newInputWith(t)
	p := in.path
	p.setFault(fault.Plan{Delay: time.Hour}, 1)
	roused := func() bool {
		select {
		case <-p.kick:
			return true
		default:
			return false
		}
	}
	write := func() {
		p.write(in.fabric.Now, p.conn.NewWriter(), [][]byte{make([]byte, 32)}, 32, p.conn.LocalAddr(), 0)
	}
	if in.path.unattend(); roused() {
		t.Error("woken although nothing is held back")
	}
	p.looked.Store(int64(in.fabric.Now() + time.Hour)) // a reader looks
	if write(); roused() {
		t.Error("a writer wakes the loop although a reader looks")
	}
	if p.unattend(); !roused() {
		t.Error("a reader sleeps and wakes no one")
	}
	if write(); !roused() {
		t.Error("a writer wakes no one although no reader looks")
	}
}

// The timer does the work that is posted in the last round of Leave, also when it has
// just fired and found the group entered.
func TestTimerAfterTheLastRound(t *testing.T) {
	f := open(t, PathConfig{})
	g := f.newGroup()
	ran := make(chan struct{})
	rounds := 0
	var post func(engine.Entry)
	post = func(e engine.Entry) {
		if rounds++; rounds < postRounds {
			g.Post(post)
			return
		}
		g.alarm.at = e.Now() + 1
		g.fire()
		g.Post(func(engine.Entry) { close(ran) })
	}
	e := g.Enter()
	g.Post(post)
	g.Leave(e)
	wait(t, ran, "a posted function")
}
