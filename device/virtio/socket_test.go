package virtio_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/virtio"
	"github.com/dxpu-project/dxpu/device/virtio/virtiotest"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// Virtqueues of a socket device.
const (
	packetsIn  = 0
	packetsOut = 1
	eventQueue = 2
)

// startSocket gives a running socket device with its driver and a back end.
func startSocket(t testing.TB) (*host, *virtiotest.Driver, *echo) {
	t.Helper()
	dev, err := virtio.New(virtio.Spec{Kind: virtio.Socket, Queues: 3, Pool: 64 << 10, Serial: 7})
	if err != nil {
		t.Fatal(err)
	}
	dev.Offer(virtio.FeatureVersion1, binary.LittleEndian.AppendUint64(nil, 42))
	h, e := newHostOf(t, dev), newEcho(t)
	d := &virtiotest.Driver{Host: h}
	if err := d.Start(virtiotest.Version1, 256); err != nil {
		t.Fatal(err)
	}
	dev.SetBackend(e)
	return h, d, e
}

// Packets reach the back end in the order of the driver, even where the memory of the host
// answers in another order, and where they do not fit into the pool at once. A change of the
// back end in the middle keeps the order.
func TestPacketsInOrder(t *testing.T) {
	h, d, e := startSocket(t)
	r := rand.New(rand.NewPCG(1, 2))
	h.OnRead = func(*tlp.Packet) (pcie.CplStatus, time.Duration, bool) {
		return pcie.SuccessfulCompletion, time.Duration(r.IntN(100)) * time.Microsecond, true
	}
	e.hold = true
	const packets = 100
	q := d.Queues[packetsOut]
	for i := range packets {
		n := 4 + r.IntN(4000)
		b, at := d.Alloc(n)
		binary.LittleEndian.PutUint32(b, uint32(i))
		q.Submit(2*i, virtiotest.Buffer{Addr: at, Len: 4}, virtiotest.Buffer{Addr: at + 4, Len: n - 4})
	}
	h.Run(200 * time.Microsecond) // some are on their way
	e = newEcho(t)
	e.hold = true
	h.dev.SetBackend(e)
	for next := uint32(0); next < packets; {
		h.settle()
		if len(e.waiting[packetsOut]) == 0 {
			t.Fatalf("no packet behind %d (%s)", next, h.dev.Broken())
		}
		for _, w := range e.waiting[packetsOut] {
			if got := binary.LittleEndian.Uint32(e.pools[packetsOut][w.at:]); got != next {
				t.Fatalf("the back end gets packet %d, want %d", got, next)
			}
			next++
		}
		e.work(packetsOut)
	}
	h.settle()
	for i := range packets {
		if head, _, ok := q.Used(); !ok || head != uint32(2*i) {
			t.Fatalf("packet %d: used %d, %v", i, head, ok)
		}
	}
}

// offerEvents makes n buffers for events available, of size bytes with a pattern.
func offerEvents(d *virtiotest.Driver, n, size int) [][]byte {
	var all [][]byte
	for i := range n {
		b, at := d.Alloc(size)
		for j := range b {
			b[j] = 0xaa
		}
		d.Queues[eventQueue].Submit(i, virtiotest.Buffer{Addr: at, Len: size, Write: true})
		all = append(all, b)
	}
	return all
}

// wantEvents takes the events that the driver has got, and compares their number.
func wantEvents(t *testing.T, h *host, d *virtiotest.Driver, buffers [][]byte, want int) {
	t.Helper()
	h.settle()
	var got int
	for {
		head, n, ok := d.Queues[eventQueue].Used()
		if !ok {
			break
		}
		got++
		b := buffers[head]
		if size := min(4, len(b)); int(n) != size || string(b[:size]) != string(make([]byte, size)) || len(b) > 4 && b[4] != 0xaa {
			t.Errorf("event of %d bytes: % x", n, b)
		}
	}
	if got != want {
		t.Errorf("%d events, want %d (%s)", got, want, h.dev.Broken())
	}
}

