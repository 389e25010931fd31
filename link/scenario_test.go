package link_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// up returns a network with both ends Up and every path usable.
func up(t testing.TB, cfg linktest.Config, faults string, mtus ...int) *linktest.Network {
	t.Helper()
	n := network(t, cfg, faults, mtus...)
	if !n.RunUntil(time.Second, func() bool {
		for _, l := range n.Link {
			for _, p := range l.Stats().Paths {
				if l.State() != link.Up || !p.Usable {
					return false
				}
			}
		}
		return true
	}) {
		t.Fatalf("not up: %v %v", n.Link[0].State(), n.Link[1].State())
	}
	return n
}

func TestPathCutInMidTransfer(t *testing.T) {
	for cut := range 2 {
		t.Run(fmt.Sprintf("path %d", cut), func(t *testing.T) {
			mtus := []int{jumbo, jumbo}
			n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherAES256GCM, mtus...)}, "delay=20us,jitter=2us", mtus...)
			polls := 0
			transfer(t, n, 3000, 20*time.Second, func() {
				if polls++; polls == 8 {
					for _, side := range []linktest.Side{linktest.Host, linktest.Box} {
						n.SetPlan(side, cut, plan(t, "loss=100%"))
					}
				}
			})
			if s := n.Link[0].Stats(); s.Paths[cut].Usable || !s.Paths[1-cut].Usable {
				t.Errorf("usable: path %d %v, other %v", cut, s.Paths[cut].Usable, s.Paths[1-cut].Usable)
			}
			// The path works again.
			for _, side := range []linktest.Side{linktest.Host, linktest.Box} {
				n.SetPlan(side, cut, plan(t, "delay=20us"))
			}
			if !n.RunUntil(n.Now+time.Second, func() bool { return n.Link[0].Stats().Paths[cut].Usable && n.Link[1].Stats().Paths[cut].Usable }) {
				t.Error("the path did not come back")
			}
		})
	}
}

// The working path and the failed one change roles at once. The path that works now
// is unproven, and its acknowledgements must not take the other one.
func TestPathsChangePlaces(t *testing.T) {
	for _, c := range []struct{ name, works, fails string }{
		{"both ways", "delay=20us", "loss=100%"},
		{"where datagrams are lost", "delay=20us,loss=10%", "loss=100%"},
	} {
		t.Run(c.name, func(t *testing.T) {
			mtus := []int{ethernet, ethernet}
			n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherAES256GCM, mtus...)}, c.works, mtus...)
			change := func(works int) {
				for _, side := range []linktest.Side{linktest.Host, linktest.Box} {
					n.SetPlan(side, works, plan(t, c.works))
					n.SetPlan(side, 1-works, plan(t, c.fails))
				}
			}
			change(0)
			n.Run(n.Now + 500*time.Millisecond)
			for round := range 6 {
				if s := n.Link[0].Stats(); s.Paths[0].Usable == s.Paths[1].Usable {
					t.Fatalf("round %d: both paths usable: %v", round, s.Paths[0].Usable)
				}
				change(1 - round%2)
				if round > 3 {
					n.Run(n.Now + 2*time.Second) // without traffic
				}
				transfer(t, n, 300, n.Now+900*time.Millisecond, nil)
			}
		})
	}
}

func TestMTUDropInMidTransfer(t *testing.T) {
	for _, mtu := range []int{loopback, jumbo, ethernet} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherNone, mtu)}, "delay=20us", mtu)
			polls := 0
			transfer(t, n, 3000, 20*time.Second, func() {
				if polls++; polls == 5 {
					for _, side := range []linktest.Side{linktest.Host, linktest.Box} {
						n.SetPlan(side, 0, plan(t, "delay=20us,mtu=1400"))
					}
				}
			})
			if got := n.Link[0].Stats().Paths[0].MTU; got > 1400 {
				t.Errorf("MTU %d after the drop, want at most 1400", got)
			}
			for _, side := range []linktest.Side{linktest.Host, linktest.Box} {
				n.SetPlan(side, 0, plan(t, "delay=20us"))
			}
			n.Run(n.Now + 40*time.Second)
			if got := n.Link[0].Stats().Paths[0].MTU; got != mtu {
				t.Errorf("MTU %d after the repair, want %d", got, mtu)
			}
		})
	}
}

