package engine

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/tlp"
)

// pair is two bindings of one group whose handlers hand TLPs to each other.
func pair(t *testing.T, n *network, first uint32, a, b *end) {
	t.Helper()
	box, host := n.side[0].newGroup(), n.side[1].newGroup()
	for i, h := range []*end{a, b} {
		n.join([2]*driver{box, host}, n.configs(first+uint32(i), link.CipherNone), h, &end{})
	}
	n.up(a, b)
}

// Two handlers that answer each TLP of the other with a TLP would keep their
// group entered for ever. Each entry ends, and other groups run in between.
func TestHandlersCannotKeepTheGroup(t *testing.T) {
	n := newNetwork(t, 1)
	var a, b end
	owed := map[*end]int{}
	reply := func(h, to *end) {
		h.receive = func(Entry, *tlp.Packet) bool { owed[h]++; return true }
		h.transmit = func(e Entry) {
			for owed[h] > 0 && h.binding.HandOver(e, to.binding, write(0, 4)) {
				owed[h]--
			}
		}
	}
	pair(t, n, 1, &a, &b)
	reply(&a, &b)
	reply(&b, &a)
	var c, d end // a neighbour with a group of its own
	n.join([2]*driver{n.side[0].newGroup(), n.side[1].newGroup()}, n.configs(9, link.CipherNone), &c, &d)
	n.up(&c, &d)

	owed[&a] = 1
	a.with(func(e Entry) { a.binding.Touch(e) }) // returns
	if n := a.arrived + b.arrived; n == 0 || n > entryBudget {
		t.Errorf("one entry handed over %d TLPs, want some, and at most %d", n, entryBudget)
	}
	if wake := a.driver.group.Wake(); wake != n.now+resumeDelay {
		t.Errorf("the group wants to be entered at %v, want soon after %v", wake, n.now)
	}
	before := a.arrived
	d.with(func(e Entry) {
		if err := d.binding.Send(e, write(0, 4)); err != nil {
			t.Fatal(err)
		}
	})
	n.run(n.now+20*time.Millisecond, nil) // time passes, although the group always has work
	if a.arrived-before < 1000 {
		t.Error("the handlers do not go on in the next entries")
	}
	if c.arrived != 1 {
		t.Errorf("the neighbour got %d TLPs, want 1", c.arrived)
	}
	// The links of the pair stay up: acknowledgements leave with each entry.
	if s := a.binding.link.State(); s != link.Up {
		t.Errorf("the link of the busy pair is %v", s)
	}
}

// Two handlers that keep each other busy for ever get half of a processor. Work of
// some milliseconds is not slowed down.
func TestBusyGroupRests(t *testing.T) {
	const cost = 100 * time.Microsecond
	n := newNetwork(t, 1)
	var a, b end
	pair(t, n, 1, &a, &b)
	owed := map[*end]int{&a: 1}
	for h, to := range map[*end]*end{&a: &b, &b: &a} {
		h.receive = func(Entry, *tlp.Packet) bool { owed[h]++; return true }
		h.transmit = func(e Entry) {
			for owed[h] > 0 && h.binding.HandOver(e, to.binding, write(0, 4)) {
				owed[h]--
			}
		}
	}
	a.driver.cost = cost
	start := n.now
	a.with(func(e Entry) { a.binding.Touch(e) })
	n.run(start+3*time.Millisecond, nil)
	if a.driver.busy < 2900*time.Microsecond {
		t.Errorf("the group worked for %v of its first 3 ms", a.driver.busy)
	}
	n.run(start+time.Second, nil)
	if share := float64(a.driver.busy) / float64(n.now-start); share < 0.4 || share > 0.55 {
		t.Errorf("the group worked for %.2f of a second, want half", share)
	}
	if s := a.binding.link.State(); s != link.Up {
		t.Errorf("the link of the busy pair is %v", s)
	}

	// An entry during a rest does little.
	n.run(n.now+time.Second, a.driver.group.Resting)
	before := a.arrived + b.arrived
	a.driver.cost = 0
	a.with(func(Entry) {})
	if did := a.arrived + b.arrived - before; did > restBudget {
		t.Errorf("%d TLPs were handed over during a rest", did)
	}
}

