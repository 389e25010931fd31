package netio

import (
	"sync"
	"sync/atomic"
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

	mu      sync.Mutex
	now     time.Duration
	touched []*Binding // to be pumped
	pumped  []*Binding // to be transmitted
	holding []*Binding // with TLPs that their handlers could not take

	waiting atomic.Int32 // of posted, read without the mutex
	postMu  sync.Mutex   // guards what follows
	posted  []func(now time.Duration)
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
	for {
		g.runPosted()
		g.settle()
		g.mu.Unlock()
		// Whoever posted before the unlocking has found the group locked.
		if !g.hasPosted() || !g.mu.TryLock() {
			return
		}
		g.now = g.fabric.Now()
	}
}

// soon is how long LeaveSoon lets TLPs wait: a fraction of what a round trip
// through both proxies takes, so that it is not felt, and long enough for tens
// of posted writes to share a datagram.
const soon = 20 * time.Microsecond

// LeaveSoon unlocks the group like Leave, but leaves the sending to the next
// one who leaves: for callers that enter again at once. Should none come, a
// timer sends.
func (g *Group) LeaveSoon() {
	for _, b := range g.touched {
		if !b.closed {
			b.armAt(g.now, g.now+soon)
		}
	}
	g.mu.Unlock()
	if g.hasPosted() && g.mu.TryLock() {
		g.now = g.fabric.Now()
		g.Leave()
	}
}

// Post runs f with the group entered: at once when nobody is in the group, else
// in the goroutine that is, before it has left. It never waits, so it may be
// called with any lock held, and with the group entered too.
func (g *Group) Post(f func(now time.Duration)) {
	g.postMu.Lock()
	g.posted = append(g.posted, f)
	g.waiting.Add(1)
	g.postMu.Unlock()
	if g.mu.TryLock() {
		g.now = g.fabric.Now()
		g.Leave()
	}
}

// hasPosted reports whether something waits. Whoever posts counts it before he
// tries the lock, so who looks after unlocking misses nothing.
func (g *Group) hasPosted() bool { return g.waiting.Load() > 0 }

func (g *Group) runPosted() {
	if !g.hasPosted() {
		return
	}
	g.postMu.Lock()
	posted := g.posted
	g.posted = nil
	g.waiting.Store(0)
	g.postMu.Unlock()
	for _, f := range posted {
		f(g.now)
	}
}

// settle pumps and sends until nothing is touched: pumping one binding may
// touch another (peer-to-peer), and so may the end of a link that transmitting
// finds.
func (g *Group) settle() {
	for {
		for len(g.touched) > 0 {
			g.pump()
			g.offerHeld()
		}
		if len(g.pumped) == 0 {
			return
		}
		g.transmit()
	}
}

func (g *Group) pump() {
	for i := 0; i < len(g.touched); i++ { // the list may grow
		b := g.touched[i]
		if !b.closed {
			b.handler.Pump(g.now)
		}
		b.dirty = false // what it sent by itself needs no other pumping
		if !b.pumped {
			b.pumped = true
			g.pumped = append(g.pumped, b)
		}
	}
	clear(g.touched)
	g.touched = g.touched[:0]
}

// transmit lets the bindings send in turn, a quantum each, until none has more
// (deficit round robin): who has little to send does not wait for who has much.
// Nothing is pumped meanwhile.
func (g *Group) transmit() {
	for len(g.pumped) > 0 {
		more := g.pumped[:0]
		for _, b := range g.pumped {
			if b.transmit(g.now) {
				more = append(more, b)
				continue
			}
			b.pumped = false
			b.arm(g.now)
		}
		clear(g.pumped[len(more):])
		g.pumped = more
	}
}

// offerHeld offers what the handlers could not take again: whatever was pumped
// may have made room for it, also on another binding of the group.
func (g *Group) offerHeld() {
	kept := g.holding[:0]
	for _, b := range g.holding {
		if !b.closed && b.retry(g.now) {
			kept = append(kept, b)
		}
	}
	clear(g.holding[len(kept):])
	g.holding = kept
}
