package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// numbered makes TLP number i: a read, or a write whose payload depends on i.
func numbered(i int) *tlp.Packet {
	p := &tlp.Packet{Type: tlp.MRd}
	n := [...]int{4, 0, 128, 512, 4096, 64}[i%6]
	if n > 0 {
		p.Type, p.Data = tlp.MWr, make([]byte, n)
		for at := 0; at < n; at += 4 {
			binary.LittleEndian.PutUint32(p.Data[at:], uint32(i*at+i))
		}
	}
	p.SetMemory(uint64(i)<<12, max(n, 4))
	return p
}

// sendAll makes the handler send total numbered TLPs as its link takes them.
func (h *end) sendAll(t *testing.T, total int) {
	t.Helper()
	sent := 0
	h.transmit = func(e Entry) {
		for sent < total {
			switch err := h.binding.Send(e, numbered(sent)); {
			case errors.Is(err, link.ErrFull):
				return
			case err != nil:
				t.Fatal(err)
			}
			sent++
		}
	}
	h.with(func(e Entry) { h.binding.Touch(e) })
}

// expect makes the handler check that the numbered TLPs arrive in order.
func (h *end) expect(t *testing.T) {
	t.Helper()
	h.receive = func(_ Entry, p *tlp.Packet) bool {
		want := numbered(h.arrived)
		if p.Type != want.Type || p.Addr != want.Addr || !bytes.Equal(p.Data, want.Data) {
			t.Fatalf("TLP %d: %v at %#x with %d bytes, want %v at %#x with %d (or other bytes)",
				h.arrived, p.Type, p.Addr, len(p.Data), want.Type, want.Addr, len(want.Data))
		}
		return true
	}
}

func (n *network) pairOfGroups() [2]*driver {
	return [2]*driver{n.side[0].newGroup(), n.side[1].newGroup()}
}

func TestDeliversInOrder(t *testing.T) {
	bad := fault.Plan{Loss: 0.02, Dup: 0.02, Reorder: 0.05, Corrupt: 0.01}
	late := fault.Plan{Delay: 500 * time.Microsecond, Jitter: 500 * time.Microsecond, Reorder: 0.1}
	for _, c := range []struct {
		name   string
		cipher link.Cipher
		plans  []fault.Plan
	}{
		{"one path", link.CipherAES256GCM, make([]fault.Plan, 1)},
		{"clear", link.CipherNone, make([]fault.Plan, 1)},
		{"two paths", link.CipherAES256GCM, make([]fault.Plan, 2)},
		{"a bad path", link.CipherAES256GCM, []fault.Plan{bad}},
		{"one bad and one late path", link.CipherAES256GCM, []fault.Plan{bad, late}},
	} {
		t.Run(c.name, func(t *testing.T) {
			const total = 1200
			n := newNetwork(t, 1, c.plans...)
			var a, b end
			n.join(n.pairOfGroups(), n.configs(1, c.cipher), &a, &b)
			a.expect(t)
			b.expect(t)
			a.sendAll(t, total)
			b.sendAll(t, total)
			if !n.run(20*time.Second, func() bool { return a.arrived == total && b.arrived == total }) {
				t.Errorf("%d and %d TLPs arrived, want %d each", b.arrived, a.arrived, total)
			}
		})
	}
}

// The same seed gives the same datagrams, with several bindings in a group.
func TestSameSeedSameBytes(t *testing.T) {
	run := func(seed uint64) (sum uint64, datagrams int) {
		n := newNetwork(t, seed, fault.Plan{Loss: 0.05, Reorder: 0.1, Jitter: 20 * time.Microsecond})
		h := fnv.New64a()
		n.onSend = func(from int, path uint8, batch []byte, segment int) {
			datagrams++
			_ = binary.Write(h, binary.LittleEndian, []int64{int64(n.now), int64(from), int64(path), int64(segment)})
			_, _ = h.Write(batch)
		}
		groups := n.pairOfGroups()
		ends := make([][2]end, 8)
		for i := range ends {
			n.join(groups, n.configs(uint32(i+1), link.CipherAES256GCM), &ends[i][0], &ends[i][1])
			ends[i][0].sendAll(t, 100)
			ends[i][1].sendAll(t, 100)
		}
		n.run(50*time.Millisecond, nil)
		return h.Sum64(), datagrams
	}
	sum, datagrams := run(1)
	again, _ := run(1)
	other, _ := run(2)
	if sum != again || sum == other || datagrams < 100 {
		t.Errorf("%d batches: %#x, the same seed %#x, another one %#x", datagrams, sum, again, other)
	}
}

