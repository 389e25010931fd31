package netio

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// patience bounds how long a test waits on a loaded machine.
const patience = 20 * time.Second

// end is a handler that calls the functions of its test. nil functions take every
// TLP, send none and never wake.
type end struct {
	group   *Group
	binding *engine.Binding

	receive  func(e engine.Entry, p *tlp.Packet) bool
	transmit func(e engine.Entry)
	wake     func() time.Duration
	changed  func(e engine.Entry, s link.State)

	states chan link.State
}

func (e *end) Receive(at engine.Entry, p *tlp.Packet) bool {
	return e.receive == nil || e.receive(at, p)
}

func (e *end) Transmit(at engine.Entry) {
	if e.transmit != nil {
		e.transmit(at)
	}
}

func (e *end) Wake(engine.Entry) time.Duration {
	if e.wake != nil {
		return e.wake()
	}
	return machine.Never
}

func (e *end) LinkChanged(at engine.Entry, s link.State) {
	if e.changed != nil {
		e.changed(at, s)
	}
	e.states <- s
}

// open opens a fabric that runs until the test ends.
func open(t testing.TB, paths ...PathConfig) *Fabric {
	t.Helper()
	for i := range paths {
		paths[i].Listen = "127.0.0.1:0"
	}
	f, err := Open(Config{Paths: paths, ECN: true, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		if err := f.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	return f
}

// fabrics is two fabrics with bindings between them. All bindings of a side are in
// one group.
type fabrics struct {
	t      *testing.T
	fabric [2]*Fabric
	group  [2]*Group
}

func joinFabrics(t *testing.T, plans ...fault.Plan) *fabrics {
	t.Helper()
	if len(plans) == 0 {
		plans = make([]fault.Plan, 1)
	}
	r := &fabrics{t: t}
	for side := range r.fabric {
		var paths []PathConfig
		for i, plan := range plans {
			paths = append(paths, PathConfig{Fault: plan, Seed: uint64(2*i + side + 1)})
		}
		r.fabric[side] = open(t, paths...)
		r.group[side] = r.fabric[side].newGroup()
	}
	return r
}

// configs returns the two ends of a binding of the fabrics.
func (r *fabrics) configs(id uint32, cipher link.Cipher) [2]link.Config {
	mtus := make([]int, len(r.fabric[0].paths))
	for i := range mtus {
		mtus[i] = 9000
	}
	ends := linktest.Ends(cipher, mtus...)
	for side := range ends {
		ends[side].Binding = id
	}
	return ends
}

// join attaches the two ends of a binding.
func (r *fabrics) join(cfg [2]link.Config, a, b *end) {
	r.t.Helper()
	for side, e := range []*end{a, b} {
		r.attach(cfg[side], side, e)
	}
}

func (r *fabrics) attach(cfg link.Config, side int, e *end) {
	r.t.Helper()
	r.attachTo(r.fabric[1-side].Addrs(), cfg, side, e)
}

func (r *fabrics) attachTo(peers []netip.AddrPort, cfg link.Config, side int, e *end) {
	r.t.Helper()
	e.states, e.group = make(chan link.State, 16), r.group[side]
	at := e.group.Enter()
	b, err := e.group.Attach(at, engine.BindingConfig{Link: cfg, Peers: peers, Handler: e})
	e.binding = b
	e.group.Leave(at)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { e.group.Detach(b) })
}

// await waits for a state of the link.
func (e *end) await(t *testing.T, want link.State) {
	t.Helper()
	limit := time.After(patience)
	for {
		select {
		case s := <-e.states:
			if s == want {
				return
			}
		case <-limit:
			t.Fatalf("the link does not become %v", want)
		}
	}
}

// stream is a source of numbered TLPs of many sizes.
type stream struct{ payload [4096]byte }

// packet makes TLP number i: a read, or a write whose payload depends on i.
func (s *stream) packet(i int) *tlp.Packet {
	p := &tlp.Packet{Type: tlp.MRd}
	n := [...]int{4, 0, 128, 512, 4096, 64}[i%6]
	if n > 0 {
		p.Type, p.Data = tlp.MWr, s.payload[:n]
		for at := 0; at < n; at += 4 {
			binary.LittleEndian.PutUint32(s.payload[at:], uint32(i*at+i))
		}
	}
	p.SetMemory(uint64(i)<<12, max(n, 4))
	return p
}

// sendAll gives n numbered TLPs to the link as it takes them.
func (e *end) sendAll(t *testing.T, n int) {
	t.Helper()
	at := e.group.Enter()
	defer e.group.Leave(at)
	var s stream
	sent := 0
	e.transmit = func(at engine.Entry) {
		for sent < n {
			switch err := e.binding.Send(at, s.packet(sent)); {
			case errors.Is(err, link.ErrFull):
				return
			case err != nil:
				t.Error(err)
				sent = n
			default:
				sent++
			}
		}
	}
	e.binding.Touch(at)
}

// check compares a TLP with number i.
func (s *stream) check(i int, p *tlp.Packet) error {
	want := s.packet(i)
	if p.Type != want.Type || p.Addr != want.Addr || p.Length != want.Length || !bytes.Equal(p.Data, want.Data) {
		return fmt.Errorf("TLP %d: %v at %#x with %d bytes, want %v at %#x with %d (or other bytes)",
			i, p.Type, p.Addr, len(p.Data), want.Type, want.Addr, len(want.Data))
	}
	return nil
}

// expect makes an end check numbered TLPs and returns a channel that is closed
// when n of them have arrived.
func (e *end) expect(t *testing.T, n int) <-chan struct{} {
	done := make(chan struct{})
	var s stream
	seen := 0
	e.receive = func(_ engine.Entry, p *tlp.Packet) bool {
		if err := s.check(seen, p); err != nil {
			t.Error(err)
		}
		if seen++; seen == n {
			close(done)
		}
		return true
	}
	return done
}

func wait(t *testing.T, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("timed out: " + what)
	}
}

func write(addr uint64, n int) *tlp.Packet {
	p := &tlp.Packet{Type: tlp.MWr, Data: make([]byte, n)}
	p.SetMemory(addr, n)
	return p
}
