package engine

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// entryBudget bounds the work of one entry: each Transmit of a handler and each
// TLP that one handler hands to another takes 1. Two handlers that keep each
// other busy would otherwise keep their group entered, and the goroutine that
// entered it, for ever. 256 TLPs of 4 KiB take about 100 µs, less than the round
// trip of a network, and amortise what leaving and entering cost.
const entryBudget = 256

// resumeDelay is when a group whose budget was used up goes on: the time in which
// a slot of 16 lanes moves 64 KiB at 32 GB/s. In virtual time, two handlers that
// keep each other busy would stop the clock without it.
const resumeDelay = 2 * time.Microsecond

// Group is a set of bindings that are used under one entry: those of one
// virtual switch, which is one PCIe hierarchy and one tenant. Bindings of
// different groups never wait for each other.
type Group struct {
	cfg      Config
	now      time.Duration
	bindings []*Binding // in the order of Attach
	wake     time.Duration
	budget   int // that is left of the entry
	pace     pace
	stand    stand // the last one

	touched []*Binding // handlers that are to transmit
	pumped  []*Binding // links that are to transmit
	holding []*Binding // with TLPs that their handlers could not take
	watched tlp.Packet // that the watcher is shown
	single  tlp.Packet // of a run

	lent  []link.Lent // scratch space of transmit
	parts [][]byte
}

// NewGroup makes an empty group.
func NewGroup(cfg Config) *Group { return &Group{cfg: cfg, wake: machine.Never} }

// Enter begins an entry. The driver calls Settle before it ends. Bindings that
// wanted to be woken by now transmit when the group settles.
func (g *Group) Enter(now time.Duration) Entry {
	g.stand.note(now, g.now, g.wake)
	g.now, g.budget = now, entryBudget
	if g.Resting() {
		g.budget = restBudget
	}
	if now >= g.wake {
		g.wakeDue()
	}
	return Entry{g}
}

func (g *Group) wakeDue() {
	for _, b := range g.bindings {
		if b.wake <= g.now {
			b.wake = machine.Never
			b.touch()
		}
	}
}

// Wake returns when the group wants to be entered again, or machine.Never. It is
// soon after the entry if that has used up its budget, or after a rest.
func (g *Group) Wake() time.Duration {
	if g.Pending() {
		return min(g.wake, max(machine.After(g.now, resumeDelay), g.pace.restTo))
	}
	return g.wake
}

// Pending reports whether bindings are touched that Settle has not served. After
// Settle, the driver enters the group again when it has served other groups.
func (g *Group) Pending() bool { return len(g.touched) > 0 }

// Bindings returns the bindings in the order of Attach. The slice is valid during
// the entry.
func (g *Group) Bindings(Entry) []*Binding { return g.bindings }

// Settle lets the handlers of the touched bindings transmit, offers TLPs that
// handlers could not take again, and writes what the links have ready. It goes
// on until nothing is touched, because a handler may touch another binding and
// so may the end of a link, or until the budget of the entry is used up.
func (g *Group) Settle(Entry) {
	for {
		for len(g.touched) > 0 && g.budget > 0 {
			g.pump()
			g.offerHeld()
		}
		if len(g.pumped) == 0 {
			break
		}
		g.transmit()
	}
	g.wake = machine.Never
	for _, b := range g.bindings {
		g.wake = min(g.wake, b.wake)
	}
}

// pump lets touched handlers transmit, in the order in which they were touched.
func (g *Group) pump() {
	e := Entry{g}
	done := 0
	for ; done < len(g.touched) && g.budget > 0; done++ { // the list may grow
		b := g.touched[done]
		g.budget--
		b.again = false
		if !b.closed {
			b.handler.Transmit(e)
		}
		b.dirty = false // its own TLPs are no reason to call it again
		if b.again {
			b.touch()
		}
		if b.blocks > 0 {
			g.unblock(b)
		}
		if !b.pumped {
			b.pumped = true
			g.pumped = append(g.pumped, b)
		}
	}
	g.touched = slices.Delete(g.touched, 0, done)
}

// unblock lets those transmit again whose TLPs b could not take.
func (g *Group) unblock(b *Binding) {
	for _, from := range g.bindings {
		if from.blockedBy == b {
			from.blockedBy = nil
			from.touch()
		}
	}
	b.blocks = 0
}

// transmit lets the links send in turn, a quantum each, until none has more
// (deficit round robin), so that a short message does not wait for a bulk
// transfer. No handler is called meanwhile.
func (g *Group) transmit() {
	for len(g.pumped) > 0 {
		more := g.pumped[:0]
		for _, b := range g.pumped {
			if b.transmit(g.now) {
				more = append(more, b)
				continue
			}
			b.pumped = false
			b.schedule()
		}
		clear(g.pumped[len(more):])
		g.pumped = more
	}
}

// offerHeld offers TLPs that handlers could not take again: a handler that has
// transmitted may have made room for them, also on another binding.
func (g *Group) offerHeld() {
	kept := g.holding[:0]
	for _, b := range g.holding {
		if !b.closed && b.retry() {
			kept = append(kept, b)
		}
	}
	clear(g.holding[len(kept):])
	g.holding = kept
}

// heard returns when a link other than that of b last heard the peer of b.
func (g *Group) heard(b *Binding) time.Duration {
	var at time.Duration
	for _, other := range g.bindings {
		if other != b && other.link.State() == link.Up && slices.Equal(other.peers, b.peers) {
			at = max(at, other.link.Heard())
		}
	}
	return at
}
