package netio

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
)

// A plan with delay sends nothing early, and what is due in the order of its time.
func TestDelayedDatagramsLeaveInOrderOfTime(t *testing.T) {
	to, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer to.Close()
	conn, err := udp.Listen("127.0.0.1:0", udp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	plan := fault.Plan{Delay: time.Millisecond, Jitter: 5 * time.Millisecond}
	const seed, n, size = 3, 100, 16
	p := newPath(conn, PathConfig{Fault: plan, Seed: seed})
	batch := make([]byte, 0, n*size)
	for i := range n {
		batch = append(batch, make([]byte, size)...)
		binary.BigEndian.PutUint32(batch[i*size:], uint32(i))
	}
	p.write(func() time.Duration { return 0 }, conn.NewWriter(), [][]byte{batch[:100], batch[100:]}, size, to.LocalAddr().(*net.UDPAddr).AddrPort(), 0)

	// The same seed tells when each is due.
	due := map[uint32]time.Duration{}
	twin := fault.New(plan, seed)
	for i := range uint32(n) {
		due[i] = twin.Apply(0, batch[i*size:][:size])[0].At
	}
	if err := to.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	now, last, came := time.Duration(0), time.Duration(0), 0
	for p.late.Len() > 0 {
		before := p.late.Len()
		now = max(now, time.Duration(p.due.Load()))
		p.sendDue(now)
		if p.late.Len() == before {
			t.Fatal("nothing was due when it was said to be")
		}
		for range before - p.late.Len() {
			buf := make([]byte, size)
			if _, err := to.Read(buf); err != nil {
				t.Fatal(err)
			}
			at := due[binary.BigEndian.Uint32(buf)]
			if at > now || at < last {
				t.Fatalf("datagram due at %v came at %v, after one due at %v", at, now, last)
			}
			last = at
			came++
		}
	}
	if came != n {
		t.Errorf("%d datagrams came, want %d", came, n)
	}
	if due, held := time.Duration(p.due.Load()), p.held.Load(); due != machine.Never || held != 0 {
		t.Errorf("with nothing to send the next look is at %v, and %d bytes are held", due, held)
	}
}

func TestOpenRefuses(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	taken, err := Open(Config{Paths: []PathConfig{{Listen: "127.0.0.1:0"}}, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	defer taken.closeSockets() //nolint:errcheck // nothing was sent
	for _, c := range []struct {
		name, want string
		paths      []PathConfig
	}{
		{"no path", "0 paths", nil},
		{"too many paths", "256 paths", make([]PathConfig, 256)},
		{"no address", "path 0", []PathConfig{{Listen: "nowhere"}}},
		{"an address in use, behind a good one", "path 1", []PathConfig{{Listen: "127.0.0.1:0"}, {Listen: taken.Addrs()[0].String()}}},
	} {
		f, err := Open(Config{Paths: c.paths, Logger: log})
		if err == nil || f != nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestMTUs(t *testing.T) {
	f := open(t, PathConfig{}, PathConfig{})
	for i, mtu := range f.MTUs() {
		if mtu < 1400 || mtu > udp.MaxDatagram {
			t.Errorf("path %d: MTU %d", i, mtu)
		}
	}
}

// One path of two is cut while TLPs are under way: none is lost.
func TestPathFails(t *testing.T) {
	const n = 4000
	cut := fault.Plan{Partitions: []fault.Window{{From: 20 * time.Millisecond, To: time.Hour}}}
	r := joinFabrics(t, fault.Plan{}, cut)
	var a, b end
	done := b.expect(t, n)
	r.join(r.configs(1, link.CipherAES256GCM), &a, &b)
	a.sendAll(t, n)
	wait(t, done, "TLPs over the path that is left")
	at := a.group.Enter()
	defer a.group.Leave(at)
	if s := a.binding.State(at); s != link.Up {
		t.Errorf("the link is %v: %s", s, a.binding.Why(at))
	}
}

// Sending a posted write costs no allocation from the caller to the socket.
func TestSendAllocatesNothing(t *testing.T) {
	r := joinFabrics(t)
	var a, b end
	r.join(r.configs(1, link.CipherAES256GCM), &a, &b)
	a.await(t, link.Up)
	p := write(0x1000, 64)
	// AllocsPerRun leaves one processor to the senders and to the goroutine that reads
	// acknowledgements, so a send can find the window full.
	send := func() {
		for {
			at := a.group.Enter()
			err := a.binding.Send(at, p)
			a.group.Leave(at)
			if !errors.Is(err, link.ErrFull) {
				if err != nil {
					t.Error(err)
				}
				return
			}
			runtime.Gosched()
		}
	}
	for range 2000 { // buffers and queues get their size
		send()
	}
	// The other goroutines of the process are counted too: it receives, acknowledges.
	if n := testing.AllocsPerRun(2000, send); n > 0.2 {
		t.Errorf("%v allocations for each TLP", n)
	}
}