func TestKeyChangeUnderLoad(t *testing.T) {
	ends := linktest.Ends(link.CipherAES256GCM, ethernet)
	for i := range ends {
		ends[i].RekeyDatagrams = 50
	}
	n := network(t, linktest.Config{Ends: ends}, "delay=20us,loss=1%,dup=1%", ethernet)
	transfer(t, n, 3000, 20*time.Second, nil)
	for side, l := range n.Link {
		s := l.Stats()
		if s.KeyChanges < 4 {
			t.Errorf("side %d: %d key changes, want at least 4", side, s.KeyChanges)
		}
		if s.Drops.Seal > 0 {
			t.Errorf("side %d: %d datagrams failed authentication", side, s.Drops.Seal)
		}
	}
}

func TestRekeyNeedsAcknowledgement(t *testing.T) {
	n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherAES256GCM, ethernet)}, "delay=20us", ethernet)
	l := n.Link[linktest.Host]
	transfer(t, n, 50, n.Now+time.Second, nil)
	if !l.Rekey(n.Now) {
		t.Fatal("first key change refused")
	}
	if l.Rekey(n.Now) {
		t.Fatal("second key change before the first was acknowledged")
	}
	transfer(t, n, 50, n.Now+time.Second, nil)
	if !l.Rekey(n.Now) {
		t.Error("key change refused after an acknowledgement")
	}
}

func TestSilentPeerIsLost(t *testing.T) {
	n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherAES256GCM, jumbo, jumbo)}, "delay=20us", jumbo, jumbo)
	cut := n.Now
	for path := range 2 {
		n.SetPlan(linktest.Host, path, plan(t, "loss=100%"))
		n.SetPlan(linktest.Box, path, plan(t, "loss=100%"))
	}
	n.RunUntil(cut+5*time.Second, func() bool { return n.Link[0].State() == link.Down && n.Link[1].State() == link.Down })
	for side, l := range n.Link {
		if reason, _ := l.Reason(); reason != link.PeerLost {
			t.Errorf("side %d: %v, %v", side, l.State(), reason)
		}
		if err := l.Send(n.Now, memoryRead()); !errors.Is(err, link.ErrDown) {
			t.Errorf("side %d: Send after loss: %v", side, err)
		}
		if l.Wake() != machine.Never {
			t.Errorf("side %d wants to wake at %v", side, l.Wake())
		}
	}
	if took := n.Now - cut; took < 700*time.Millisecond || took > 1300*time.Millisecond {
		t.Errorf("took %v, want about 1 s", took)
	}
}

func TestIdleLinkStaysUp(t *testing.T) {
	n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherAES256GCM, jumbo)}, "delay=20us", jumbo)
	before := n.Link[0].Stats().DatagramsSent
	n.Run(n.Now + 60*time.Second)
	if n.Link[0].State() != link.Up || n.Link[1].State() != link.Up {
		t.Fatalf("states %v %v", n.Link[0].State(), n.Link[1].State())
	}
	if sent := n.Link[0].Stats().DatagramsSent - before; sent > 60*10 {
		t.Errorf("%d datagrams in a minute of silence", sent)
	}
}

// After a process was stopped, its timers have long expired, and its peer's
// datagrams are still in the socket.
func TestClockJumpIsNotLoss(t *testing.T) {
	w := newWire(t, link.CipherAES256GCM, jumbo)
	for range 5 {
		w.now += 5 * time.Second
		w.exchange(t)
		if w.links[0].State() != link.Up || w.links[1].State() != link.Up {
			t.Fatalf("at %v: %v %v", w.now, w.links[0].State(), w.links[1].State())
		}
	}
}

