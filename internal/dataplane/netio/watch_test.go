package netio

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/dxpu-project/dxpu/internal/dataplane/capture"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/tlp"
)

// A capture has every TLP of the binding that it asks for, in order and in
// clear, with the route of the binding, and ends with its context.
func TestCapture(t *testing.T) {
	const n = 60
	r := joinFabrics(t)
	var a, b, c, d end
	toB, toD := b.expect(t, n), d.expect(t, n)
	cfg := r.configs(1, link.CipherAES256GCM)
	other := r.configs(2, link.CipherAES256GCM)
	r.join(cfg, &a, &b)
	r.join(other, &c, &d)

	ctx, stop := context.WithCancel(t.Context())
	binding := uint32(1)
	var sent, received bytes.Buffer
	ready, ended := make(chan struct{}, 64), make(chan error, 2)
	for side, out := range []*bytes.Buffer{&sent, &received} {
		go func() {
			ended <- r.fabric[side].Capture(ctx, capture.Options{Binding: &binding}, out, func() { ready <- struct{}{} })
		}()
	}
	<-ready // the headers are out, so TLPs are captured
	<-ready
	a.sendAll(t, n)
	c.sendAll(t, n)
	wait(t, toB, "TLPs of the binding")
	wait(t, toD, "TLPs of the other binding")
	stop()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	for side, out := range []*bytes.Buffer{&sent, &received} {
		want := capture.Header{
			Received: side == 1, Binding: 1, Epoch: cfg[0].Epoch, Source: cfg[0].Local, Destination: cfg[0].Remote,
		}
		if got := checkCapture(t, out, want); got != n {
			t.Errorf("side %d: %d TLPs, want %d", side, got, n)
		}
		if r.fabric[side].captures.list.Load() != nil {
			t.Errorf("side %d: a capture is left", side)
		}
	}
}

// checkCapture compares a capture with the numbered TLPs and returns their number.
func checkCapture(t *testing.T, r io.Reader, want capture.Header) (n int) {
	t.Helper()
	var s stream
	packets, err := pcapgo.NewNgReader(r, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for {
		data, info, err := packets.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return n
		}
		if err != nil {
			t.Fatal(err)
		}
		h, size, err := capture.ParseHeader(data)
		if err != nil || h != want {
			t.Fatalf("%+v, want %+v: %v", h, want, err)
		}
		p, _, err := tlp.Parse(data[size:])
		if err != nil {
			t.Fatal(err)
		}
		if err := s.check(n, &p); err != nil {
			t.Fatal(err)
		}
		if time.Since(info.Timestamp).Abs() > patience {
			t.Errorf("captured at %v", info.Timestamp)
		}
		n++
	}
}

// A capture whose reader hangs loses TLPs; the data plane does not notice.
func TestCaptureDoesNotBlock(t *testing.T) {
	const n = 600
	r := joinFabrics(t)
	var a, b end
	done := b.expect(t, n)
	r.join(r.configs(1, link.CipherAES256GCM), &a, &b)
	stuck, out := io.Pipe()
	began, ended := make(chan struct{}), make(chan error)
	go func() {
		ended <- r.fabric[0].Capture(t.Context(), capture.Options{Buffer: 4096}, out, func() { close(began) })
	}()
	if _, err := stuck.Read(make([]byte, 4096)); err != nil { // the section and the interface
		t.Fatal(err)
	}
	<-began
	a.sendAll(t, n)
	wait(t, done, "TLPs past a capture that hangs")
	_ = stuck.Close()
	if err := <-ended; !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("the capture ended with %v", err)
	}
}

// Both ends of a request see how long it took, and the host what the device took.
func TestRoundTrips(t *testing.T) {
	r := joinFabrics(t)
	var a, b end
	answered := make(chan struct{})
	b.receive = func(at engine.Entry, p *tlp.Packet) bool {
		reply := &tlp.Packet{Type: tlp.CplD, Length: 1, Requester: p.Requester, Tag: p.Tag, ByteCount: 4, Data: make([]byte, 4)}
		if err := b.binding.Send(at, reply); err != nil {
			t.Error(err)
		}
		return true
	}
	a.receive = func(engine.Entry, *tlp.Packet) bool {
		close(answered)
		return true
	}
	r.join(r.configs(1, link.CipherAES256GCM), &a, &b)
	read := &tlp.Packet{Type: tlp.MRd, Tag: 7}
	read.SetMemory(0x1000, 4)
	at := a.group.Enter()
	if err := a.binding.Send(at, read); err != nil {
		t.Fatal(err)
	}
	a.group.Leave(at)
	wait(t, answered, "the completion")

	at = a.group.Enter()
	whole, none := a.binding.RoundTrips(at)
	a.group.Leave(at)
	at = b.group.Enter()
	nothing, served := b.binding.RoundTrips(at)
	b.group.Leave(at)
	if whole.Samples != 1 || served.Samples != 1 || whole.Smoothed <= served.Smoothed {
		t.Errorf("a request took %+v, of which %+v in the other end", whole, served)
	}
	if none.Samples != 0 || nothing.Samples != 0 {
		t.Errorf("the other way %+v and %+v", none, nothing)
	}
}

// watched returns a fabric, a binding of it, and a TLP to watch.
func watched(t testing.TB) (*Fabric, *engine.Binding, *tlp.Packet) {
	t.Helper()
	f := open(t, PathConfig{})
	g := f.newGroup()
	e := g.Enter()
	defer g.Leave(e)
	b, err := g.Attach(e, engine.BindingConfig{
		Link: linktest.Ends(link.CipherNone, 9000)[0], Peers: f.Addrs(), Handler: &end{states: make(chan link.State, 9)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return f, b, write(0x1000, 128)
}

// A capture allocates nothing for each TLP.
func TestWatchDoesNotAllocate(t *testing.T) {
	f, b, p := watched(t)
	list := []*capture.Session{capture.NewSession(capture.Options{Buffer: 1 << 16})}
	f.captures.list.Store(&list)
	w := engine.Watcher(watcher{f})
	if !w.Watching() {
		t.Fatal("the group does not see the capture")
	}
	for range 1000 {
		w.TLP(b, false, p) // fills the buffer
	}
	if n := testing.AllocsPerRun(100, func() { w.TLP(b, false, p) }); n != 0 {
		t.Errorf("%v allocations with a capture", n)
	}
}
