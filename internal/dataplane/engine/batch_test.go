package engine

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/tlp"
)

// record is an Output that keeps the datagrams of each path.
type record struct {
	t      *testing.T
	buffer Buffer
	lent   bool
	got    [2][][]byte
	writes int
}

func (r *record) Buffer() *Buffer {
	if r.lent {
		r.t.Error("the buffer is lent twice")
	}
	r.lent = true
	return &r.buffer
}

func (r *record) Release(*Buffer) { r.lent = false }

func (r *record) MaxBatch(_ uint8, segment int) int {
	return segment * max(1, min(64, frame.MaxDatagram/segment))
}

func (r *record) Write(_ time.Duration, path uint8, _ netip.AddrPort, parts [][]byte, segment int, _ link.ECN) {
	r.writes++
	batch := slices.Concat(parts...)
	if len(batch) == 0 || len(batch) > max(segment, r.MaxBatch(path, segment)) {
		r.t.Errorf("a batch of %d bytes with segments of %d", len(batch), segment)
	}
	for len(batch) > 0 {
		n := min(segment, len(batch))
		r.got[path] = append(r.got[path], bytes.Clone(batch[:n]))
		batch = batch[n:]
	}
}

// Datagrams of any size and path leave whole, by their path and in its order.
func TestBatchKeepsDatagrams(t *testing.T) {
	r := &record{t: t}
	b := &Binding{group: NewGroup(Config{Output: r}), peers: make([]netip.AddrPort, 2), link: new(link.Link)}
	rng := rand.New(rand.NewPCG(1, 2))
	sizes := [...]int{20, 60, 1500, 1500, 1500, 1500, 8972, 8972, 8972, 30000, frame.MaxDatagram}
	total := 0
	for round := range 1000 {
		r.got = [2][][]byte{}
		var sent [2][][]byte
		out := batch{binding: b}
		for range 1 + rng.IntN(12) {
			n, path := sizes[rng.IntN(len(sizes))], uint8(rng.IntN(8)/7) // seldom the second
			datagram := bytes.Repeat([]byte{byte(round), byte(n), byte(len(sent[0]))}, n/3+1)[:n]
			copy(out.space(0), datagram)
			out.add(0, n, path)
			sent[path] = append(sent[path], datagram)
			total++
		}
		out.flush(0)
		for path, want := range sent {
			if len(r.got[path]) != len(want) {
				t.Fatalf("round %d, path %d: %d datagrams, want %d", round, path, len(r.got[path]), len(want))
			}
			for i, w := range want {
				if !bytes.Equal(r.got[path][i], w) {
					t.Fatalf("round %d, path %d, datagram %d: %d bytes, want %d (or other bytes)", round, path, i, len(r.got[path][i]), len(w))
				}
			}
		}
	}
	if r.lent || r.writes >= total {
		t.Errorf("%d writes for %d datagrams; buffer still lent: %v", r.writes, total, r.lent)
	}
}

// A binding with one TLP does not wait for the bulk of another one of its
// group: each sends a quantum in turn.
func TestLinksSendInTurn(t *testing.T) {
	const flood, size = 200, 4096
	n := newNetwork(t, 1)
	groups := n.pairOfGroups()
	var a, b [2]end
	ahead := -1 // TLPs of the flood when the other one came
	n.join(groups, n.configs(1, link.CipherNone), &a[0], &a[1])
	n.join(groups, n.configs(2, link.CipherNone), &b[0], &b[1])
	b[1].receive = func(Entry, *tlp.Packet) bool { ahead = a[1].arrived; return true }
	n.up(&a[0], &a[1], &b[0], &b[1])
	a[0].with(func(e Entry) {
		for i := range flood {
			if err := a[0].binding.Send(e, write(uint64(i)<<12, size)); err != nil {
				t.Fatal(err)
			}
		}
		if err := b[0].binding.Send(e, write(0, 4)); err != nil {
			t.Fatal(err)
		}
	})
	n.run(n.now+time.Second, func() bool { return a[1].arrived == flood && ahead >= 0 })
	// A quantum, and the excess of one datagram.
	if most := quantum/size + 3; ahead < 0 || ahead > most {
		t.Errorf("%d TLPs of the other binding came first, want at most %d", ahead, most)
	}
}

// An entry that sends and hands over TLPs allocates nothing, and a packet given
// to Send may stay on the caller's stack.
func TestEntryAllocatesNothing(t *testing.T) {
	n := newNetwork(t, 1)
	g := NewGroup(Config{Output: &record{t: t}})
	e := g.Enter(0)
	attach := func(id uint32) *Binding {
		b, err := g.Attach(e, BindingConfig{Link: n.configs(id, link.CipherNone)[0], Peers: n.side[1].addrs, Handler: &end{}})
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b, neighbour := attach(1), attach(2)
	g.Settle(e)
	var now time.Duration
	p := write(0x1000, 64)
	if allocs := testing.AllocsPerRun(1000, func() {
		now += time.Nanosecond
		e := g.Enter(now)
		q := *p
		if err := b.Send(e, &q); err != nil {
			t.Fatal(err)
		}
		b.HandOver(e, neighbour, p)
		g.Settle(e)
		_ = g.Wake()
	}); allocs > 0.1 { // the send buffer grows now and then
		t.Errorf("%v allocations for each entry", allocs)
	}
}
