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
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/link"
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
			r := joinFabrics(t, c.plans...)
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

// A handler is not called after Detach, although the timer runs.
func TestDetachWhileTimersRun(t *testing.T) {
	f := open(t, PathConfig{})
	r := &fabrics{t: t, fabric: [2]*Fabric{f, f}, group: [2]*Group{f.newGroup(), f.newGroup()}}
	cfg := r.configs(1, link.CipherAES256GCM)[0]
	for range 50 {
		var e end
		var closed atomic.Bool
		pumped := make(chan struct{}, 1)
		e.wake = func() time.Duration { return 0 } // at once, again and again
		e.transmit = func(engine.Entry) {
			if closed.Load() {
				t.Error("called after Detach")
			}
			select {
			case pumped <- struct{}{}:
			default:
			}
		}
		e.states = make(chan link.State, 16)
		g := r.group[0]
		at := g.Enter()
		b, err := g.Attach(at, engine.BindingConfig{Link: cfg, Peers: f.Addrs(), Handler: &e})
		g.Leave(at)
		if err != nil {
			t.Fatal(err)
		}
		<-pumped
		<-pumped
		g.Detach(b)
		closed.Store(true)
		g.Detach(b) // as when the fabric has ended before
		at = g.Enter()
		if err := b.Send(at, write(0, 4)); !errors.Is(err, link.ErrDown) {
			t.Errorf("Send after Detach: %v", err)
		}
		g.Leave(at)
	}
}

func TestShutdownTellsThePeer(t *testing.T) {
	for _, c := range []struct {
		code engine.CloseCode
		want string
	}{
		{engine.CloseDetached, "detached"},
		{engine.CloseShutdown, "proxy shut down"},
		{engine.CloseDeviceLost, "device lost"},
		{engine.CloseProtocol, "protocol broken"},
		{engine.CloseCode(77), "code 77"},
	} {
		t.Run(c.want, func(t *testing.T) {
			r := joinFabrics(t)
			var a, b end
			r.join(r.configs(1, link.CipherAES256GCM), &a, &b)
			a.await(t, link.Up)
			at := a.group.Enter()
			a.binding.Shutdown(at, c.code)
			a.group.Leave(at)
			a.group.Detach(a.binding)
			b.await(t, link.Down)
			at = b.group.Enter()
			defer b.group.Leave(at)
			if why := b.binding.Why(at); !strings.HasSuffix(why, c.want) {
				t.Errorf("the peer says %q, want %q in the end", why, c.want)
			}
		})
	}
}

func TestAttachRefuses(t *testing.T) {
	f := open(t, PathConfig{})
	g := f.newGroup()
	r := &fabrics{t: t, fabric: [2]*Fabric{f, f}}
	good := r.configs(1, link.CipherAES256GCM)[0]
	bad := good
	bad.Session = 0
	here := f.Addrs()
	at := g.Enter()
	defer func() { g.Leave(at) }()
	if _, err := g.Attach(at, engine.BindingConfig{Link: good, Peers: here, Handler: &end{states: make(chan link.State, 9)}}); err != nil {
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
		if b, err := g.Attach(at, engine.BindingConfig{Link: c.cfg, Peers: c.peers, Handler: &end{}}); err == nil || b != nil {
			t.Errorf("%s: attached", c.name)
		}
	}
}

// Datagrams of no binding, or from another address than the peer's, are counted
// and reach no link.
func TestStrayAndStrangers(t *testing.T) {
	r := joinFabrics(t)
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
	ours[0], ours[7] = frame.Version2<<4|byte(frame.TypeTraffic), 1
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
	at := b.group.Enter()
	defer b.group.Leave(at)
	drops := b.binding.Stats(at).Drops
	drops.Downgrade = 0 // the second hello, if the first took long
	if drops.Total() != 0 {
		t.Errorf("they reached the link: %+v", drops)
	}
}
