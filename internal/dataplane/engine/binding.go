package engine

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// CloseCode tells the peer, in the last datagrams of a link, why an end closes it.
type CloseCode uint16

// Close codes.
const (
	CloseDetached   CloseCode = 1 // the manager ended the binding
	CloseShutdown   CloseCode = 2 // the proxy shuts down
	CloseDeviceLost CloseCode = 3 // the device has died or was removed
	CloseProtocol   CloseCode = 4 // the other end broke the protocol

	closeSilence = CloseCode(link.CodeSilence) // by the link itself: the other end was not heard
)

// String returns the reason in words.
func (c CloseCode) String() string {
	switch c {
	case CloseDetached:
		return "detached"
	case CloseShutdown:
		return "proxy shut down"
	case CloseDeviceLost:
		return "device lost"
	case CloseProtocol:
		return "protocol broken"
	case closeSilence:
		return "it heard nothing for too long"
	}
	return fmt.Sprintf("code %d", uint16(c))
}

// BindingConfig describes one binding.
type BindingConfig struct {
	Link    link.Config
	Peers   []netip.AddrPort // address of the other proxy by path
	Handler Handler
}

// Binding is a link between a slot of this proxy and a slot of another one.
type Binding struct {
	group   *Group
	handler Handler
	id      uint32
	epoch   uint32
	local   frame.Endpoint
	remote  frame.Endpoint
	peers   []netip.AddrPort // by path
	door    *Door

	link  *link.Link
	state link.State
	runs  RunHandler  // the handler, if it is one
	peer  PeerHandler // the handler, if it is one
	// Method values, made once.
	deliver    func(*tlp.Packet)
	deliverRun func(*link.Run)
	wake       time.Duration
	held       held
	times      times

	closed bool
	dirty  bool // in group.touched
	again  bool // the handler is to transmit once more
	pumped bool // in group.pumped

	blockedBy *Binding // the neighbour that could not take the handler's TLP
	blocks    int      // neighbours whose TLP this handler could not take
	// deficit is what the link may send in this turn, in bytes; below zero after
	// a last datagram that was larger than what was left.
	deficit int
}

// Attach adds a binding to the group. The link starts to connect when the group
// settles.
func (g *Group) Attach(e Entry, cfg BindingConfig) (*Binding, error) {
	id := cfg.Link.Binding
	if len(cfg.Peers) == 0 || len(cfg.Peers) != len(cfg.Link.Paths) {
		return nil, fmt.Errorf("engine: binding %d has %d peer addresses and %d paths", id, len(cfg.Peers), len(cfg.Link.Paths))
	}
	for _, other := range g.bindings {
		if other.id == id {
			return nil, fmt.Errorf("engine: binding %d exists", id)
		}
	}
	cfg.Link.ECN = g.cfg.ECN
	l, err := link.New(e.Now(), cfg.Link)
	if err != nil {
		return nil, fmt.Errorf("engine: binding %d: %w", id, err)
	}
	guards, err := link.NewGuards(cfg.Link)
	if err != nil {
		return nil, fmt.Errorf("engine: binding %d: %w", id, err)
	}
	b := &Binding{
		door:  &Door{peers: cfg.Peers, guards: guards},
		group: g, id: id, peers: cfg.Peers,
		epoch: cfg.Link.Epoch, local: cfg.Link.Local, remote: cfg.Link.Remote,
		link: l, state: l.State(), wake: machine.Never,
	}
	b.deliver, b.deliverRun = b.received, b.receivedRun
	b.handle(cfg.Handler)
	g.bindings = append(g.bindings, b)
	b.touch()
	return b, nil
}

// SetHandler makes another handler take the TLPs of the link and its changes.
func (b *Binding) SetHandler(_ Entry, h Handler) {
	b.handle(h)
	b.touch()
}

func (b *Binding) handle(h Handler) {
	b.handler = h
	b.runs, _ = h.(RunHandler)
	b.peer, _ = h.(PeerHandler)
}

// Detach removes the binding from its group. Its handler is not called any more.
// It returns false if the binding was removed before.
func (b *Binding) Detach(e Entry) bool {
	if b.closed {
		return false
	}
	b.closed = true
	g := e.group
	g.unblock(b)
	g.bindings = slices.DeleteFunc(g.bindings, func(other *Binding) bool { return other == b })
	return true
}

// ID returns the number of the binding.
func (b *Binding) ID() uint32 { return b.id }

// Door returns what the driver asks before a datagram of the binding enters.
func (b *Binding) Door() *Door { return b.door }

// Route returns the epoch of the binding and its two ends.
func (b *Binding) Route() (epoch uint32, local, remote frame.Endpoint) {
	return b.epoch, b.local, b.remote
}

// Send gives a TLP to the link, which copies it and transmits it when the group
// settles. The error is link.ErrFull when the link has no room now; the handler
// transmits again when it may have room.
func (b *Binding) Send(e Entry, p *tlp.Packet) error {
	if b.closed {
		return link.ErrDown
	}
	b.touch()
	err := b.link.Send(e.Now(), p)
	if err == nil {
		b.watch(e, false, p)
	}
	return err
}

