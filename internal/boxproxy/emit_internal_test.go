package boxproxy

import (
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// writer is a device that has writes for its host without end.
type writer struct {
	device.Device
	t       *testing.T
	emitted int
}

func (w *writer) Transmit(_ time.Duration, emit func(*tlp.Packet) bool) {
	p := tlp.Packet{Type: tlp.MWr, Data: make([]byte, 4096)}
	for p.SetMemory(0, len(p.Data)); emit(&p); w.emitted++ {
		if w.emitted > 1e5 {
			w.t.Fatal("the device emits without end in one entry")
		}
	}
}

func (*writer) Wake() time.Duration         { return machine.Never }
func (*writer) NextJob() (device.Job, bool) { return nil, false }

// nowhere is a network that loses all.
type nowhere struct{ buffer engine.Buffer }

func (n *nowhere) Buffer() *engine.Buffer                                            { return &n.buffer }
func (*nowhere) Release(*engine.Buffer)                                              {}
func (*nowhere) MaxBatch(_ uint8, segment int) int                                   { return segment }
func (*nowhere) Write(time.Duration, uint8, netip.AddrPort, [][]byte, int, link.ECN) {}

// signal wakes nothing.
type signal struct{ engine.Signal }

func (signal) Set() {}

// A guest begins a long copy to its memory, and its host closes the link. The device has
// nowhere to send the rest, and drops it in pieces: in between, the reader of the socket works for
// the other tenants of the box.
func TestRestOfACopyIsDroppedInPieces(t *testing.T) {
	d := &writer{t: t}
	s := &slot{box: &Box{log: slog.New(slog.DiscardHandler)}, device: d, domain: new(domain), kick: signal{}}
	s.emitTo = s.emit
	g := engine.NewGroup(engine.Config{Output: new(nowhere)})
	e := g.Enter(0)
	cfg := linktest.Ends(link.CipherNone, 9000)[linktest.Box]
	b, err := g.Attach(e, engine.BindingConfig{Link: cfg, Peers: []netip.AddrPort{linktest.Address(linktest.Host, 0)}, Handler: s})
	if err != nil {
		t.Fatal(err)
	}
	s.binding = b
	g.Settle(e)
	if d.emitted == 0 || d.emitted > 2000 {
		t.Fatalf("the device has emitted %d writes into the send buffer", d.emitted)
	}

	e = g.Enter(0)
	b.Shutdown(e, engine.CloseDetached)
	before := d.emitted
	g.Settle(e)
	if n := d.emitted - before; n == 0 || n > 1000 {
		t.Errorf("%d writes were dropped in one entry", n)
	}
	if b.State(e) != link.Down || !g.Pending() {
		t.Errorf("the link is %v, and the rest does not follow", b.State(e))
	}
	if s.dropped.Load() != uint64(d.emitted-before) {
		t.Errorf("%d dropped TLPs are counted, of %d", s.dropped.Load(), d.emitted-before)
	}
}
