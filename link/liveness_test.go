package link_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/tlp"
)

// An end whose timers run, but whose socket is not read, does not take the unread
// socket for a silent peer. When the socket has been read and nothing was in it, the
// peer is lost.
func TestUnreadSocketIsNotSilence(t *testing.T) {
	for _, c := range []struct {
		name    string
		answers bool
	}{{"the peer has answered", true}, {"the peer is dead", false}} {
		t.Run(c.name, func(t *testing.T) {
			w := newWire(t, link.CipherNone, jumbo)
			host, box := w.links[0], w.links[1]
			if err := host.Send(w.now, memoryRead()); err != nil {
				t.Fatal(err)
			}
			w.exchange(t)
			host.Listened(w.now)
			var unread [][]byte
			for end := w.now + 20*time.Second; w.now < end; w.now += 10 * time.Millisecond {
				for _, d := range w.take(0) {
					if c.answers {
						_ = box.Receive(w.now, 0, d, w.count) // counted by the link
						unread = append(unread, w.take(1)...)
					}
				}
				if host.State() != link.Up {
					reason, _ := host.Reason()
					t.Fatalf("with an unread socket the link is down: %v", reason)
				}
			}
			for _, d := range unread {
				_ = host.Receive(w.now, 0, d, w.count) // as above; some are old
			}
			host.Listened(w.now)
			for end := w.now + 200*time.Millisecond; w.now < end; w.now += 10 * time.Millisecond {
				w.take(0)
			}
			want := link.Down
			if c.answers {
				want = link.Up
			}
			if got := host.State(); got != want {
				t.Errorf("after the socket was read: %v, want %v", got, want)
			}
		})
	}
}

// A dead process leaves a closed port. Its host says so, and the death is noticed in
// a part of the usual time, even when the peer was slow before.
func TestRefusedPortShortensTheSilence(t *testing.T) {
	for _, refused := range []bool{true, false} {
		n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherNone, jumbo)}, "delay=20us", jumbo)
		n.Run(n.Now + time.Second)
		died := n.Now
		for _, side := range []linktest.Side{linktest.Host, linktest.Box} {
			n.SetPlan(side, 0, plan(t, "loss=100%"))
		}
		host := n.Link[linktest.Host]
		n.OnDatagram = func(from linktest.Side, path uint8, _ []byte) {
			if refused && from == linktest.Host {
				host.Refused(n.Now, path)
			}
		}
		if err := n.Send(linktest.Host, memoryRead()); err != nil {
			t.Fatal(err)
		}
		n.RunUntil(died+5*time.Second, func() bool { return host.State() == link.Down })
		took, least, most := n.Now-died, 200*time.Millisecond, 300*time.Millisecond
		if !refused {
			least, most = 700*time.Millisecond, 1300*time.Millisecond
		}
		if took < least || took > most {
			t.Errorf("refused %v: the death is noticed after %v, want %v to %v", refused, took, least, most)
		}
	}
}

// Forged reports do not end a link whose peer answers.
func TestForgedRefusalsDoNotEndALink(t *testing.T) {
	n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherAES256GCM, jumbo)}, "delay=20us,loss=10%", jumbo)
	n.OnDeliver = func(linktest.Side, *tlp.Packet) {}
	host := n.Link[linktest.Host]
	before := host.Stats().DatagramsSent
	const span = 20 * time.Second
	for end := n.Now + span; n.Now < end; {
		host.Refused(n.Now, 0)
		n.Run(n.Now + time.Millisecond)
		if host.State() != link.Up {
			reason, _ := host.Reason()
			t.Fatalf("%v", reason)
		}
	}
	host.Refused(n.Now, 9) // a path that the link does not have
	// Each report costs at most a ping and what it makes the peer send.
	if sent := host.Stats().DatagramsSent - before; sent > 3*uint64(span/time.Millisecond) {
		t.Errorf("%d datagrams for a thousand reports a second", sent)
	}
}