// SendRun gives the TLPs of a run to the link, as Send gives each: all of them or, with an
// error, none.
func (b *Binding) SendRun(e Entry, r *link.Run) error {
	if b.closed {
		return link.ErrDown
	}
	b.touch()
	err := b.link.SendRun(e.Now(), r)
	if err == nil {
		b.watchRun(e, false, r)
	}
	return err
}

// HandOver gives a TLP of this binding's handler directly to the handler of
// another binding of the group. It returns false if that handler cannot take it
// now, or if the entry's budget is used up: the caller must stop transmitting
// and keep the TLP. Its Transmit is called again when it is worth trying.
func (b *Binding) HandOver(e Entry, to *Binding, p *tlp.Packet) bool {
	g := e.group
	if to.closed {
		return b.Lose(e) // as on any way to a device that is gone
	}
	if !b.mayGoOn() {
		return false
	}
	if !to.receivePeer(e, p) {
		if b.blockedBy != to {
			b.blockedBy = to
			to.blocks++
		}
		to.refused(e)
		return false
	}
	g.budget--
	to.touch()
	return true
}

// Lose counts a TLP of this binding's handler that goes nowhere against the budget of the
// entry: a handler may have any number of them after the end of its link. It returns false
// as HandOver does.
func (b *Binding) Lose(e Entry) bool {
	if !b.mayGoOn() {
		return false
	}
	e.group.budget--
	return true
}

// mayGoOn reports whether the entry has a budget left. Otherwise the handler transmits
// again in the next one.
func (b *Binding) mayGoOn() bool {
	if b.group.budget > 0 {
		return true
	}
	b.again = true
	b.touch()
	return false
}

// receivePeer gives the handler a TLP of a neighbour.
func (b *Binding) receivePeer(e Entry, p *tlp.Packet) bool {
	if b.peer != nil {
		return b.peer.ReceivePeer(e, p)
	}
	return b.handler.Receive(e, p)
}

// Readdress makes the binding exchange datagrams with other addresses of its peer, by
// path: a proxy that was restarted may listen elsewhere. It reports an error for
// another number of paths than the link has. The binding has another Door afterwards:
// proxies call GroupDriver.Readdress.
func (b *Binding) Readdress(_ Entry, peers []netip.AddrPort) error {
	if len(peers) != len(b.peers) {
		return fmt.Errorf("engine: binding %d has %d paths and %d new peer addresses", b.id, len(b.peers), len(peers))
	}
	b.peers = slices.Clone(peers)
	b.door = &Door{peers: b.peers, guards: b.door.guards}
	b.touch()
	return nil
}

// Payload returns memory for the n bytes of payload of the next TLP or run, which Send or
// SendRun then does not copy; nil: there is no room now, or the binding is gone. It is
// valid until the next Send and for this entry at most.
func (b *Binding) Payload(_ Entry, n int) []byte {
	if b.closed {
		return nil
	}
	return b.link.Payload(n)
}

// Room returns how many payload bytes Send takes now.
func (b *Binding) Room(Entry) int { return b.link.Room() }

// Fit returns how many TLPs with n bytes of payload each Send takes now.
func (b *Binding) Fit(_ Entry, n int) int { return b.link.Fit(n) }

// State returns the state of the link.
func (b *Binding) State(Entry) link.State { return b.link.State() }

// Why returns the reason in words why the link is down.
func (b *Binding) Why(Entry) string {
	reason, code := b.link.Reason()
	if reason == link.PeerClosed {
		return fmt.Sprintf("%v: %v", reason, CloseCode(code))
	}
	return reason.String()
}

// MaxDelay returns how long an answer of the peer may take now, see link.Link.
func (b *Binding) MaxDelay(Entry) time.Duration { return b.link.MaxDelay() }

// Heard returns when the peer was heard last, see link.Link.
func (b *Binding) Heard(Entry) time.Duration { return b.link.Heard() }

// Stats returns the counters of the link.
func (b *Binding) Stats(Entry) link.Stats { return b.link.Stats() }

// Touch makes the handler transmit when the group settles.
func (b *Binding) Touch(Entry) { b.touch() }

func (b *Binding) touch() {
	if !b.dirty {
		b.dirty = true
		b.group.touched = append(b.group.touched, b)
	}
}

// Shutdown closes the link and tells the peer why.
func (b *Binding) Shutdown(e Entry, code CloseCode) {
	b.link.Close(e.Now(), uint16(code))
	b.touch()
	b.noteState()
}

func (b *Binding) receive(e Entry, path uint8, datagram []byte, marked bool) {
	if marked {
		b.link.Marked()
	}
	_ = b.link.ReceiveRuns(e.Now(), path, datagram, b.deliver, b.deliverRun) // the link counts drops by their reason
	b.noteHeld()
	b.touch()
	b.noteState()
}

func (b *Binding) noteState() {
	if s := b.link.State(); s != b.state {
		b.state = s
		b.handler.LinkChanged(Entry{b.group}, s)
	}
}

// refused notes when the handler, which has refused a TLP, has room again: it may know now.
func (b *Binding) refused(e Entry) { b.wake = min(b.wake, b.handler.Wake(e)) }

// schedule notes when the link or the handler wants to be called next.
func (b *Binding) schedule() {
	b.wake = machine.Never
	if !b.closed {
		b.wake = min(b.link.Wake(), b.handler.Wake(Entry{b.group}))
	}
}