// A handler that takes nothing slows its peer down: the held TLPs stay within
// the window of the link, and come in order when the handler takes TLPs again.
func TestHoldSlowsThePeer(t *testing.T) {
	const total, window = 1200, 64 << 10
	n := newNetwork(t, 1)
	cfg := n.configs(1, link.CipherAES256GCM)
	cfg[0].Window, cfg[1].Window = window, window
	var a, b end
	n.join(n.pairOfGroups(), cfg, &a, &b)
	b.expect(t)
	accept, open := b.receive, false
	b.receive = func(e Entry, p *tlp.Packet) bool { return open && accept(e, p) }
	a.sendAll(t, total)
	n.run(time.Second, nil)
	if held := b.binding.held.bytes; held <= window/2 || held > window {
		t.Errorf("%d bytes are held, want most of the window of %d", held, window)
	}
	open = true
	b.with(func(e Entry) { b.binding.Touch(e) })
	if !n.run(2*time.Second, func() bool { return b.arrived == total }) {
		t.Errorf("%d TLPs arrived, want %d", b.arrived, total)
	}
}

// A held TLP is offered again when another binding of the group transmits, as
// peer-to-peer traffic needs.
func TestHeldWaitsForAnotherBinding(t *testing.T) {
	n := newNetwork(t, 1)
	groups := n.pairOfGroups()
	var a1, b1, a2, b2 end
	n.join(groups, n.configs(1, link.CipherNone), &a1, &b1)
	n.join(groups, n.configs(2, link.CipherNone), &a2, &b2)
	open := false
	b1.receive = func(Entry, *tlp.Packet) bool { return open }
	b2.receive = func(Entry, *tlp.Packet) bool { open = true; return true }
	n.up(&a1, &b1, &a2, &b2)
	a1.sendAll(t, 1)
	n.run(n.now+time.Millisecond, nil)
	if len(b1.binding.held.packets) != 1 {
		t.Fatal("the TLP is not held")
	}
	a2.sendAll(t, 1)
	n.run(n.now+4*delay, nil)
	if b1.arrived != 1 {
		t.Error("the held TLP was not offered again")
	}
}

// A peer that ignores its credit is shut off before it fills the memory.
func TestHeldIsBounded(t *testing.T) {
	n := newNetwork(t, 1)
	var a, b end
	n.join(n.pairOfGroups(), n.configs(1, link.CipherNone), &a, &b)
	n.up(&a, &b)
	b.receive = func(Entry, *tlp.Packet) bool { return false }
	b.with(func(Entry) {
		for b.binding.held.bytes <= maxHeld {
			b.binding.received(write(0, 4096))
		}
		b.binding.noteHeld()
	})
	if s := b.binding.link.State(); s != link.Closing && s != link.Down {
		t.Errorf("the link is %v", s)
	}
}

// The end of a link that transmitting finds may touch another binding of the
// group: its TLP must leave with the same entry.
func TestTouchedWhileTransmitting(t *testing.T) {
	n := newNetwork(t, 1)
	groups := n.pairOfGroups()
	var a, b, lonely end
	n.join(groups, n.configs(1, link.CipherAES256GCM), &a, &b)
	n.up(&a, &b)
	lonely.changed = func(e Entry, s link.State) {
		if s == link.Down {
			if err := a.binding.Send(e, write(0, 4)); err != nil {
				t.Error(err)
			}
		}
	}
	cfg := n.configs(2, link.CipherAES256GCM)[0]
	cfg.ConnectTimeout = 10 * time.Millisecond
	n.attach(groups[0], cfg, &lonely)
	n.run(n.now+20*time.Millisecond, nil)
	if b.arrived != 1 {
		t.Error("the TLP did not leave")
	}
	lonely.with(func(e Entry) {
		if why := lonely.binding.Why(e); !strings.Contains(why, link.ConnectFailed.String()) {
			t.Errorf("the link is down for %q", why)
		}
	})
}

