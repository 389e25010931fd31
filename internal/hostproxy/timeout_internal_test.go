package hostproxy

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// wired is one end of a link between two groups in virtual time. Its datagrams wait in a
// socket until read is called.
type wired struct {
	now    *time.Duration
	addr   netip.AddrPort
	group  *engine.Group
	other  *wired
	socket [][]byte
	routes map[uint32]engine.Route[*wired]
	buffer engine.Buffer
}

func (w *wired) Enter() engine.Entry    { return w.group.Enter(*w.now) }
func (w *wired) Leave(e engine.Entry)   { w.group.Settle(e) }
func (w *wired) Buffer() *engine.Buffer { return &w.buffer }
func (w *wired) Release(*engine.Buffer) {}

func (w *wired) MaxBatch(uint8, int) int { return 0 }

func (w *wired) Write(_ time.Duration, _ uint8, _ netip.AddrPort, batch [][]byte, _ int, _ link.ECN) {
	w.other.socket = append(w.other.socket, slices.Concat(batch...))
}

// read passes on the datagrams in the socket, the last one first, except the first ones.
func (w *wired) read(except int) {
	for len(w.socket) > except {
		last := len(w.socket) - 1
		datagram := w.socket[last]
		w.socket = w.socket[:last]
		in := engine.Input{Clock: func() time.Duration { return *w.now }, Answer: func(b []byte) { w.other.socket = append(w.other.socket, slices.Clone(b)) }}
		engine.Dispatch(w.routes, &in, engine.Batch{Bytes: datagram, Segment: len(datagram), From: w.other.addr}, nil)
	}
}

func (w *wired) attach(t *testing.T, cfg link.Config, h engine.Handler) (b *engine.Binding) {
	t.Helper()
	e := w.Enter()
	defer w.Leave(e)
	b, err := w.group.Attach(e, engine.BindingConfig{Link: cfg, Peers: []netip.AddrPort{w.other.addr}, Handler: h})
	if err != nil {
		t.Fatal(err)
	}
	w.routes = map[uint32]engine.Route[*wired]{b.ID(): {Gate: w, Door: b.Door()}}
	return b
}

// answering is a box that answers reads.
type answering struct {
	binding *engine.Binding
	owed    []tlp.Packet
}

func (a *answering) Receive(_ engine.Entry, p *tlp.Packet) bool {
	if p.Type == tlp.MRd {
		q := tlp.Packet{Type: tlp.CplD, Tag: p.Tag, Requester: p.Requester, Length: 1, ByteCount: 4, Data: []byte{1, 2, 3, 4}}
		a.owed = append(a.owed, q)
	}
	return true
}

func (a *answering) Transmit(e engine.Entry) {
	for _, p := range a.owed {
		_ = a.binding.Send(e, &p)
	}
	a.owed = nil
}

func (a *answering) Wake(engine.Entry) time.Duration      { return machine.Never }
func (a *answering) LinkChanged(engine.Entry, link.State) {}
func (w *wired) run(until time.Duration, reads func() bool) {
	for *w.now < until {
		*w.now += time.Millisecond
		for _, s := range []*wired{w, w.other} {
			if s.group.Wake() <= *w.now {
				s.Leave(s.Enter())
			}
			if s == w.other || reads() {
				s.read(0)
			}
		}
	}
}

// A request whose answer lies in a socket is not given up at its deadline, whatever was read
// there before: the process did not get a processor.
func TestAnswersInTheSocket(t *testing.T) {
	const timeout = 800 * time.Millisecond
	for _, c := range []struct {
		name   string
		front  Front
		stands bool          // the process stands still, instead of not reading its sockets
		wait   time.Duration // until the proxy goes on
		ok     bool
	}{
		{"sockets alone, in time", &VM{}, false, timeout / 2, true},
		{"sockets alone, not read", &VM{}, false, timeout + time.Second, true},
		{"sockets alone, standing", &VM{}, true, timeout + time.Second, true},
		{"below QEMU, not read", &VM{QMP: "qmp.sock"}, false, timeout + time.Second, true},
		{"below QEMU, standing", &VM{QMP: "qmp.sock"}, true, timeout + time.Second, true},
		{"below QEMU, not read for longer than QEMU waits", &VM{QMP: "qmp.sock"}, false, 4 * time.Second, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var now, listened time.Duration
			host, box := &wired{now: &now, addr: netip.MustParseAddrPort("192.0.2.1:1")}, &wired{now: &now, addr: netip.MustParseAddrPort("192.0.2.2:2")}
			host.other, box.other = box, host
			host.group = engine.NewGroup(engine.Config{Output: host, Listened: func() time.Duration { return listened }})
			box.group = engine.NewGroup(engine.Config{Output: box})
			ends := linktest.Ends(link.CipherNone, 9000)
			cfg := Config{Front: c.front, CompletionTimeout: timeout}
			s := &slot{host: &Proxy{cfg: cfg, router: mapping.NewHostTable(1)}, kick: noSignal{}}
			s.root = newRequestPort(s, cfg)
			a := &answering{}
			s.binding, a.binding = host.attach(t, ends[0], s), box.attach(t, ends[1], a)
			reads := func() bool { listened = now; return true }
			host.run(2*time.Second, reads)

			open := vfiouser.Access{} // stands for the access of a VMM
			var ended, ok bool
			e := host.Enter()
			if s.binding.State(e) != link.Up {
				t.Fatal("the link is not up")
			}
			id := s.root.begin(e, op{access: &open, done: func(_ engine.Entry, good bool, _ pcie.CplStatus) { ended, ok = true, good }})
			var dst [4]byte
			if err := s.root.read(e, id, 0x1000, dst[:], new(int)); err != nil {
				t.Fatal(err)
			}
			s.root.release(e, id)
			host.Leave(e)
			box.read(0) // the answer leaves
			began := now
			if now = began + c.wait; c.stands {
				box.read(0)
			} else {
				now = began
				host.run(began+c.wait, func() bool { return false })
			}
			host.Leave(host.Enter()) // the timer
			host.read(1)             // what has come by another path than the answer
			host.Leave(host.Enter())
			reads()
			host.read(0)
			if !ended || ok != c.ok {
				t.Errorf("the request ended: %v, with an answer: %v, want %v", ended, ok, c.ok)
			}
		})
	}
}