// The driver learns once that its connections have ended, with or without a back end, also if
// it provides the buffer later, and learns nothing of the time before its start.
func TestTransportReset(t *testing.T) {
	h, d, e := startSocket(t)
	buffers := offerEvents(d, 4, 4)
	wantEvents(t, h, d, buffers, 0)
	if e.kicks != 0 {
		t.Error("the back end was told of a buffer for events")
	}

	interrupts := len(h.Interrupts)
	h.dev.SetBackend(nil)
	h.dev.ResetTransport()
	h.dev.ResetTransport()
	wantEvents(t, h, d, buffers, 1)
	if got := h.Interrupts[interrupts:]; len(got) != 1 || got[0].Data != eventQueue+1 {
		t.Errorf("interrupts %v", got)
	}
	h.dev.SetBackend(e)
	wantEvents(t, h, d, buffers, 0)

	h.dev.Offer(virtio.FeatureVersion1, binary.LittleEndian.AppendUint64(nil, 43)) // another address
	wantEvents(t, h, d, buffers, 1)
	if n := h.Read(virtiotest.DeviceConfig, 8); n != 43 {
		t.Errorf("address %d", n)
	}

	for _, size := range []int{1, 4096, 8192} { // of buffers that are provided too late
		if err := d.Start(virtiotest.Version1, 256); err != nil {
			t.Fatal(err)
		}
		h.dev.SetBackend(e)
		h.dev.ResetTransport()
		h.settle()
		wantEvents(t, h, d, offerEvents(d, 4, size), 1)
	}

	h.dev.ResetTransport()
	h.Write(virtiotest.Status, 1, 0)
	h.dev.ResetTransport()
	if err := d.Start(virtiotest.Version1, 256); err != nil {
		t.Fatal(err)
	}
	wantEvents(t, h, d, offerEvents(d, 4, 4), 0)
}

// An event whose buffer is on its way while the back end changes is not lost.
func TestTransportResetWhileBackendChanges(t *testing.T) {
	h, d, e := startSocket(t)
	h.UpRate = 4e6 // a DW each microsecond: event, used element, used index and interrupt take 5
	for late := range 7 {
		buffers := offerEvents(d, 2, 4)
		h.settle()
		h.dev.ResetTransport()
		h.Pump()
		h.Run(time.Duration(late) * time.Microsecond)
		h.dev.SetBackend(e)
		h.settle()
		events := 0
		for _, _, ok := d.Queues[eventQueue].Used(); ok; _, _, ok = d.Queues[eventQueue].Used() {
			events++
		}
		if events < 1 || events > len(buffers) {
			t.Errorf("%d events with a change after %d microseconds (%s)", events, late, h.dev.Broken())
		}
	}
}

// Buffers for events that break the rules break the device, and nothing else.
func TestWrongEventBuffers(t *testing.T) {
	for name, b := range map[string][]virtiotest.Buffer{
		"too long":   {{Addr: memBase, Len: 8193, Write: true}},
		"no memory":  {{Addr: 0x1000, Len: 4}},
		"no buffers": {{Addr: memBase, Len: 0, Write: true}},
	} {
		t.Run(name, func(t *testing.T) {
			h, d, _ := startSocket(t)
			d.Queues[eventQueue].Submit(0, b...)
			h.dev.ResetTransport()
			h.settle()
			if h.dev.Broken() == "" {
				t.Error("the device goes on")
			}
		})
	}
	t.Run("to be read", func(t *testing.T) { // the device has read it, and has no place for the event
		h, d, _ := startSocket(t)
		_, at := d.Alloc(64)
		d.Queues[eventQueue].Submit(0, virtiotest.Buffer{Addr: at, Len: 64})
		h.dev.ResetTransport()
		h.settle()
		if _, n, ok := d.Queues[eventQueue].Used(); !ok || n != 0 {
			t.Errorf("%d bytes, %v (%s)", n, ok, h.dev.Broken())
		}
	})
}