// After both ends stood still for hours, with datagrams in flight, the link does not take the
// time for a round trip: it would spread its window over it.
func TestClockJumpDoesNotSlowTheLink(t *testing.T) {
	n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherNone, ethernet)}, "delay=20us", ethernet)
	send := func(count int) {
		for range count {
			if err := n.Send(linktest.Host, memoryWrite(4096)); err != nil {
				t.Fatal(err)
			}
		}
	}
	n.OnDeliver = func(linktest.Side, *tlp.Packet) {}
	send(300)
	n.Run(n.Now + 10*time.Millisecond)
	send(100)
	n.Run(n.Now + 30*time.Microsecond)
	n.Now += 10 * time.Hour
	began := n.Now
	send(400)
	if !n.RunUntil(began+100*time.Millisecond, n.Link[0].Idle) {
		t.Errorf("after 100 ms: %+v", n.Link[0].Stats())
	}
}

// take returns the datagrams that a side has to send, without delivering them.
func (w *wire) take(side int) (sent [][]byte) {
	for {
		n, _ := w.links[side].Transmit(w.now, w.buf)
		if n == 0 {
			return sent
		}
		sent = append(sent, slices.Clone(w.buf[:n]))
	}
}

// An end that stood still while an answer was in flight does not declare the peer
// lost: it reads the answer after its timers have expired. A peer that does not
// answer is then lost after the usual time.
func TestStoppedProcessIsNotLoss(t *testing.T) {
	for _, answers := range []bool{true, false} {
		t.Run(fmt.Sprintf("answers %v", answers), func(t *testing.T) {
			w := newWire(t, link.CipherAES256GCM, jumbo)
			if err := w.links[0].Send(w.now, memoryRead()); err != nil {
				t.Fatal(err)
			}
			w.exchange(t)
			if err := w.links[0].Send(w.now, memoryRead()); err != nil {
				t.Fatal(err)
			}
			sent := w.take(0)
			if len(sent) == 0 {
				t.Fatal("nothing was sent")
			}
			w.now += 30 * time.Second
			stopped := w.now
			sent = append(sent, w.take(0)...) // it handles its timers before it reads its socket
			if s := w.links[0].State(); s != link.Up {
				t.Fatalf("%v after standing still", s)
			}
			if answers {
				for _, d := range sent {
					if err := w.links[1].Receive(w.now, 0, d, w.count); err != nil {
						t.Fatal(err)
					}
				}
				w.exchange(t)
				if s := w.links[0].State(); s != link.Up {
					t.Errorf("%v after the answer", s)
				}
				return
			}
			for w.links[0].State() == link.Up {
				if w.now = w.links[0].Wake(); w.now > stopped+time.Second {
					t.Fatalf("%v after a second of silence", w.links[0].State())
				}
				w.take(0)
			}
			if reason, _ := w.links[0].Reason(); reason != link.PeerLost {
				t.Errorf("%v", reason)
			}
		})
	}
}

func TestRestartedPeerIsFound(t *testing.T) {
	for _, side := range []linktest.Side{linktest.Host, linktest.Box} {
		t.Run([]string{"host", "box"}[side], func(t *testing.T) {
			n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherAES256GCM, jumbo)}, "delay=20us", jumbo)
			at := n.Now
			if err := n.Restart(side, 0x9999); err != nil {
				t.Fatal(err)
			}
			survivor := n.Link[1-side]
			if !n.RunUntil(at+2*time.Second, func() bool { return survivor.State() == link.Down }) {
				t.Fatalf("survivor is %v", survivor.State())
			}
			if reason, _ := survivor.Reason(); reason != link.PeerRestarted {
				t.Errorf("survivor says %v", reason)
			}
			if took := n.Now - at; took > 300*time.Millisecond {
				t.Errorf("took %v", took)
			}
			// The survivor's owner starts a new link too, and they connect.
			if err := n.Restart(1-side, 0x8888); err != nil {
				t.Fatal(err)
			}
			if !n.RunUntil(n.Now+3*time.Second, func() bool {
				for s, l := range n.Link {
					if l.State() == link.Down {
						if err := n.Restart(linktest.Side(s), 0x7000+uint64(n.Now)); err != nil {
							t.Fatal(err)
						}
					}
				}
				return n.Link[0].State() == link.Up && n.Link[1].State() == link.Up
			}) {
				t.Fatalf("did not connect again: %v %v", n.Link[0].State(), n.Link[1].State())
			}
			transfer(t, n, 100, n.Now+time.Second, nil)
		})
	}
}

