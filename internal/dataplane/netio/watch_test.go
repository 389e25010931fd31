package netio

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/internal/dataplane/capture"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// A capture has every TLP of the binding that it asks for, in order and in
// clear, with the route of the binding, and ends with its context.
func TestCapture(t *testing.T) {
	const n = 60
	r := newRig(t)
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
	r := newRig(t)
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
	r := newRig(t)
	var a, b end
	answered := make(chan struct{})
	b.deliver = func(now time.Duration, p *tlp.Packet) bool {
		reply := &tlp.Packet{Type: tlp.CplD, Length: 1, Requester: p.Requester, Tag: p.Tag, ByteCount: 4, Data: make([]byte, 4)}
		if err := b.binding.Send(now, reply); err != nil {
			t.Error(err)
		}
		return true
	}
	a.deliver = func(time.Duration, *tlp.Packet) bool {
		close(answered)
		return true
	}
	r.join(r.configs(1, link.CipherAES256GCM), &a, &b)
	read := &tlp.Packet{Type: tlp.MRd, Tag: 7}
	read.SetMemory(0x1000, 4)
	now := a.group.Enter()
	if err := a.binding.Send(now, read); err != nil {
		t.Fatal(err)
	}
	a.group.Leave()
	wait(t, answered, "the completion")

	a.group.Enter()
	whole, none := a.binding.RoundTrips()
	a.group.Leave()
	b.group.Enter()
	nothing, served := b.binding.RoundTrips()
	b.group.Leave()
	if whole.Samples != 1 || served.Samples != 1 || whole.Smoothed <= served.Smoothed {
		t.Errorf("a request took %+v, of which %+v in the other end", whole, served)
	}
	if none.Samples != 0 || nothing.Samples != 0 {
		t.Errorf("the other way %+v and %+v", none, nothing)
	}
}

func TestSampler(t *testing.T) {
	request := func(tag pcie.Tag) *tlp.Packet { return &tlp.Packet{Type: tlp.MRd, Length: 32, Tag: tag} }
	data := func(tag pcie.Tag, left uint16) *tlp.Packet {
		return &tlp.Packet{Type: tlp.CplD, Length: 16, ByteCount: left, Tag: tag, Data: make([]byte, 64)}
	}
	type step struct {
		at time.Duration
		p  *tlp.Packet
	}
	for _, tc := range []struct {
		name  string
		steps []step
		want  RoundTrip
	}{
		{"one completion", []step{{10, request(1)}, {30, data(1, 64)}}, RoundTrip{20, 20, 20, 1}},
		{"the last of two", []step{{10, request(1)}, {30, data(1, 128)}, {50, data(1, 64)}}, RoundTrip{40, 40, 40, 1}},
		{"one request at a time", []step{{10, request(1)}, {20, request(2)}, {30, data(2, 64)}, {40, data(1, 64)}}, RoundTrip{30, 30, 30, 1}},
		{"an error ends it", []step{{10, request(1)}, {30, &tlp.Packet{Type: tlp.Cpl, Status: pcie.UnsupportedRequest, ByteCount: 128, Tag: 1}}}, RoundTrip{20, 20, 20, 1}},
		{"of a write", []step{{10, &tlp.Packet{Type: tlp.CfgWr0, Tag: 1}}, {30, &tlp.Packet{Type: tlp.Cpl, ByteCount: 4, Tag: 1}}}, RoundTrip{20, 20, 20, 1}},
		{"another requester", []step{{10, request(1)}, {30, &tlp.Packet{Type: tlp.Cpl, Requester: 8, Tag: 1}}}, RoundTrip{}},
		{"not too often", []step{{10, request(1)}, {20, data(1, 64)}, {30, request(2)}, {90, data(2, 64)}}, RoundTrip{10, 10, 10, 1}},
		{
			"smoothed",
			[]step{{10, request(1)}, {20, data(1, 64)}, {2 * sampleEvery, request(2)}, {2*sampleEvery + 90, data(2, 64)}},
			RoundTrip{20, 10, 90, 2},
		},
		{
			"one that is not answered is given up",
			[]step{{10, request(1)}, {11 + sampleLimit, request(2)}, {31 + sampleLimit, data(2, 64)}},
			RoundTrip{20, 20, 20, 1},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var s sampler
			for _, step := range tc.steps {
				s.see(step.at, step.p, func() time.Duration { return step.at })
			}
			if s.RoundTrip != tc.want {
				t.Errorf("%+v, want %+v", s.RoundTrip, tc.want)
			}
		})
	}
}

func watched() (*Binding, *tlp.Packet) {
	f := &Fabric{start: time.Now()}
	b := &Binding{group: &Group{fabric: f}, id: 1, local: frame.Endpoint{Node: 1}, remote: frame.Endpoint{Node: 2}}
	return b, write(0x1000, 128)
}

// Nothing is allocated while nobody captures, nor for each TLP while somebody does.
func TestWatchDoesNotAllocate(t *testing.T) {
	b, p := watched()
	reply := &tlp.Packet{Type: tlp.CplD, Length: 1, ByteCount: 4, Data: make([]byte, 4)}
	request := &tlp.Packet{Type: tlp.MRd, Length: 1}
	if n := testing.AllocsPerRun(100, func() {
		b.watch(false, p)
		b.watch(false, request)
		b.watch(true, reply)
	}); n != 0 {
		t.Errorf("%v allocations without a capture", n)
	}
	list := []*capture.Session{capture.NewSession(capture.Options{Buffer: 1 << 16})}
	b.group.fabric.captures.list.Store(&list)
	for range 1000 {
		b.watch(false, p) // fills the buffer
	}
	if n := testing.AllocsPerRun(100, func() { b.watch(false, p) }); n != 0 {
		t.Errorf("%v allocations with a capture", n)
	}
}

// What the data plane pays for being watched, of 150 ns that a TLP may cost.
func BenchmarkWatch(b *testing.B) {
	w, p := watched()
	for _, tc := range []struct {
		name string
		p    *tlp.Packet
	}{{"Write", p}, {"Read", &tlp.Packet{Type: tlp.MRd, Length: 1}}} {
		b.Run(tc.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				w.watch(false, tc.p)
			}
		})
	}
}