// The network closes one path of an idle link, and reports that. The peer is alive
// behind the other one: it is asked there, too.
func TestARefusedPathDoesNotEndALink(t *testing.T) {
	n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherAES256GCM, jumbo, jumbo)}, "delay=20us", jumbo, jumbo)
	n.Run(n.Now + 2*time.Second)
	host := n.Link[linktest.Host]
	for _, side := range []linktest.Side{linktest.Host, linktest.Box} {
		n.SetPlan(side, 0, plan(t, "loss=100%"))
	}
	asked := 0
	n.OnDatagram = func(from linktest.Side, path uint8, _ []byte) {
		switch {
		case from == linktest.Host && path == 0:
			host.Refused(n.Now, path)
		case from == linktest.Host:
			asked++
		}
	}
	host.Refused(n.Now, 0)
	n.Run(n.Now + time.Millisecond)
	if asked == 0 {
		t.Error("the peer is not asked by the path that works")
	}
	n.Run(n.Now + 5*time.Second)
	if host.State() != link.Up {
		reason, _ := host.Reason()
		t.Errorf("%v", reason)
	}
}

// A machine that was suspended for a minute knows nothing about its peer by the answers
// that waited meanwhile: twenty seconds afterwards, a death is noticed in time again.
func TestASuspensionIsForgotten(t *testing.T) {
	for _, before := range []int{0, 1, 2, 9} { // datagrams that are read before the timers run
		suspend(t, before)
	}
}

func suspend(t *testing.T, before int) {
	t.Helper()
	n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherNone, jumbo)}, "delay=20us", jumbo)
	n.OnDeliver = func(linktest.Side, *tlp.Packet) {}
	n.Run(n.Now + time.Second)
	host := n.Link[linktest.Host]
	var waits [][]byte // in the socket of the suspended host
	n.OnDatagram = func(from linktest.Side, _ uint8, d []byte) {
		if from == linktest.Box {
			waits = append(waits, d)
		}
	}
	n.SetPlan(linktest.Box, 0, plan(t, "loss=100%"))
	if err := n.Send(linktest.Host, memoryRead()); err != nil {
		t.Fatal(err)
	}
	n.Run(n.Now + 5*time.Millisecond)
	n.OnDatagram = nil
	n.Now += time.Minute
	for i, d := range waits {
		if i == before {
			n.Run(n.Now + 10*time.Microsecond)
		}
		if err := n.Inject(linktest.Host, 0, d); err != nil {
			t.Fatal(err)
		}
	}
	n.SetPlan(linktest.Box, 0, plan(t, "delay=20us"))
	n.Run(n.Now + 20*time.Second)
	if host.State() != link.Up {
		reason, _ := host.Reason()
		t.Fatalf("the suspension ended the link: %v", reason)
	}
	for _, side := range []linktest.Side{linktest.Host, linktest.Box} {
		n.SetPlan(side, 0, plan(t, "loss=100%"))
	}
	died := n.Now
	if err := n.Send(linktest.Host, memoryRead()); err != nil {
		t.Fatal(err)
	}
	n.RunUntil(died+10*time.Second, func() bool { return host.State() == link.Down })
	if took := n.Now - died; took > 1300*time.Millisecond {
		t.Errorf("the timers run before datagram %d of %d: the death is noticed after %v, want 1.3 s at most", before, len(waits), took)
	}
}

// While another link hears the peer, the peer lives: it gets more time for an answer, but
// not for ever, because it may have lost this link alone. When the other link does not hear
// it any more, the death is noticed as usual.
func TestAnotherLinkHearsThePeer(t *testing.T) {
	for _, c := range []struct {
		name        string
		heard       time.Duration // for how long
		least, most time.Duration
	}{
		{"no other link", 0, 700 * time.Millisecond, 1300 * time.Millisecond},
		{"for two seconds", 2 * time.Second, 2700 * time.Millisecond, 3300 * time.Millisecond},
		{"for ever", time.Hour, 7700 * time.Millisecond, 8300 * time.Millisecond},
	} {
		n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherNone, jumbo)}, "delay=20us", jumbo)
		n.Run(n.Now + time.Second)
		host, silent := n.Link[linktest.Host], n.Now
		n.SetPlan(linktest.Box, 0, plan(t, "loss=100%"))
		if err := n.Send(linktest.Host, memoryRead()); err != nil {
			t.Fatal(err)
		}
		for host.State() == link.Up && n.Now < silent+20*time.Second {
			host.HeardElsewhere(min(n.Now, silent+c.heard))
			n.Run(n.Now + time.Millisecond)
		}
		if took := n.Now - silent; took < c.least || took > c.most {
			t.Errorf("%s: the peer counts as lost after %v, want %v to %v", c.name, took, c.least, c.most)
		}
	}
}
