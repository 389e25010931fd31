package link_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/tlp"
)

// wire connects two links directly: each receives the other's datagrams at once.
type wire struct {
	now   time.Duration
	links [2]*link.Link
	buf   []byte
	got   int
	count func(*tlp.Packet)
}

func newWire(t testing.TB, cipher link.Cipher, mtu int) *wire {
	t.Helper()
	w := &wire{buf: make([]byte, frame.MaxDatagram)}
	w.count = func(*tlp.Packet) { w.got++ }
	for i, cfg := range linktest.Ends(cipher, mtu) {
		l, err := link.New(0, cfg)
		if err != nil {
			t.Fatal(err)
		}
		w.links[i] = l
	}
	w.exchange(t)
	return w
}

// exchange passes datagrams until both links have none to send.
func (w *wire) exchange(t testing.TB) {
	for quiet := 0; quiet < 2; {
		for side, l := range w.links {
			n, path := l.Transmit(w.now, w.buf)
			if n == 0 {
				quiet++
				continue
			}
			quiet = 0
			w.now += 100 * time.Nanosecond
			if err := w.links[1-side].Receive(w.now, path, w.buf[:n], w.count); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func memoryWrite(size int) *tlp.Packet {
	p := &tlp.Packet{Type: tlp.MWr, Length: uint16(size / 4), Requester: 0x100, FirstBE: 15, LastBE: 15, Data: make([]byte, size)}
	p.SetAddr(1 << 40)
	return p
}

func memoryRead() *tlp.Packet {
	return &tlp.Packet{Type: tlp.MRd, Length: 1, Requester: 0x100, Tag: 7, FirstBE: 15, Addr: 0x1000}
}

var hotCases = []struct {
	name   string
	p      *tlp.Packet
	cipher link.Cipher
	batch  int
}{
	{"HeaderOnly/clear", memoryRead(), link.CipherNone, 1},
	{"HeaderOnly/aes", memoryRead(), link.CipherAES256GCM, 1},
	{"HeaderOnly/clear/batch64", memoryRead(), link.CipherNone, 64},
	{"HeaderOnly/aes/batch64", memoryRead(), link.CipherAES256GCM, 64},
	{"4KiB/clear", memoryWrite(4096), link.CipherNone, 1},
	{"4KiB/aes", memoryWrite(4096), link.CipherAES256GCM, 1},
	{"4KiB/clear/batch64", memoryWrite(4096), link.CipherNone, 64},
	{"4KiB/aes/batch64", memoryWrite(4096), link.CipherAES256GCM, 64},
}

func (w *wire) pass(t testing.TB, p *tlp.Packet, batch int) {
	for range batch {
		if err := w.links[0].Send(w.now, p); err != nil {
			t.Fatal(err)
		}
	}
	w.exchange(t)
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	for _, tc := range hotCases {
		t.Run(tc.name, func(t *testing.T) {
			w := newWire(t, tc.cipher, loopback)
			for range 100 { // reach the steady state
				w.pass(t, tc.p, tc.batch)
			}
			w.got = 0
			if n := testing.AllocsPerRun(200, func() { w.pass(t, tc.p, tc.batch) }); n != 0 {
				t.Errorf("%v allocations for %d TLPs, want 0", n, tc.batch)
			}
			if w.got != 201*tc.batch {
				t.Errorf("%d TLPs arrived, want %d", w.got, 201*tc.batch)
			}
		})
	}
}

// BenchmarkLink measures Send, Transmit, Receive and deliver, with
// acknowledgements, in ns per TLP.
func BenchmarkLink(b *testing.B) {
	for _, tc := range hotCases {
		b.Run(tc.name, func(b *testing.B) {
			w := newWire(b, tc.cipher, loopback)
			b.ReportAllocs()
			b.SetBytes(int64(len(tc.p.Data)))
			for i := 0; i < b.N; i += tc.batch {
				w.pass(b, tc.p, tc.batch)
			}
		})
	}
}
