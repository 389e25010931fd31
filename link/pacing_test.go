package link_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// feed gives the host's link all that it takes.
func feed(t *testing.T, n *linktest.Network) {
	t.Helper()
	p := memoryWrite(4096)
	for {
		switch err := n.Send(linktest.Host, p); err {
		case nil:
		case link.ErrFull:
			return
		default:
			t.Fatal(err)
		}
	}
}

// Over a long round trip a window does not leave at once, neither the first one nor
// the one after a pause: at no time more than the pacing rate and one batch.
func TestWindowIsSpreadOverTheRoundTrip(t *testing.T) {
	const rtt, slot = 10 * time.Millisecond, time.Millisecond
	n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherNone, ethernet)}, "delay=5ms", ethernet)
	n.OnDeliver = func(linktest.Side, *tlp.Packet) {}
	sent := map[time.Duration]int{} // bytes by millisecond
	n.OnDatagram = func(from linktest.Side, _ uint8, d []byte) {
		if from == linktest.Host {
			sent[n.Now/slot] += len(d)
		}
	}
	for round := range 2 {
		clear(sent)
		window := 0
		for end := n.Now + 3*rtt; n.Now < end; {
			feed(t, n)
			n.Run(n.Now + slot/10)
			window = max(window, n.Link[linktest.Host].Stats().Paths[0].Cwnd)
		}
		most := 0
		for _, bytes := range sent {
			most = max(most, bytes)
		}
		// In slow start two windows in a round trip.
		if limit := 2*window/int(rtt/slot) + 64<<10; most > limit || most == 0 {
			t.Errorf("round %d: %d bytes in a millisecond, want at most %d with a window of %d", round, most, limit, window)
		}
		n.Run(n.Now + time.Second)
	}
}

// A short message leaves when it is sent, however many were sent before: the rate of
// a window is far above theirs.
func TestShortMessagesAreNotPaced(t *testing.T) {
	n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherNone, ethernet)}, "delay=5ms", ethernet)
	left := 0
	n.OnDatagram = func(from linktest.Side, _ uint8, _ []byte) {
		if from == linktest.Host {
			left++
		}
	}
	for i := range 1000 {
		if left = 0; n.Send(linktest.Host, memoryWrite(8)) != nil {
			t.Fatal("full")
		}
		n.Run(n.Now)
		if left == 0 {
			t.Fatalf("message %d waits", i)
		}
		n.Run(n.Now + 20*time.Microsecond)
	}
}

// Timers of an idle process may fire at whole milliseconds. The sender makes up for
// it: it carries as much as with exact timers.
func TestLateTimersDoNotSlowTheSender(t *testing.T) {
	for _, rtt := range []time.Duration{100 * time.Microsecond, time.Millisecond, 10 * time.Millisecond} {
		exact, late := carried(t, rtt, 1), carried(t, rtt, time.Millisecond)
		t.Logf("round trip %v: %d bytes with exact timers, %d with late ones", rtt, exact, late)
		if float64(late) < 0.85*float64(exact) {
			t.Errorf("round trip %v: %d bytes with exact timers, %d with late ones", rtt, exact, late)
		}
	}
}

// carried returns the bytes that a sender without a pause carries in 100 round trips
// when its timers fire at multiples of tick only.
func carried(t *testing.T, rtt, tick time.Duration) (bytes int) {
	t.Helper()
	type datagram struct {
		to   int
		data []byte
	}
	var (
		ends   [2]*link.Link
		flying machine.Queue[datagram]
		buf    [1 << 16]byte
		p      = memoryWrite(4096)
	)
	for i, cfg := range linktest.Ends(link.CipherNone, ethernet) {
		cfg.InitialCwnd, cfg.SendBuffer = 80<<10, 1<<20
		l, err := link.New(0, cfg)
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = l
	}
	for now, end := time.Duration(0), 100*rtt; now < end; {
		for ends[0].State() == link.Up && ends[0].Send(now, p) == nil {
		}
		for i, l := range ends {
			for size, _ := l.Transmit(now, buf[:]); size > 0; size, _ = l.Transmit(now, buf[:]) {
				flying.Push(now+rtt/2, datagram{1 - i, append([]byte(nil), buf[:size]...)})
			}
		}
		wake := min(ends[0].Wake(), ends[1].Wake(), end)
		now = min(max((wake+tick-1)/tick*tick, now), max(flying.Wake(), now))
		for d, ok := flying.Pop(now); ok; d, ok = flying.Pop(now) {
			_ = ends[d.to].Receive(now, 0, d.data, func(p *tlp.Packet) { bytes += len(p.Data) }) // counted by the link
		}
	}
	return bytes
}

// A window that was not used for long says nothing about the network any more: the
// link begins again with its initial one, and regains the window by slow start.
func TestIdleLinkStartsAgainSmall(t *testing.T) {
	const initial = 80 << 10
	ends := linktest.Ends(link.CipherNone, ethernet)
	for i := range ends {
		ends[i].InitialCwnd = initial
	}
	n := up(t, linktest.Config{Ends: ends}, "delay=50us", ethernet)
	n.OnDeliver = func(linktest.Side, *tlp.Packet) {}
	window := func() int { return n.Link[linktest.Host].Stats().Paths[0].Cwnd }
	busy := func(d time.Duration) {
		for end := n.Now + d; n.Now < end; {
			feed(t, n)
			n.Run(n.Now + 10*time.Microsecond)
		}
	}
	busy(5 * time.Millisecond)
	grown := window()
	n.Run(n.Now + time.Second)
	if got := window(); grown < 2<<20 || got > initial {
		t.Fatalf("a window of %d bytes, after a second of silence %d", grown, got)
	}
	busy(2 * time.Millisecond)
	if got := window(); got < grown/2 {
		t.Errorf("20 round trips after the pause the window is %d, before it was %d", got, grown)
	}
}
