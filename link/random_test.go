package link

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// world is two ends whose owners, whose network and an attacker do what chance wants. The
// attacker sees all datagrams but has no key. The reference is plain: each session delivers
// the TLPs of an end in their order, from the first on.
type world struct {
	t        testing.TB
	r        *rand.Rand
	now      time.Duration
	cfg      [2]Config
	ends     [2]*end
	owners   map[uint64]*end // by session
	sessions uint64
	flight   machine.Queue[flying]
	recorded []flying
	paths    [][2]weather // by path and sender
	buf      []byte
	lent     []Lent
	got      []byte // encoded TLPs
	want     []byte
}

// end is one run of an end, with all that its link has taken and delivered.
type end struct {
	side int
	link *Link
	sent []tlp.Packet
	got  int  // TLPs of the peer that were delivered
	peer *end // whose TLPs those are
	held []int
	cost uint64 // of all TLPs delivered
}

type flying struct {
	to   int
	path uint8
	data []byte
}

func newWorld(t testing.TB, seed uint64) *world {
	w := &world{t: t, r: rand.New(rand.NewPCG(seed, 1)), owners: map[uint64]*end{}, buf: make([]byte, 1<<16)}
	cfg := Config{
		Binding: 1, Epoch: w.r.Uint32(), Secret: [32]byte{1}, Initiator: true, Cipher: Cipher(w.r.IntN(2)),
		Local: frame.Endpoint{Node: 1}, Remote: frame.Endpoint{Node: 2},
		Window: minWindow << w.r.IntN(4), SendBuffer: minWindow << w.r.IntN(4),
		RekeyDatagrams: uint64(1 + w.r.IntN(60)),
	}
	if w.r.IntN(2) == 0 {
		cfg.InitialCwnd = 2 * frame.MaxDatagram
	}
	for range 1 + w.r.IntN(3) {
		cfg.Paths = append(cfg.Paths, PathConfig{MTU: []int{frame.MinMTU, 1472, 8972, frame.MaxDatagram}[w.r.IntN(4)]})
		w.paths = append(w.paths, [2]weather{})
	}
	w.cfg[0], w.cfg[1] = cfg, cfg
	w.cfg[1].Initiator, w.cfg[1].Local, w.cfg[1].Remote = false, cfg.Remote, cfg.Local
	for side := range w.cfg {
		w.cfg[side].MaxVersion = frame.Newest - uint8(max(w.r.IntN(8)-4, 0))
		w.restart(side)
	}
	w.change()
	return w
}