func TestCloseReachesThePeer(t *testing.T) {
	n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherAES256GCM, jumbo), Seed: 3}, "delay=20us,loss=30%", jumbo)
	n.Link[linktest.Box].Close(n.Now, 42)
	n.RunUntil(n.Now+time.Second, func() bool { return n.Link[0].State() == link.Down && n.Link[1].State() == link.Down })
	if reason, code := n.Link[linktest.Host].Reason(); reason != link.PeerClosed || code != 42 {
		t.Errorf("host: %v, %d", reason, code)
	}
	if reason, code := n.Link[linktest.Box].Reason(); reason != link.LocalClosed || code != 42 {
		t.Errorf("box: %v, %d", reason, code)
	}
}

func TestBothEndsClose(t *testing.T) {
	n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherAES256GCM, jumbo)}, "delay=20us", jumbo)
	for side, l := range n.Link {
		l.Close(n.Now, uint16(side))
		l.Close(n.Now, 99) // the first call counts
	}
	start := n.Now
	n.RunUntil(n.Now+time.Second, func() bool { return n.Link[0].State() == link.Down && n.Link[1].State() == link.Down })
	for side, l := range n.Link {
		if reason, code := l.Reason(); reason != link.LocalClosed || code != uint16(side) {
			t.Errorf("side %d: %v, %d", side, reason, code)
		}
	}
	if n.Now-start > time.Millisecond {
		t.Errorf("took %v although each received the other's close", n.Now-start)
	}
}

func TestCloseBeforeConnect(t *testing.T) {
	l, err := link.New(0, linktest.Ends(link.CipherNone, jumbo)[0])
	if err != nil {
		t.Fatal(err)
	}
	l.Close(0, 5)
	if reason, code := l.Reason(); l.State() != link.Down || reason != link.LocalClosed || code != 5 {
		t.Errorf("%v, %v, %d", l.State(), reason, code)
	}
}

func TestConfigIsChecked(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*link.Config)
	}{
		{"session", func(c *link.Config) { c.Session = 0 }},
		{"cipher", func(c *link.Config) { c.Cipher = 9 }},
		{"no paths", func(c *link.Config) { c.Paths = nil }},
		{"nine paths", func(c *link.Config) { c.Paths = make([]link.PathConfig, 9) }},
		{"small MTU", func(c *link.Config) { c.Paths[0].MTU = frame.MinMTU - 1 }},
		{"large MTU", func(c *link.Config) { c.Paths[0].MTU = frame.MaxDatagram + 1 }},
		{"small window", func(c *link.Config) { c.Window = 1 }},
		{"large send buffer", func(c *link.Config) { c.SendBuffer = 1 << 31 }},
		{"negative window", func(c *link.Config) { c.FixedCwnd = -1 }},
		{"negative timeout", func(c *link.Config) { c.KeepAlive = -1 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cfg := linktest.Ends(link.CipherNone, jumbo)[0]
			tc.change(&cfg)
			if l, err := link.New(0, cfg); err == nil || l != nil {
				t.Errorf("%v, %v", l, err)
			}
		})
	}
}

func TestConnectTimeout(t *testing.T) {
	ends := linktest.Ends(link.CipherAES256GCM, jumbo)
	ends[0].ConnectTimeout = 300 * time.Millisecond
	n := network(t, linktest.Config{Ends: ends}, "loss=100%", jumbo)
	n.RunUntil(time.Second, func() bool { return n.Link[0].State() == link.Down })
	if reason, _ := n.Link[0].Reason(); reason != link.ConnectFailed || n.Now != 300*time.Millisecond {
		t.Errorf("%v at %v", reason, n.Now)
	}
}

