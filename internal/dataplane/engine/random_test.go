package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// pen is a handler of the random test. It takes only some TLPs at a time, and has a queue of
// TLPs, of which the first may wait for its link or for a neighbour.
type pen struct {
	*end
	w    *pens
	side int
	id   int // of the handler on its side

	queue []message
	room  int           // TLPs that it takes until next
	next  time.Duration // when it has room again; Never: it has
	gone  bool
}

// message is TLP number n from one handler to another. A message to a handler of the other side
// goes to the other end of the binding.
type message struct {
	from, to *pen
	n        int
	size     int
}

// pens holds the numbers of the TLPs that the handlers have sent, and of those that have
// arrived, for each pair.
type pens struct {
	t             *testing.T
	r             *rand.Rand
	net           *network
	side          [2][]*pen
	sent, arrived map[[2]*pen]int
}

func (m *message) packet() *tlp.Packet {
	p := write(uint64(m.n)<<20|uint64(m.from.side)<<19|uint64(m.from.id)<<16, m.size)
	for i := 0; i < m.size; i += 4 {
		binary.LittleEndian.PutUint32(p.Data[i:], uint32(m.n*1000+i))
	}
	return p
}

// took takes a TLP, if there is room.
func (h *pen) took(from *pen, p *tlp.Packet) bool {
	if h.room == 0 {
		if h.next == machine.Never {
			h.next = h.w.net.now + time.Duration(h.w.r.IntN(300_000))
		}
		return false
	}
	if h.gone {
		h.w.t.Fatal("a detached handler is called")
	}
	h.room--
	pair := [2]*pen{from, h}
	want := message{from, h, h.w.arrived[pair], len(p.Data)}
	if w := want.packet(); p.Addr != w.Addr || !bytes.Equal(p.Data, w.Data) {
		h.w.t.Fatalf("TLP %d from %d/%d to %d/%d: %#x with %d bytes", want.n, from.side, from.id, h.side, h.id, p.Addr, len(p.Data))
	}
	h.w.arrived[pair]++
	return true
}

func (h *pen) Receive(_ Entry, p *tlp.Packet) bool { return h.took(h.w.side[1-h.side][h.id], p) }

func (h *pen) ReceivePeer(_ Entry, p *tlp.Packet) bool {
	return h.took(h.w.side[h.side][p.Addr>>16&7], p)
}

func (h *pen) ReceiveRun(e Entry, r *link.Run) bool {
	if h.room < r.Count || h.w.r.IntN(2) == 0 {
		return false
	}
	for i := range r.Count {
		var p tlp.Packet
		if r.TLP(i, &p); !h.Receive(e, &p) {
			h.w.t.Fatal("a part of a run is refused")
		}
	}
	return true
}

func (h *pen) Transmit(e Entry) {
	if h.gone {
		h.w.t.Fatal("a detached handler is called")
	}
	if e.Now() >= h.next {
		h.room, h.next = 1+h.w.r.IntN(400), machine.Never
	}
	for len(h.queue) > 0 {
		m := &h.queue[0]
		p := m.packet()
		if m.to.side != h.side {
			if err := h.binding.Send(e, p); errors.Is(err, link.ErrFull) {
				return
			}
		} else if !h.binding.HandOver(e, m.to.binding, p) {
			return
		}
		h.queue = h.queue[1:]
	}
}

// LinkChanged lets a queue go on that waits for a link which has ended.
func (h *pen) LinkChanged(e Entry, _ link.State) { h.binding.Touch(e) }

func (h *pen) Wake(Entry) time.Duration { return h.next }

func (h *pen) down() bool { return h.binding.link.State() != link.Up }

// push makes a handler send some TLPs to another one.
func (w *pens) push(from, to *pen) {
	size := []int{4, 64, 64, 512, 4096}[w.r.IntN(5)]
	for range 1 + w.r.IntN(300) {
		pair := [2]*pen{from, to}
		from.queue = append(from.queue, message{from, to, w.sent[pair], size})
		w.sent[pair]++
	}
	from.with(func(e Entry) { from.binding.Touch(e) })
}

// detach removes a binding of the second side.
func (w *pens) detach(h *pen) {
	e := h.driver.Enter()
	h.binding.Detach(e)
	h.gone = true
	h.driver.Leave(e)
	delete(h.driver.bindings, uint32(h.id+1))
}

// settled reports whether every TLP has arrived that has a receiver.
func (w *pens) settled() bool {
	for pair, n := range w.sent {
		from, to := pair[0], pair[1]
		if lost := from.gone || to.gone || w.side[1][from.id].gone && from.side != to.side; !lost && w.arrived[pair] < n {
			return false
		}
	}
	return true
}

func newPens(t *testing.T, seed uint64) *pens {
	w := &pens{t: t, r: rand.New(rand.NewPCG(seed, 6)), sent: map[[2]*pen]int{}, arrived: map[[2]*pen]int{}}
	share := func(most int) float64 { return float64(w.r.IntN(most+1)) / 1000 }
	w.net = newNetwork(t, seed, fault.Plan{Loss: share(50), Dup: share(50), Reorder: share(100), Jitter: time.Duration(w.r.IntN(100_000))})
	groups := w.net.pairOfGroups()
	groups[1].cost = time.Duration(w.r.IntN(2) * w.r.IntN(500_000))
	for id := range 1 + w.r.IntN(4) {
		configs := w.net.configs(uint32(id+1), link.Cipher(w.r.IntN(2)))
		for side := range 2 {
			configs[side].Window, configs[side].SendBuffer = 64<<10<<w.r.IntN(4), 64<<10<<w.r.IntN(4)
			h := &pen{end: &end{}, w: w, side: side, id: id, next: machine.Never}
			w.side[side] = append(w.side[side], h)
			w.net.attachHandler(groups[side], configs[side], h.end, h)
		}
	}
	return w
}

// Handlers that take few TLPs at a time, hand them to each other and are detached get each TLP
// once and in order, and all of them.
func TestRandomGroups(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newPens(t, seed)
			w.net.run(time.Second, func() bool { return !slices.ContainsFunc(slices.Concat(w.side[0], w.side[1]), (*pen).down) })
			for range 30 {
				side := w.r.IntN(2)
				from := w.side[side][w.r.IntN(len(w.side[side]))]
				to := w.side[1-side][from.id]
				if n := w.r.IntN(len(w.side[side])); n != from.id && w.r.IntN(2) == 0 {
					to = w.side[side][n]
				}
				switch {
				case from.gone:
				case w.r.IntN(20) == 0 && side == 1:
					w.detach(from)
				default:
					w.push(from, to)
				}
				w.net.run(w.net.now+time.Duration(w.r.IntN(400_000)), nil)
			}
			if !w.net.run(w.net.now+20*time.Second, w.settled) {
				for pair, n := range w.sent {
					t.Logf("%d/%d to %d/%d: %d of %d, first waits %v", pair[0].side, pair[0].id, pair[1].side, pair[1].id, w.arrived[pair], n, len(pair[0].queue))
				}
				t.Fatal("TLPs do not arrive")
			}
		})
	}
}
