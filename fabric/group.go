package fabric

import (
	"sync"
	"time"
)

// Group is a set of bindings that are worked on under one lock: those of one
// virtual switch, which is one PCIe hierarchy and one tenant. Bindings of
// different groups never wait for each other.
//
//	now := g.Enter()
//	err := binding.Send(now, &packet)
//	g.Leave()
//
// Between the two the caller may call the methods of Binding that say so.
// Leave pumps the handlers of the bindings that were touched, sends what their
// links have ready, in one batch each, and sets the timers.
type Group struct {
	fabric *Fabric

	mu       sync.Mutex
	now      time.Duration
	touched  []*Binding
	deferred []func()
}

// NewGroup makes an empty group.
func (f *Fabric) NewGroup() *Group { return &Group{fabric: f} }

// Enter locks the group and returns the time.
func (g *Group) Enter() time.Duration {
	g.mu.Lock()
	g.now = g.fabric.Now()
	return g.now
}

// Leave finishes what was begun since Enter and unlocks the group.
func (g *Group) Leave() {
	// Pumping one binding may touch another (peer-to-peer), so the list may grow.
	for i := 0; i < len(g.touched); i++ {
		b := g.touched[i]
		if !b.closed {
			b.handler.Pump(g.now)
			b.retry(g.now)
		}
		b.dirty = false // what it sent by itself needs no other pumping
	}
	for _, b := range g.touched {
		b.transmit(g.now)
		b.arm(g.now)
	}
	clear(g.touched)
	g.touched = g.touched[:0]
	after := g.deferred
	g.deferred = nil
	g.mu.Unlock()
	for _, f := range after {
		f()
	}
}

// Defer runs f after the group has been left, in the same goroutine: for calls
// that must not be made under the lock. Call it between Enter and Leave.
func (g *Group) Defer(f func()) { g.deferred = append(g.deferred, f) }