func TestIncompatibleEnds(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*link.Config)
		reason link.Reason
	}{
		{"cipher", func(c *link.Config) { c.Cipher = link.CipherNone }, link.Incompatible},
		{"endpoint", func(c *link.Config) { c.Local.Slot++ }, link.Incompatible},
		{"secret", func(c *link.Config) { c.Secret[0]++ }, link.ConnectFailed},
		{"epoch", func(c *link.Config) { c.Epoch++ }, link.ConnectFailed},
		{"binding", func(c *link.Config) { c.Binding++ }, link.ConnectFailed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			ends := linktest.Ends(link.CipherAES256GCM, jumbo)
			ends[0].ConnectTimeout = time.Second
			tc.change(&ends[1])
			n := network(t, linktest.Config{Ends: ends}, "delay=20us", jumbo)
			n.Run(2 * time.Second)
			if reason, _ := n.Link[0].Reason(); reason != tc.reason {
				t.Errorf("host: %v, want %v", reason, tc.reason)
			}
			if n.Link[1].State() != link.Connecting || n.Link[1].Stats().TLPsReceived > 0 {
				t.Errorf("box is %v", n.Link[1].State())
			}
		})
	}
}

// One mebibyte is in flight from the first round trip on, as a device with 256 tags
// of 4 KiB needs it, over a short and a long path.
func TestWindowHoldsAMebibyteInFlight(t *testing.T) {
	for _, rtt := range []time.Duration{1200 * time.Nanosecond, 6800 * time.Nanosecond, 100 * time.Microsecond} {
		t.Run(rtt.String(), func(t *testing.T) {
			n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherNone, loopback)}, fmt.Sprintf("delay=%v", rtt/2), loopback)
			const round = 256
			start := n.Now
			for i := range 10 {
				for range round {
					if err := n.Send(linktest.Box, memoryWrite(4096)); err != nil {
						t.Fatalf("round %d: %v", i, err)
					}
				}
				n.Run(start + time.Duration(i+1)*rtt)
				if got := len(n.Arrived[linktest.Host]); got != round*(i+1) {
					t.Fatalf("round %d: %d TLPs arrived, want %d: %+v", i, got, round*(i+1), n.Link[1].Stats())
				}
			}
		})
	}
}

// The window finds the bandwidth of a bottleneck with a short queue.
func TestCongestionFillsABottleneck(t *testing.T) {
	ends := linktest.Ends(link.CipherNone, jumbo)
	const rate = 1.25e9 // 10 Gb/s
	n, err := linktest.New(linktest.Config{Ends: ends, Paths: []linktest.Path{{
		Plans: [2]fault.Plan{plan(t, "delay=20us"), plan(t, "delay=20us")}, Rate: rate, Queue: 256 << 10,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	var got int
	n.OnDeliver = func(_ linktest.Side, p *tlp.Packet) { got += len(p.Data) }
	p := memoryWrite(4096)
	n.RunUntil(200*time.Millisecond, func() bool {
		for n.Send(linktest.Host, p) == nil {
		}
		return false
	})
	if share := float64(got) / 0.2 / rate; share < 0.8 {
		t.Errorf("%.0f %% of the bottleneck used: %+v", 100*share, n.Link[0].Stats())
	}
	if s := n.Link[0].Stats(); float64(s.LostDatagrams) > 0.05*float64(s.DatagramsSent) {
		t.Errorf("%d of %d datagrams lost", s.LostDatagrams, s.DatagramsSent)
	}
}

// The network is cut in one direction. The end that hears nothing tells the other one, which
// would have to notice the silence that follows.
func TestOneDirectionIsCut(t *testing.T) {
	for _, cut := range []linktest.Side{linktest.Host, linktest.Box} {
		n := up(t, linktest.Config{Ends: linktest.Ends(link.CipherAES256GCM, jumbo)}, "delay=20us", jumbo)
		at := n.Now
		n.SetPlan(cut, 0, plan(t, "loss=100%"))
		n.RunUntil(at+5*time.Second, func() bool { return n.Link[0].State() == link.Down && n.Link[1].State() == link.Down })
		if took := n.Now - at; took > 1300*time.Millisecond {
			t.Errorf("both ends were down after %v, want about 1 s", took)
		}
		if reason, code := n.Link[cut].Reason(); reason != link.PeerClosed || code != link.CodeSilence {
			t.Errorf("the end that is not heard: %v, %#x", reason, code)
		}
		if reason, _ := n.Link[1-cut].Reason(); reason != link.PeerLost {
			t.Errorf("the end that hears nothing: %v", reason)
		}
	}
}