// restart replaces an end by a new run of it.
func (w *world) restart(side int) {
	cfg := w.cfg[side]
	w.sessions++
	cfg.Session = w.sessions
	binary.BigEndian.PutUint64(cfg.Ephemeral[:], cfg.Session)
	l, err := New(w.now, cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	w.ends[side] = &end{side: side, link: l}
	w.owners[cfg.Session] = w.ends[side]
}

// packet returns a TLP with contents of chance, of a kind that may be part of a run.
func (w *world) packet() (p tlp.Packet) {
	size := []int{4, 64, 64, 128, 512, 4096}[w.r.IntN(6)]
	switch w.r.IntN(6) {
	case 0:
		p = tlp.Packet{Type: tlp.CplD, Requester: 0x100, Tag: pcie.Tag(w.r.IntN(pcie.MaxTags)), ByteCount: uint16(size), Length: uint16(size / pcie.DW)}
	case 1:
		return tlp.Packet{Type: tlp.Cpl, Requester: 0x100, Tag: pcie.Tag(w.r.IntN(pcie.MaxTags)), ByteCount: 4}
	case 2:
		p = tlp.Packet{Type: tlp.MRd, Requester: 0x100, Tag: pcie.Tag(w.r.IntN(pcie.MaxTags))}
		p.SetMemory(w.address(size), size)
		return p
	default:
		p = tlp.Packet{Type: tlp.MWr, Requester: 0x100, EP: w.r.IntN(20) == 0}
		p.SetMemory(w.address(size), size)
	}
	if w.r.IntN(10) == 0 {
		p.HasDigest, p.Digest = true, w.r.Uint32()
	}
	p.Data = make([]byte, size)
	for i := range p.Data {
		p.Data[i] = byte(w.r.Uint32())
	}
	return p
}

// address returns the address of a request, often close to the end of an address space.
func (w *world) address(size int) uint64 {
	at := w.r.Uint64() >> (8 * w.r.IntN(5))
	switch w.r.IntN(4) {
	case 0:
		at = 1<<32 - uint64(1+w.r.IntN(20))*uint64(size)
	case 1:
		at = -uint64(1+w.r.IntN(20)) * uint64(size)
	}
	return at &^ uint64(size-1)
}

// row returns TLPs as those of a run, which also go on behind the end of the tags or of the
// address space.
func (w *world) row() (row []tlp.Packet) {
	first := w.packet()
	for i := range 1 + w.r.IntN(20) {
		p := clone(&first)
		switch {
		case p.Type.Memory():
			p.SetAddr(p.Addr + uint64(i*int(p.Length)*pcie.DW))
		case p.Type == tlp.Cpl:
			return []tlp.Packet{p}
		}
		if p.Type != tlp.MWr {
			p.Tag = (p.Tag + pcie.Tag(i)) % pcie.MaxTags
		}
		for at := range p.Data {
			p.Data[at] += byte(7 * i)
		}
		row = append(row, p)
	}
	return row
}

// send gives an end a row of TLPs, one by one or as a run.
func (w *world) send(e *end) {
	row := w.row()
	if w.r.IntN(2) == 0 && w.sendRun(e, row) {
		return
	}
	for i := range row {
		p := &row[i]
		fits := e.link.state <= Up && e.link.Fit(len(p.Data)) > 0
		if err := e.link.Send(w.now, p); (err == nil) != fits {
			w.t.Fatalf("%v: fits %v, error %v", p.Type, fits, err)
		}
		if !fits {
			return
		}
		e.sent = append(e.sent, *p)
	}
}

// sendRun sends a row as a run. It returns false if it is none.
func (w *world) sendRun(e *end, row []tlp.Packet) bool {
	run, size := Run{First: row[0], Count: len(row)}, len(row[0].Data)
	if !run.check(size) {
		return false
	}
	for i := range row {
		run.Data = append(run.Data, row[i].Data...)
	}
	if place := e.link.Payload(len(run.Data)); place != nil && w.r.IntN(2) == 0 {
		copy(place, run.Data)
		run.Data = place
	}
	run.First.Data = run.Data[:size]
	fits := e.link.state <= Up && e.link.Fit(size) >= len(row)
	if err := e.link.SendRun(w.now, &run); (err == nil) != fits {
		w.t.Fatalf("a run of %d %v: fits %v, error %v", len(row), row[0].Type, fits, err)
	}
	if fits {
		e.sent = append(e.sent, row...)
	}
	return true
}

func clone(p *tlp.Packet) tlp.Packet {
	c := *p
	c.Data = slices.Clone(p.Data)
	return c
}

// delivered compares a TLP with the next one of the session.
func (w *world) delivered(e *end, p *tlp.Packet) {
	from := w.owners[e.link.hs.peer]
	if e.peer == nil {
		if from.side == e.side {
			w.t.Fatal("a session of an end with itself")
		}
		e.peer = from
	}
	if e.peer != from || e.got >= len(from.sent) {
		w.t.Fatalf("TLP %d of %d, of another session: %v", e.got, len(from.sent), e.peer != from)
	}
	want := &from.sent[e.got]
	w.got, w.want = p.Append(w.got[:0]), want.Append(w.want[:0])
	if !bytes.Equal(w.got, w.want) {
		w.t.Fatalf("TLP %d is %+v, want %+v", e.got, *p, *want)
	}
	e.got++
	e.held = append(e.held, cost(len(p.Data)))
	e.cost += uint64(cost(len(p.Data)))
}

// receive gives an end a datagram.
func (w *world) receive(f flying) {
	e := w.ends[f.to]
	deliver := func(p *tlp.Packet) { w.delivered(e, p) }
	if w.r.IntN(8) == 0 { // a network may mark any datagram
		e.link.Marked()
	}
	if f.to == 1 {
		_ = e.link.Receive(w.now, f.path, f.data, deliver)
	} else {
		_ = e.link.ReceiveRuns(w.now, f.path, f.data, deliver, func(r *Run) {
			for i := range r.Count {
				var p tlp.Packet
				r.TLP(i, &p)
				w.delivered(e, &p)
			}
		})
	}
	if w.r.IntN(3) != 0 {
		e.held = e.held[:0]
	}
	w.hold(e)
}

// hold tells an end how much of what it has delivered is still held.
func (w *world) hold(e *end) {
	total := 0
	for _, n := range e.held {
		total += n
	}
	e.link.Hold(w.now, total)
}

// transmit sends what an end has to send.
func (w *world) transmit(e *end) {
	calls := 0
	for range 10_000 {
		buf := w.buf
		if w.r.IntN(50) == 0 {
			buf = buf[:w.r.IntN(3000)]
		}
		var n int
		var path uint8
		var data []byte
		if w.r.IntN(2) == 0 {
			n, path = e.link.Transmit(w.now, buf)
			data = slices.Clone(buf[:n])
		} else {
			n, path, w.lent = e.link.TransmitLent(w.now, buf, w.lent[:0])
			data = assemble(buf, n, w.lent)
		}
		if n == 0 && len(buf) == len(w.buf) {
			if e.link.Wake() > w.now {
				return
			}
			if calls++; calls > 3 { // the end of one timer may show that another one has ended
				w.t.Fatalf("an end with nothing to send wants to be called at %v, it is %v", e.link.Wake(), w.now)
			}
		}
		if n == 0 {
			continue
		}
		calls = 0
		w.network(flying{1 - e.side, path, data})
	}
	w.t.Fatal("an end does not stop sending")
}

// assemble puts a datagram of n bytes together.
func assemble(buf []byte, n int, lent []Lent) (data []byte) {
	at := 0
	for _, piece := range lent {
		data = append(append(data, buf[at:piece.At]...), piece.Bytes...)
		at = piece.At
	}
	return append(data, buf[at:at+n-len(data)]...)
}

// advance lets time pass, to the next event or a little further.
func (w *world) advance() {
	switch w.r.IntN(40) {
	case 0:
		w.until(w.now + time.Duration(w.r.Int64N(int64(300*time.Millisecond))))
	case 1, 2, 3:
		w.until(w.now + time.Duration(w.r.IntN(1_000_000)))
	default:
		w.until(w.next())
	}
}

// next returns the time of the next event.
func (w *world) next() time.Duration {
	return min(w.flight.Wake(), w.ends[0].link.Wake(), w.ends[1].link.Wake())
}

// until lets time pass.
func (w *world) until(at time.Duration) {
	if at != machine.Never {
		w.now = max(w.now, at)
	}
	for f, ok := w.flight.Pop(w.now); ok; f, ok = w.flight.Pop(w.now) {
		w.receive(f)
	}
}

// step does one thing, and then lets both ends send.
func (w *world) step() {
	e := w.ends[w.r.IntN(2)]
	switch n := w.r.IntN(400); {
	case n < 120:
		w.send(e)
	case n < 130:
		w.attack()
	case n < 150:
		e.held = e.held[:w.r.IntN(len(e.held)+1)]
		w.hold(e)
	case n < 153:
		e.link.Rekey(w.now)
	case n < 156:
		w.change()
	case n < 158:
		e.link.Refused(w.now, uint8(w.r.IntN(len(w.paths)+1)))
	case n == 158 && w.r.IntN(4) == 0:
		w.restart(e.side)
	case n == 159 && w.r.IntN(4) == 0:
		e.link.Close(w.now, uint16(n))
	default:
		w.advance()
	}
	for _, e := range w.ends {
		w.transmit(e)
		w.check(e)
		if e.link.state == Down && w.r.IntN(4) == 0 {
			w.restart(e.side)
		}
	}
}

// check compares the counts of a link with what they count.
func (w *world) check(e *end) {
	s, r := &e.link.send, &e.link.recv
	lost := 0
	for seq := s.base; seq != s.end; seq++ {
		if s.slot(seq).anyLost() {
			lost++
		}
	}
	if lost != s.lostCount || s.base > s.cursor || s.cursor > s.end || s.used() < 0 || s.used() > s.capacity {
		w.t.Fatalf("%d TLPs are lost, %d counted; %d of them from %d to %d, %d bytes", lost, s.lostCount, s.cursor, s.base, s.end, s.used())
	}
	held, count := 0, 0
	for i := range r.ring {
		if in := &r.ring[i]; in.held {
			count++
			held += cost(int(in.payloadLen))
		}
	}
	if held != r.held || count != r.count || held > r.window || r.pooled > r.window {
		w.t.Fatalf("%d bytes are held, %d counted; %d TLPs, %d counted", held, r.held, count, r.count)
	}
	if e.link.state == Up && (r.delivered != e.cost || r.next != uint64(e.got)) {
		w.t.Fatalf("%d TLPs of %d bytes delivered, %d and %d counted", e.got, e.cost, r.next, r.delivered)
	}
	if e.link.reason == Broken || e.link.reason == Incompatible {
		w.t.Fatalf("a session is %v: %+v", e.link.reason, e.link.Stats())
	}
	for _, p := range e.link.paths {
		eliciting, size := 0, 0
		for n := p.sent.oldest; n != p.sent.next; n++ {
			if rec := p.sent.at(n); rec.eliciting && !rec.done && !rec.lost {
				eliciting++
				size += int(rec.size)
			}
		}
		if e.link.state == Up && (eliciting != p.eliciting || size != p.congestion.inFlight) {
			w.t.Fatalf("path %d: %d datagrams of %d bytes in flight, %d and %d counted", p.id, eliciting, size, p.eliciting, p.congestion.inFlight)
		}
	}
}

// settled reports whether everything has arrived.
func (w *world) settled() bool {
	for side, e := range w.ends {
		if e.link.state != Up || !e.link.Idle() || w.ends[1-side].got != len(e.sent) {
			return false
		}
	}
	return true
}

// together reports whether the ends have a session in which they have just heard each other.
func (w *world) together() bool {
	for side, e := range w.ends {
		l, peer := e.link, w.ends[1-side].link
		if l.state != Up || l.hs.peer != peer.cfg.Session || w.now-l.Heard() > l.cfg.DeadInterval/2 {
			return false
		}
	}
	return true
}

// finish makes the network perfect: everything arrives soon.
func (w *world) finish() {
	for i := range w.paths {
		for side := range 2 {
			w.paths[i][side] = weather{delay: 20 * time.Microsecond, mtu: frame.MaxDatagram}
		}
	}
	together := w.together()
	end := w.now + 10*time.Second
	for !w.settled() {
		if w.now > end {
			for _, e := range w.ends {
				w.t.Logf("%v: %d sent, %d delivered: %+v", e.link.state, len(e.sent), e.got, e.link.Stats())
			}
			w.t.Fatal("TLPs do not arrive although the network is perfect")
		}
		for _, e := range w.ends {
			e.held = e.held[:0]
			w.hold(e)
			if e.link.state == Down {
				if together {
					w.t.Fatalf("a session ends although the network is perfect: %v", e.link.reason)
				}
				w.restart(e.side)
			}
			w.transmit(w.ends[e.side])
		}
		w.until(w.next())
	}
}

// Owners, network and attacker do what they like: a session delivers a prefix of what was
// sent, and all of it once the network is good.
func TestRandomWorlds(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, seed)
			for range 1500 {
				w.step()
			}
			w.finish()
		})
	}
}
