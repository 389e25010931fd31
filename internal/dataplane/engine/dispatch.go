package engine

import (
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
)

// Gate is how a driver lets the reader of its sockets into a group.
type Gate interface {
	comparable
	Enter() Entry
	// Leave settles the group and ends the entry.
	Leave(e Entry)
}

// Route is where the datagrams of a binding go. A driver has one for each binding
// that is attached.
type Route[G Gate] struct {
	Gate G
	Door *Door
}

// Door looks at the datagrams of a binding before they enter its group: a datagram
// from another address than the peer's, or a forged handshake, never waits for the
// group and never keeps it entered. Its parts for different paths may be used at
// the same time.
type Door struct {
	peers  []netip.AddrPort // by path
	guards []*link.Guard    // by path
}

// Drops counts the datagrams that reached no link.
type Drops struct {
	Stray    uint64 // of no binding of this proxy
	Stranger uint64 // not from the address of the binding's peer on that path
	Forged   uint64 // handshakes that fail their checks
	Flood    uint64 // handshakes beyond the rate of a peer
	Cookie   uint64 // handshakes that were answered with a cookie
}

// Add adds the counts of other.
func (d *Drops) Add(other Drops) {
	d.Stray += other.Stray
	d.Stranger += other.Stranger
	d.Forged += other.Forged
	d.Flood += other.Flood
	d.Cookie += other.Cookie
}

// Input is where the datagrams of one path come from. It belongs to one goroutine
// at a time.
type Input struct {
	Path  uint8
	Clock func() time.Duration
	// Answer sends a datagram to the sender of the batch that is dispatched. It must
	// not keep it.
	Answer func(datagram []byte)

	reply [frame.HeaderSize + frame.SessionsSize + frame.CookieSize]byte
}

// admit reports whether a datagram may enter the group of its binding. It counts
// and answers those that may not.
func (d *Door) admit(in *Input, datagram []byte, from netip.AddrPort, drops *Drops) bool {
	// Without a cipher the address is all that tells the peer from others. With
	// one, the seal would, at a hundred times the cost for each datagram of noise.
	if int(in.Path) >= len(d.peers) || from != d.peers[in.Path] {
		drops.Stranger++
		return false
	}
	if !frame.PeekHandshake(datagram) {
		return true
	}
	n, err := d.guards[in.Path].Check(in.Clock(), from, datagram, in.reply[:])
	switch {
	case err == nil:
		return true
	case errors.Is(err, link.ErrCookie):
		drops.Cookie++
		if n > 0 {
			in.Answer(in.reply[:n])
		}
	case errors.Is(err, link.ErrFlood):
		drops.Flood++
	default:
		drops.Forged++
	}
	return false
}

// Batch is what one read of a socket returns: datagrams of one sender that lie one
// after another in Bytes, each of Segment bytes except the last, which may be shorter.
type Batch struct {
	Bytes   []byte
	Segment int
	From    netip.AddrPort
	Marked  bool // the network was congested (CE, RFC 3168): each of the datagrams says so
}

// Dispatch hands each datagram of a batch to its binding. routes finds the binding by
// its number. Datagrams of one group that arrived together are handled under one entry,
// so that the answers leave together too: those of the batch, and those of the batches
// that next returns, until it returns false. The bytes of a batch are not used after the
// call of next. next may be nil.
func Dispatch[G Gate](routes map[uint32]Route[G], in *Input, b Batch, next func() (Batch, bool)) (d Drops) {
	var at visit[G]
	for more := true; more; {
		at.dispatch(routes, in, b, &d)
		more = false
		if next != nil {
			b, more = next()
		}
	}
	at.leave()
	return d
}

// visit is the entry that Dispatch is in.
type visit[G Gate] struct {
	gate  G // zero: none
	entry Entry
}

func (v *visit[G]) enter(gate G) {
	if v.gate != gate {
		v.leave()
		v.gate, v.entry = gate, gate.Enter()
	}
}

func (v *visit[G]) leave() {
	var none G
	if v.gate != none {
		v.gate.Leave(v.entry)
		v.gate = none
	}
}

func (v *visit[G]) dispatch(routes map[uint32]Route[G], in *Input, b Batch, d *Drops) {
	for len(b.Bytes) > 0 {
		n := min(b.Segment, len(b.Bytes))
		datagram := b.Bytes[:n:n]
		b.Bytes = b.Bytes[n:]
		id, ok := frame.PeekBinding(datagram)
		route, found := routes[id]
		if !ok || !found {
			d.Stray++
			continue
		}
		if !route.Door.admit(in, datagram, b.From, d) {
			continue
		}
		v.enter(route.Gate)
		if !v.entry.receive(id, in.Path, datagram, b.Marked) {
			d.Stray++
		}
	}
}

// receive hands a datagram to a binding. It returns false if the group does not
// have it any more.
func (e Entry) receive(id uint32, path uint8, datagram []byte, marked bool) bool {
	for _, b := range e.group.bindings {
		if b.id == id {
			b.receive(e, path, datagram, marked)
			return true
		}
	}
	return false
}

// Refused tells the links of some peers that their hosts have refused datagrams of a
// path. Anybody can forge such a report, so it enters only the groups that have a
// link to one of the peers.
func Refused[G Gate](routes map[uint32]Route[G], path uint8, peers []netip.AddrPort) {
	told := map[G]bool{}
	for _, r := range routes {
		if told[r.Gate] || !r.Door.leadsTo(path, peers) {
			continue
		}
		told[r.Gate] = true
		e := r.Gate.Enter()
		e.refused(path, peers)
		r.Gate.Leave(e)
	}
}

func (d *Door) leadsTo(path uint8, peers []netip.AddrPort) bool {
	return int(path) < len(d.peers) && slices.Contains(peers, d.peers[path])
}

func (e Entry) refused(path uint8, peers []netip.AddrPort) {
	for _, b := range e.group.bindings {
		if b.door.leadsTo(path, peers) {
			b.link.Refused(e.Now(), path)
			b.touch()
		}
	}
}
