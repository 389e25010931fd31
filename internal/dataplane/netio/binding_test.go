package netio

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/tlp"
)

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
		{"a bad path in the clear", link.CipherNone, []fault.Plan{bad}},
		{"a path with delay", link.CipherAES256GCM, []fault.Plan{late}},
		{"one bad and one late path", link.CipherAES256GCM, []fault.Plan{bad, late}},
	} {
		t.Run(c.name, func(t *testing.T) {
			const n = 1200
			r := newRig(t, c.plans...)
			var a, b end
			toB, toA := b.expect(t, n), a.expect(t, n)
			r.join(r.configs(1, c.cipher), &a, &b)
			a.sendAll(t, n)
			b.sendAll(t, n)
			wait(t, toA, "TLPs to the first end")
			wait(t, toB, "TLPs to the second end")
		})
	}
}

// A handler that takes nothing slows its peer down: what waits stays within
// the window of the link, and comes in order when the handler takes it again.
func TestHoldSlowsThePeer(t *testing.T) {
	const n, window = 1200, 64 << 10
	r := newRig(t)
	cfg := r.configs(1, link.CipherAES256GCM)
	cfg[0].Window, cfg[1].Window = window, window
	var a, b end
	done := b.expect(t, n)
	accept, open := b.deliver, false
	b.deliver = func(now time.Duration, p *tlp.Packet) bool { return open && accept(now, p) }
	full := make(chan struct{})
	b.pump = func(time.Duration) {
		if b.binding != nil && b.binding.held.bytes > window/2 && !isClosed(full) {
			close(full)
		}
	}
	r.join(cfg, &a, &b)
	a.sendAll(t, n)
	wait(t, full, "the window to fill")
	b.group.Enter()
	if held := b.binding.held.bytes; held > window {
		t.Errorf("%d bytes are held, the window has %d", held, window)
	}
	open = true
	b.binding.Touch()
	b.group.Leave()
	wait(t, done, "what was held")
}

// What one handler could not take is offered again when another binding of
// the group is pumped, as peer-to-peer traffic needs.
func TestHeldWaitsForAnotherBinding(t *testing.T) {
	r := newRig(t)
	quiet := func(id uint32) [2]link.Config {
		cfg := r.configs(id, link.CipherAES256GCM)
		for side := range cfg { // nothing but the group may bring the TLP back
			cfg[side].KeepAlive, cfg[side].DeadInterval = time.Hour, 3*time.Hour
		}
		return cfg
	}
	var a1, b1, a2, b2 end
	open := false
	refused, taken := make(chan struct{}), make(chan struct{})
	b1.deliver = func(time.Duration, *tlp.Packet) bool {
		if !open && !isClosed(refused) {
			close(refused)
		}
		if open {
			close(taken)
		}
		return open
	}
	b2.deliver = func(time.Duration, *tlp.Packet) bool { open = true; return true }
	r.join(quiet(1), &a1, &b1)
	r.join(quiet(2), &a2, &b2)
	a1.await(t, link.Up)
	a2.await(t, link.Up)
	a1.sendAll(t, 1)
	wait(t, refused, "the first TLP")
	a2.sendAll(t, 1)
	wait(t, taken, "the TLP that was held")
}

// The end of a link that transmitting finds may be news for another binding
// of the group: what is sent then must leave.
func TestTouchedWhileTransmitting(t *testing.T) {
	r := newRig(t)
	var a, b, lonely end
	done := b.expect(t, 2)
	r.join(r.configs(1, link.CipherAES256GCM), &a, &b)
	a.await(t, link.Up)
	var s stream
	lonely.changed = func(now time.Duration, s2 link.State) {
		if s2 == link.Down {
			if err := a.binding.Send(now, s.packet(0)); err != nil {
				t.Error(err)
			}
		}
	}
	cfg := r.configs(2, link.CipherAES256GCM)[0]
	cfg.ConnectTimeout = 10 * time.Millisecond
	r.attach(cfg, 0, &lonely)
	lonely.await(t, link.Down)
	now := a.group.Enter()
	if err := a.binding.Send(now, s.packet(1)); err != nil {
		t.Error(err)
	}
	if why := lonely.binding.Why(); !strings.Contains(why, link.ConnectFailed.String()) {
		t.Errorf("the link is down for %q", why)
	}
	a.group.Leave()
	wait(t, done, "TLPs sent from inside a transmission")
}

