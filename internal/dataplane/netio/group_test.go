package netio

import (
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/link"
)

// Post runs each function once, whether the group is free or not.
func TestPost(t *testing.T) {
	f := open(t, PathConfig{})
	g := f.newGroup()
	const posters, each = 4, 500
	count := 0 // guarded by the group
	var running sync.WaitGroup
	for range posters {
		running.Go(func() {
			for range each {
				g.Post(func(engine.Entry) { count++ })
			}
		})
	}
	running.Go(func() {
		for range each {
			at := g.Enter()
			g.Post(func(engine.Entry) { count++ }) // inside an entry
			g.Leave(at)
		}
	})
	running.Wait()
	at := g.Enter()
	defer g.Leave(at)
	if want := (posters + 1) * each; count != want {
		t.Errorf("%d functions ran, want %d", count, want)
	}
}

// A function posted inside an entry runs before Leave returns, and its TLPs leave.
func TestPostSends(t *testing.T) {
	r := joinFabrics(t)
	var a, b end
	done := b.expect(t, 1)
	r.join(r.configs(1, link.CipherAES256GCM), &a, &b)
	a.await(t, link.Up)
	at := a.group.Enter()
	ran := false
	a.group.Post(func(at engine.Entry) {
		ran = true
		if err := a.binding.Send(at, new(stream).packet(0)); err != nil {
			t.Error(err)
		}
	})
	if ran {
		t.Error("ran before the caller left")
	}
	a.group.Leave(at)
	wait(t, done, "the TLP")
}

// TLPs sent before LeaveSoon share a datagram, and leave although no goroutine
// enters the group again.
func TestLeaveSoon(t *testing.T) {
	const n = 20
	r := joinFabrics(t)
	cfg := r.configs(1, link.CipherAES256GCM)
	for side := range cfg { // nothing but the group's timer may send
		cfg[side].KeepAlive, cfg[side].DeadInterval = time.Hour, 3*time.Hour
	}
	var a, b end
	done := b.expect(t, n)
	r.join(cfg, &a, &b)
	a.await(t, link.Up)
	b.await(t, link.Up)
	var s stream
	for i := range n {
		at := a.group.Enter()
		if err := a.binding.Send(at, s.packet(i)); err != nil {
			t.Error(err)
		}
		a.group.LeaveSoon(at)
	}
	wait(t, done, "TLPs that no Leave follows")

	// The same with a posted function: it runs at once.
	ran := make(chan struct{})
	at := a.group.Enter()
	a.group.Post(func(engine.Entry) { close(ran) })
	a.group.LeaveSoon(at)
	wait(t, ran, "what was posted")
}

// Handlers that keep each other busy have one goroutine of the timer, however
// many others enter the group, and stop when they are detached.
func TestBusyGroupHasOneTimer(t *testing.T) {
	f := open(t, PathConfig{})
	g := f.newGroup()
	r := &fabrics{t: t, fabric: [2]*Fabric{f, f}}
	var ends [2]end
	var bindings [2]*engine.Binding
	entries := 0 // guarded by the group
	at := g.Enter()
	for i := range ends {
		ends[i].states = make(chan link.State, 16)
		ends[i].transmit = func(at engine.Entry) {
			for bindings[1] != nil && bindings[i].HandOver(at, bindings[1-i], write(0, 4)) {
				entries++
			}
		}
		b, err := g.Attach(at, engine.BindingConfig{Link: r.configs(uint32(i+1), link.CipherNone)[0], Peers: f.Addrs(), Handler: &ends[i]})
		if err != nil {
			t.Fatal(err)
		}
		bindings[i] = b
	}
	g.Leave(at)
	before := runtime.NumGoroutine()
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() {
			for range 500 {
				at := g.Enter()
				bindings[0].Touch(at)
				g.Leave(at)
				f.Jump(time.Nanosecond)
			}
		})
	}
	running.Wait()
	// One of the timer; the others of this test may be about to end.
	if n := runtime.NumGoroutine(); n > before+6 {
		t.Errorf("%d goroutines, %d before", n, before)
	}
	for _, b := range bindings {
		g.Detach(b)
	}
	at = g.Enter()
	defer g.Leave(at)
	if entries == 0 {
		t.Error("the handlers did nothing")
	}
}