// A flood in one direction is cut into entries, in order and without loss.
func TestFloodIsCutIntoEntries(t *testing.T) {
	const total = 10*entryBudget + 7
	n := newNetwork(t, 1)
	var a, b end
	pair(t, n, 1, &a, &b)
	sent := 0
	a.transmit = func(e Entry) {
		for sent < total && a.binding.HandOver(e, b.binding, write(uint64(sent)<<2, 4)) {
			sent++
		}
	}
	b.receive = func(_ Entry, p *tlp.Packet) bool {
		if want := uint64(b.arrived) << 2; p.Addr != want {
			t.Fatalf("TLP to %#x, want %#x", p.Addr, want)
		}
		return true
	}
	before := a.driver.entries
	a.with(func(e Entry) { a.binding.Touch(e) })
	n.run(n.now+time.Millisecond, func() bool { return b.arrived == total })
	if entries := a.driver.entries - before; b.arrived != total || entries < 10 {
		t.Errorf("%d TLPs in %d entries, want %d in at least 10", b.arrived, entries, total)
	}
}

// A handler that cannot take a neighbour's TLP stops the neighbour, which goes
// on when the handler has transmitted again.
func TestNeighbourIsSlowedDown(t *testing.T) {
	const total = 20
	n := newNetwork(t, 1)
	var a, b end
	pair(t, n, 1, &a, &b)
	room, sent := 3, 0
	b.receive = func(Entry, *tlp.Packet) bool {
		if room == 0 {
			return false
		}
		room--
		return true
	}
	a.transmit = func(e Entry) {
		for sent < total && a.binding.HandOver(e, b.binding, write(0, 4)) {
			sent++
		}
	}
	a.with(func(e Entry) { a.binding.Touch(e) })
	n.run(n.now+10*time.Millisecond, nil)
	if b.arrived != 3 || sent != 3 {
		t.Fatalf("%d of %d TLPs arrived, want the 3 that there was room for", b.arrived, sent)
	}
	idle := a.transmits
	n.run(n.now+10*time.Millisecond, nil)
	if more := a.transmits - idle; more > 2 {
		t.Errorf("the neighbour tried %d times though nothing changed", more)
	}
	for b.arrived < total {
		room = 4
		before := b.arrived
		b.with(func(e Entry) { b.binding.Touch(e) })
		if b.arrived == before {
			t.Fatalf("%d TLPs arrived, and no more with room for 4", b.arrived)
		}
	}
}

// A handler that takes the TLPs of its peer again, after it took none for long, gets them in
// several entries: a device server may read its socket again, or a VMM its messages.
func TestHeldTLPsAreCutIntoEntries(t *testing.T) {
	const total = 10*entryBudget + 7
	n := newNetwork(t, 1)
	var to, from end
	n.join([2]*driver{n.side[0].newGroup(), n.side[1].newGroup()}, n.configs(1, link.CipherNone), &to, &from)
	n.up(&to, &from)
	takes := false
	to.receive = func(_ Entry, p *tlp.Packet) bool {
		if want := uint64(to.arrived) << 2; takes && p.Addr != want {
			t.Fatalf("TLP to %#x, want %#x", p.Addr, want)
		}
		return takes
	}
	sent := 0
	from.transmit = func(e Entry) {
		for sent < total && from.binding.Send(e, write(uint64(sent)<<2, 4)) == nil {
			sent++
		}
	}
	from.with(func(e Entry) { from.binding.Touch(e) })
	if !n.run(n.now+time.Second, func() bool { return len(to.binding.held.packets) == total }) {
		t.Fatalf("%d TLPs are held, want %d", len(to.binding.held.packets), total)
	}
	takes = true
	to.with(func(e Entry) { to.binding.Touch(e) })
	if to.arrived == 0 || to.arrived > entryBudget {
		t.Errorf("one entry took %d TLPs, want some, and at most %d", to.arrived, entryBudget)
	}
	if !n.run(n.now+time.Second, func() bool { return to.arrived == total }) {
		t.Errorf("%d TLPs arrived, want %d", to.arrived, total)
	}
}

// Held TLPs are offered again, too, if the handlers have used up the budget of the entry
// that made room for them.
func TestHeldTLPsWaitForABudget(t *testing.T) {
	n := newNetwork(t, 1)
	var to, from end
	n.join([2]*driver{n.side[0].newGroup(), n.side[1].newGroup()}, n.configs(1, link.CipherNone), &to, &from)
	n.up(&to, &from)
	takes := false
	to.receive = func(Entry, *tlp.Packet) bool { return takes }
	from.with(func(e Entry) {
		if err := from.binding.Send(e, write(0, 4)); err != nil {
			t.Fatal(err)
		}
	})
	n.run(n.now+time.Second, func() bool { return len(to.binding.held.packets) == 1 })
	n.run(n.now+20*time.Millisecond, nil) // the acknowledgement has left
	to.transmit = func(e Entry) {
		takes, to.transmit = true, nil
		e.group.budget = 0
	}
	to.with(func(e Entry) { to.binding.Touch(e) })
	if !n.run(n.now+resumeDelay, func() bool { return to.arrived == 1 }) {
		t.Error("the held TLP is not offered again")
	}
}
