// Package engine moves TLPs between the links of a proxy and the handlers
// behind them: the slots of a host or of a GPU box.
//
// A [Group] holds the bindings of one PCIe hierarchy. It is a pure machine: its
// driver gives it exclusive access and the time, in the form of an [Entry],
// passes it the datagrams that arrive, and calls Settle before it leaves.
// Settle lets the handlers transmit and writes datagrams, in batches, to the
// driver's [Output]. Wake then tells when the group wants to be entered again.
// Package netio drives groups with sockets, locks and timers, the simulator in
// virtual time.
//
//	e := group.Enter(now)
//	err := binding.Send(e, &packet)
//	group.Settle(e)
//	wake := group.Wake()
package engine

import (
	"net/netip"
	"time"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/tlp"
)

// Handler is the machine behind a binding: the slot of a host or of a box. It
// may use any binding of the entered group during a call. Only a driver can
// enter a group, so a handler cannot.
//
// The verbs are those of package machine, as in device.Device, which a box's
// slot wraps, in link.Link, and in the port of a host's slot.
type Handler interface {
	// Receive takes the next TLP from the link. The packet and its data are
	// valid only during the call. It returns false if the handler cannot take
	// the TLP now; the group offers it again after a later Transmit of any
	// handler, and slows the peer down until then.
	Receive(e Entry, p *tlp.Packet) bool
	// Transmit sends the TLPs that the handler has for the link, as far as
	// Binding.Send takes them. The group calls it after a Touch or Receive,
	// when acknowledgements have made room, and at the time that Wake returned.
	Transmit(e Entry)
	// Wake returns when Transmit is due without further input, or machine.Never.
	Wake(e Entry) time.Duration
	// LinkChanged reports that the link came up or went down. Binding.Why
	// returns the reason.
	LinkChanged(e Entry, s link.State)
}

// RunHandler is a Handler that can take a run at once.
type RunHandler interface {
	Handler
	// ReceiveRun takes the next TLPs from the link if all of them have the same
	// destination, which takes them now. Otherwise it returns false and has not taken
	// any: the group calls Receive with each. The run is valid only during the call.
	ReceiveRun(e Entry, r *link.Run) bool
}

// PeerHandler is a Handler that takes the TLPs of its neighbours, which HandOver gives it,
// in another way than those of its link.
type PeerHandler interface {
	Handler
	// ReceivePeer is Receive for a TLP of a neighbour.
	ReceivePeer(e Entry, p *tlp.Packet) bool
}

// Output is the network under a group.
type Output interface {
	// Buffer lends memory for one batch; Release takes it back.
	Buffer() *Buffer
	Release(b *Buffer)
	// MaxBatch returns the largest batch, in bytes, that Write takes for
	// datagrams of segment bytes on a path.
	MaxBatch(path uint8, segment int) int
	// Write sends the datagrams that lie one after another in the parts of batch, each
	// of segment bytes except the last, which may be shorter. A datagram may have several
	// parts, and a part may be empty. It must not keep batch nor the parts. The links
	// recover datagrams that the network does not take. ecn is the ECN field of
	// their IP headers.
	Write(now time.Duration, path uint8, to netip.AddrPort, batch [][]byte, segment int, ecn link.ECN)
}

// Config describes the surroundings of a group.
type Config struct {
	Output Output
	ECN    bool // see link.Config
	// Clock returns a finer time than that of the entry, for the samples of
	// round trips. nil: the time of the entry.
	Clock   func() time.Duration
	Watcher Watcher // nil: none
	// Listened returns the time up to which the driver has passed on every datagram
	// that had arrived. nil: up to now.
	Listened func() time.Duration
}

// Watcher sees the TLPs that pass between the links and their handlers.
type Watcher interface {
	// Watching reports whether to call TLP. It is cheap.
	Watching() bool
	// TLP sees a TLP of a binding. The packet is valid only during the call.
	TLP(b *Binding, received bool, p *tlp.Packet)
}

// Entry is the right to use a group: exclusive access at one time. Group.Enter
// alone makes one, and it ends when the driver leaves the group. Methods that
// need the group take an Entry, so they cannot be called without having entered.
type Entry struct{ group *Group }

// Now returns the time of the entry.
func (e Entry) Now() time.Duration { return e.group.now }
