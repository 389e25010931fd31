package netio

import (
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/tlp"
)

// Only an empty socket, or more bytes than one holds, prove that a socket has been
// read up to a time.
func TestListening(t *testing.T) {
	const room = 1 << 20
	var l listening
	now := time.Duration(0)
	clock := func() time.Duration { return now }
	want := func(what string, until time.Duration) {
		t.Helper()
		if got := time.Duration(l.until.Load()); got != until {
			t.Errorf("%s: listened until %v, want %v", what, got, until)
		}
	}
	now = 1 * time.Second
	l.nothing(true, room, clock)
	want("after the first wait", 0)
	now = 2 * time.Second
	l.nothing(true, room, clock)
	want("after the second wait", 1*time.Second)
	now = 3 * time.Second // a stopped reader: datagrams gather in the socket
	for range 100 {
		l.received(9000+kernelCost, room, clock)
	}
	want("after some of what a socket holds", 1*time.Second)
	for range 100 {
		l.received(9000+kernelCost, room, clock)
	}
	want("after more than a socket holds", 2*time.Second)
	now = 4 * time.Second
	for range pollsPerClock {
		l.nothing(false, room, clock)
	}
	want("after empty polls", 3*time.Second)
	for range pollsPerClock {
		l.nothing(false, room, clock)
	}
	want("after more empty polls", 4*time.Second)
	if n := testing.AllocsPerRun(100, func() { l.received(100, 50, clock); l.nothing(true, room, clock) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A datagram that was read but not handed to its link is not received: the link would take its
// peer for silent if another goroutine looked meanwhile.
func TestHandedOnIsReceived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newExchange(t)
		in, f := x.in[1], x.ends[1].group.fabric
		for x.drain(0) || x.drain(1) {
		}
		const asked = time.Microsecond
		in.path.heard.asked, in.path.heard.left = asked, 1 // the next datagram proves that
		before, handed := f.listened(), time.Duration(-1)
		x.ends[1].receive = func(engine.Entry, *tlp.Packet) bool {
			handed = f.listened()
			return true
		}
		x.send(0, &tlp.Packet{Type: tlp.MRd, Length: 1})
		x.receive(1)
		if handed != before {
			t.Errorf("while the link gets the TLP: listened until %v, want %v", handed, before)
		}
		if got := f.listened(); got != asked {
			t.Errorf("afterwards: listened until %v, want %v", got, asked)
		}
	})
}

// A fabric that receives nothing has listened.
func TestFabricListens(t *testing.T) {
	r := joinFabrics(t)
	limit, look := time.After(patience), time.NewTicker(time.Millisecond)
	defer look.Stop()
	for r.fabric[0].listened() == 0 {
		select {
		case <-look.C:
		case <-limit:
			t.Fatal("an idle fabric has not listened")
		}
	}
}

// A fabric has listened, too, that never waits for a datagram in vain: a stranger that sends a
// few each second cannot hide that a peer is silent.
func TestFabricListensInATrickle(t *testing.T) {
	f := open(t, PathConfig{})
	stranger, err := udp.Listen("127.0.0.1:0", udp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	w, limit := stranger.NewWriter(), time.After(patience/4)
	trickle := time.NewTicker(5 * time.Millisecond)
	defer trickle.Stop()
	since := f.Now()
	for f.listened() < since {
		select {
		case <-trickle.C:
			if err := w.Write([]byte{0}, 1, f.paths[0].conn.LocalAddr()); err != nil {
				t.Fatal(err)
			}
		case <-limit:
			t.Fatalf("listened until %v at %v", f.listened(), f.Now())
		}
	}
}

// A peer that has died leaves a closed port: its host refuses the datagrams, and the
// link is told. Another link of the same socket is not.
func TestRefusalReachesTheLink(t *testing.T) {
	r := joinFabrics(t)
	var a, b, c, d end
	r.join(r.configs(1, link.CipherAES256GCM), &a, &b)
	a.await(t, link.Up)

	other := joinFabrics(t)
	other.fabric[0], other.group[0] = r.fabric[0], r.group[0]
	other.join(other.configs(2, link.CipherAES256GCM), &c, &d)
	c.await(t, link.Up)

	refusals := func(e *end) uint64 {
		at := e.group.Enter()
		defer e.group.Leave(at)
		return e.binding.Stats(at).Refusals
	}
	// The fabric closes its sockets itself as soon as one of them ends.
	if err := r.fabric[1].paths[0].conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
		t.Fatal(err)
	}
	a.sendAll(t, 1)
	a.await(t, link.Down)
	if refusals(&a) == 0 {
		t.Error("the link of the dead peer has seen no refusal")
	}
	if n := refusals(&c); n > 0 {
		t.Errorf("the link of another peer has seen %d refusals", n)
	}
}