func TestShutdownTellsThePeer(t *testing.T) {
	for _, c := range []struct {
		code CloseCode
		want string
	}{
		{CloseDetached, "detached"},
		{CloseShutdown, "proxy shut down"},
		{CloseDeviceLost, "device lost"},
		{CloseProtocol, "protocol broken"},
		{CloseCode(77), "code 77"},
	} {
		t.Run(c.want, func(t *testing.T) {
			n := newNetwork(t, 1)
			var a, b end
			n.join(n.pairOfGroups(), n.configs(1, link.CipherAES256GCM), &a, &b)
			n.up(&a, &b)
			a.with(func(e Entry) { a.binding.Shutdown(e, c.code) })
			n.run(n.now+time.Second, nil)
			b.with(func(e Entry) {
				if why := b.binding.Why(e); b.binding.State(e) != link.Down || !strings.HasSuffix(why, c.want) {
					t.Errorf("the peer is %v and says %q, want %q in the end", b.binding.State(e), why, c.want)
				}
			})
		})
	}
}

// A detached binding leaves nothing in its group and is not called again.
func TestDetach(t *testing.T) {
	n := newNetwork(t, 1)
	var a, b end
	pair(t, n, 1, &a, &b)
	b.receive = func(Entry, *tlp.Packet) bool { return false }
	a.with(func(e Entry) {
		if a.binding.HandOver(e, b.binding, write(0, 4)) {
			t.Error("a refused TLP counts as taken")
		}
	})
	a.transmits = 0
	b.with(func(e Entry) {
		if !b.binding.Detach(e) || b.binding.Detach(e) {
			t.Error("a binding is detached once")
		}
		b.binding.Touch(e)
		if err := b.binding.Send(e, write(0, 4)); !errors.Is(err, link.ErrDown) {
			t.Errorf("Send after Detach: %v", err)
		}
		n := 0
		for a.binding.HandOver(e, b.binding, write(0, 4)) {
			n++
		}
		if n == 0 || n > entryBudget {
			t.Errorf("%d TLPs went to a device that is gone, want some, within the budget", n)
		}
	})
	before := b.transmits
	n.run(n.now+time.Second, nil)
	if a.transmits == 0 {
		t.Error("the neighbour that waited was not called")
	}
	if b.transmits != before {
		t.Error("the handler was called after Detach")
	}
	a.with(func(e Entry) { a.binding.Detach(e) })
	if g := a.driver.group; g.Wake() != machine.Never || len(g.bindings) != 0 {
		t.Errorf("an empty group wakes at %v with %d bindings", g.Wake(), len(g.bindings))
	}
}

func TestAttachRefuses(t *testing.T) {
	n := newNetwork(t, 1)
	d := n.side[0].newGroup()
	good := n.configs(1, link.CipherAES256GCM)[0]
	bad := n.configs(2, link.CipherAES256GCM)[0]
	bad.Session = 0
	n.attach(d, good, &end{})
	here := n.side[1].addrs
	for _, c := range []struct {
		name string
		cfg  BindingConfig
	}{
		{"no peer", BindingConfig{Link: n.configs(3, link.CipherNone)[0]}},
		{"more peers than paths", BindingConfig{Link: n.configs(3, link.CipherNone)[0], Peers: append(here, here...)}},
		{"a link that cannot be", BindingConfig{Link: bad, Peers: here}},
		{"a number that is in use", BindingConfig{Link: good, Peers: here}},
	} {
		c.cfg.Handler = &end{}
		e := d.Enter()
		if b, err := d.group.Attach(e, c.cfg); err == nil || b != nil {
			t.Errorf("%s: attached", c.name)
		}
		d.Leave(e)
	}
}