// Close waits for a timer that runs, and nothing is called afterwards.
func TestCloseWhileTimersRun(t *testing.T) {
	f := open(t, PathConfig{})
	r := &rig{t: t, fabric: [2]*Fabric{f, f}, group: [2]*Group{f.NewGroup(), f.NewGroup()}}
	cfg := r.configs(1, link.CipherAES256GCM)[0]
	for range 50 {
		var e end
		var closed atomic.Bool
		pumped := make(chan struct{}, 1)
		e.wake = func() time.Duration { return 0 } // at once, again and again
		e.pump = func(time.Duration) {
			if closed.Load() {
				t.Error("pumped after Close")
			}
			select {
			case pumped <- struct{}{}:
			default:
			}
		}
		e.states = make(chan link.State, 16)
		b, err := r.group[0].Attach(BindingConfig{Link: cfg, Peers: f.Addrs(), Handler: &e})
		if err != nil {
			t.Fatal(err)
		}
		<-pumped
		<-pumped
		b.Close()
		closed.Store(true)
		b.Close() // as when the fabric has ended before
		if err := b.Send(0, write(0, 4)); !errors.Is(err, link.ErrDown) {
			t.Errorf("Send after Close: %v", err)
		}
	}
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
			r := newRig(t)
			var a, b end
			r.join(r.configs(1, link.CipherAES256GCM), &a, &b)
			a.await(t, link.Up)
			now := a.group.Enter()
			a.binding.Shutdown(now, c.code)
			a.group.Leave()
			a.binding.Close()
			b.await(t, link.Down)
			b.group.Enter()
			defer b.group.Leave()
			if why := b.binding.Why(); !strings.HasSuffix(why, c.want) {
				t.Errorf("the peer says %q, want %q in the end", why, c.want)
			}
		})
	}
}

func TestAttachRefuses(t *testing.T) {
	f := open(t, PathConfig{})
	g := f.NewGroup()
	r := &rig{t: t, fabric: [2]*Fabric{f, f}}
	good := r.configs(1, link.CipherAES256GCM)[0]
	bad := good
	bad.Session = 0
	here := f.Addrs()
	if _, err := g.Attach(BindingConfig{Link: good, Peers: here, Handler: &end{states: make(chan link.State, 9)}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name  string
		cfg   link.Config
		peers []netip.AddrPort
	}{
		{"no peer", good, nil},
		{"more peers than paths", good, append(here, here...)},
		{"a link that cannot be", bad, here},
		{"a number that is in use", good, here},
	} {
		if b, err := g.Attach(BindingConfig{Link: c.cfg, Peers: c.peers, Handler: &end{}}); err == nil || b != nil {
			t.Errorf("%s: attached", c.name)
		}
	}
}

// Datagrams that belong to nobody, or come from somebody else, are counted and
// reach no link.
func TestStrayAndStrangers(t *testing.T) {
	r := newRig(t)
	var a, b end
	done := b.expect(t, 1)
	r.join(r.configs(1, link.CipherNone), &a, &b)
	a.await(t, link.Up)
	before := r.fabric[1].Stats() // a greeting may have come before there was a binding
	other, err := net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(r.fabric[1].Addrs()[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	ours := make([]byte, 64) // only the version and the binding are looked at
	ours[0], ours[7] = frame.Version<<4, 1
	if key, ok := frame.PeekBinding(ours); !ok || key != 1 {
		t.Fatalf("binding %d, %v: the layout of the header has changed", key, ok)
	}
	unknown := append([]byte(nil), ours...)
	unknown[7] = 99
	for _, datagram := range [][]byte{{1}, ours[:frame.HeaderSize-1], unknown, make([]byte, 9000), ours, ours} {
		if _, err := other.Write(datagram); err != nil {
			t.Fatal(err)
		}
	}
	// A socket keeps what came in order: the TLP is behind the others.
	a.sendAll(t, 1)
	wait(t, done, "the TLP behind the strays")
	if s := r.fabric[1].Stats(); s.Strangers-before.Strangers != 2 || s.Stray-before.Stray != 4 {
		t.Errorf("strangers and strays went from %+v to %+v, want 2 and 4 more", before, s)
	}
	b.group.Enter()
	defer b.group.Leave()
	if drops := b.binding.Stats().Drops; drops.Total() != 0 {
		t.Errorf("they reached the link: %+v", drops)
	}
}
