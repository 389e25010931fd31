package virtio_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/virtio/virtiotest"
)

// FuzzRings lets the device work on rings and descriptors of any content: it never reaches
// beyond its pool, ends in a bounded time, and works after a reset.
func FuzzRings(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0x10, 0, 0, 0, 0, 8, 0, 0, 0, 2, 0, 0, 0}, uint16(1))
	f.Add([]byte{0, 0, 0, 0x10, 0, 0, 0, 0, 32, 0, 0, 0, 4, 0, 0, 0}, uint16(3))
	f.Add([]byte{0, 0, 0, 0x10, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0}, uint16(16))
	f.Fuzz(func(t *testing.T, ring []byte, index uint16) {
		h, d, _ := start(t)
		q := d.Queues[0]
		at := 0
		for at < 16*16+6+32 && len(ring) > 0 { // descriptors and the available ring
			at += copy(q.Ring[at:16*16+6+32], ring)
		}
		q.SetIndex(index)
		h.Run(15 * time.Second) // longer than a completion timeout
		if h.dev.Broken() == "" && index > 16 {
			t.Errorf("index %d is accepted", index)
		}
		if err := d.Start(virtiotest.Version1, 16); err != nil {
			t.Fatal(err)
		}
		h.dev.SetBackend(newEcho(t)) // the former one has requests of the first session
		_, addr := d.Alloc(8)
		d.Queues[0].Submit(0, virtiotest.Buffer{Addr: addr, Len: 8, Write: true})
		h.settle()
		if _, n, ok := d.Queues[0].Used(); !ok || n != 8 {
			t.Errorf("used %d, %v after a reset (%s)", n, ok, h.dev.Broken())
		}
	})
}

// FuzzSocketRings is FuzzRings for the ordered virtqueues of a socket device, and for the one
// of events, while the back end changes and its connections end.
func FuzzSocketRings(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0x10, 0, 0, 0, 0, 8, 0, 0, 0, 2, 0, 0, 0}, uint16(1), uint8(packetsIn))
	f.Add([]byte{0, 0, 0, 0x10, 0, 0, 0, 0, 32, 0, 0, 0, 0, 0, 0, 0}, uint16(7), uint8(packetsOut))
	f.Add([]byte{0, 0, 0, 0x10, 0, 0, 0, 0, 4, 0, 0, 0, 2, 0, 0, 0}, uint16(3), uint8(eventQueue))
	f.Fuzz(func(t *testing.T, ring []byte, index uint16, queue uint8) {
		h, d, _ := startSocket(t)
		q := d.Queues[queue%3]
		at := 0
		for at < 16*256+6+512 && len(ring) > 0 { // descriptors and the available ring
			at += copy(q.Ring[at:16*256+6+512], ring)
		}
		q.SetIndex(index)
		h.Run(3 * time.Microsecond)
		h.dev.ResetTransport()
		h.dev.SetBackend(newEcho(t))
		h.Run(15 * time.Second) // longer than a completion timeout
		if h.dev.Broken() == "" && index > 256 {
			t.Errorf("index %d is accepted", index)
		}
		if err := d.Start(virtiotest.Version1, 256); err != nil {
			t.Fatal(err)
		}
		h.dev.SetBackend(newEcho(t)) // the former one has requests of the first session
		_, addr := d.Alloc(8)
		d.Queues[packetsOut].Submit(0, virtiotest.Buffer{Addr: addr, Len: 8})
		h.settle()
		if _, _, ok := d.Queues[packetsOut].Used(); !ok {
			t.Errorf("no packet after a reset (%s)", h.dev.Broken())
		}
		h.dev.ResetTransport()
		wantEvents(t, h, d, offerEvents(d, 1, 4), 1)
	})
}