// Datagrams of no binding, or from another address than the peer's, are counted
// and reach no link. Datagrams of one group are handled under one entry.
func TestDispatch(t *testing.T) {
	n := newNetwork(t, 1)
	var a, b, c, d end
	one, two := n.pairOfGroups(), n.pairOfGroups()
	n.join(one, n.configs(1, link.CipherNone), &a, &b)
	n.join(two, n.configs(2, link.CipherNone), &c, &d)
	n.up(&a, &b, &c, &d)
	datagram := func(id uint32) []byte {
		p := make([]byte, 64) // only the version and the binding are looked at
		p[0] = frame.Version2<<4 | byte(frame.TypeTraffic)
		binary.BigEndian.PutUint32(p[4:], id)
		return p
	}
	peer := n.side[0].addrs[0]
	for _, tc := range []struct {
		name    string
		ids     []uint32
		path    uint8
		from    uint16 // port
		want    Drops
		entries [2]int
	}{
		{"one", []uint32{1}, 0, peer.Port(), Drops{}, [2]int{1, 0}},
		{"a run of one group", []uint32{1, 1, 1}, 0, peer.Port(), Drops{}, [2]int{1, 0}},
		{"two groups in turn", []uint32{1, 2, 2, 1}, 0, peer.Port(), Drops{}, [2]int{2, 1}},
		{"an unknown one between", []uint32{1, 9, 1}, 0, peer.Port(), Drops{Stray: 1}, [2]int{1, 0}},
		{"another port", []uint32{1, 2}, 0, 9, Drops{Stranger: 2}, [2]int{0, 0}},
		{"a path that the binding lacks", []uint32{1}, 1, peer.Port(), Drops{Stranger: 1}, [2]int{0, 0}},
	} {
		var batch []byte
		for _, id := range tc.ids {
			batch = append(batch, datagram(id)...)
		}
		before := [2]int{one[1].entries, two[1].entries}
		from := peer
		if tc.from != peer.Port() {
			from = n.side[1].addrs[0]
		}
		if got := n.side[1].dispatch(tc.path, batch, 64, from); got != tc.want {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
		if got := [2]int{one[1].entries - before[0], two[1].entries - before[1]}; got != tc.entries {
			t.Errorf("%s: %v entries, want %v", tc.name, got, tc.entries)
		}
	}
	for _, short := range [][]byte{{1}, datagram(1)[:frame.HeaderSize-1], make([]byte, 9000)} {
		if got := n.side[1].dispatch(0, short, len(short), peer); got != (Drops{Stray: 1}) {
			t.Errorf("a datagram of %d bytes that is none of ours: %+v", len(short), got)
		}
	}
}

// Batches that follow each other are handled under one entry as long as they are those
// of one group. The bytes of a batch are not looked at after the next one was asked for.
func TestDispatchGathersBatches(t *testing.T) {
	n := newNetwork(t, 1)
	var a, b, c, d end
	one, two := n.pairOfGroups(), n.pairOfGroups()
	n.join(one, n.configs(1, link.CipherNone), &a, &b)
	n.join(two, n.configs(2, link.CipherNone), &c, &d)
	n.up(&a, &b, &c, &d)
	buffer := make([]byte, 64) // of the socket's reader
	ids := []uint32{1, 1, 9, 1, 2, 2, 1}
	next := func() (Batch, bool) {
		if len(ids) == 0 {
			return Batch{}, false
		}
		clear(buffer)
		buffer[0] = frame.Version2<<4 | byte(frame.TypeTraffic)
		binary.BigEndian.PutUint32(buffer[4:], ids[0])
		ids = ids[1:]
		return Batch{Bytes: buffer, Segment: len(buffer), From: n.side[0].addrs[0]}, true
	}
	before := [2]int{one[1].entries, two[1].entries}
	first, _ := next()
	p := n.side[1]
	got := Dispatch(p.bindings, &Input{Clock: func() time.Duration { return n.now }}, first, next)
	if want := (Drops{Stray: 1}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if entries := [2]int{one[1].entries - before[0], two[1].entries - before[1]}; entries != [2]int{2, 1} || len(ids) > 0 {
		t.Errorf("%v entries, %d batches left", entries, len(ids))
	}
}

// A handler and a link are called at the time that they want to be woken at.
func TestWake(t *testing.T) {
	n := newNetwork(t, 1)
	var a, b end
	at := 5 * time.Millisecond
	var called []time.Duration
	a.wake = func() time.Duration { return at }
	a.transmit = func(e Entry) {
		if e.Now() >= at {
			called = append(called, e.Now())
			at += 5 * time.Millisecond
		}
	}
	n.join(n.pairOfGroups(), n.configs(1, link.CipherNone), &a, &b)
	n.run(22*time.Millisecond, nil)
	if len(called) != 4 || called[0] != 5*time.Millisecond || called[3] != 20*time.Millisecond {
		t.Errorf("called at %v, want each 5 ms", called)
	}
	b.with(func(e Entry) { // entering wakes nothing that is not due
		if len(b.driver.group.touched) != 0 {
			t.Error("an entry touches a binding that is not due")
		}
		b.binding.Touch(e)
	})
}
