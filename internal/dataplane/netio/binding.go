package netio

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// Handler is what stands behind a binding: the slot of a host or of a box.
// Its methods are called with the binding's group entered; they may send on
// any binding of the group, and must not enter a group.
type Handler interface {
	// Deliver takes the next TLP that came through the link. The packet and
	// its data are valid only during the call. It returns false when it
	// cannot take the packet now: it is offered again after the next Pump,
	// and the peer is slowed down meanwhile.
	Deliver(now time.Duration, p *tlp.Packet) bool
	// Pump sends what the handler has for the link, as far as Send takes it.
	// It is called after deliveries, after acknowledgements made room, and at
	// the time that Wake gave.
	Pump(now time.Duration)
	// Wake returns when Pump wants to be called without anything happening,
	// or math.MaxInt64.
	Wake() time.Duration
	// LinkChanged says that the link came up or went down; Binding.Why says more.
	LinkChanged(now time.Duration, s link.State)
}

// CloseCode says, in a link's last datagrams, why an end goes away.
type CloseCode uint16

// Close codes.
const (
	CloseDetached   CloseCode = 1 // the manager ended the binding
	CloseShutdown   CloseCode = 2 // the proxy is going down
	CloseDeviceLost CloseCode = 3 // the device has died or was pulled out
	CloseProtocol   CloseCode = 4 // the other end broke the protocol
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
	}
	return fmt.Sprintf("code %d", uint16(c))
}

// BindingConfig describes one binding.
type BindingConfig struct {
	Link    link.Config
	Peers   []netip.AddrPort // address of the other proxy by path
	Handler Handler
}

// Binding is a link between a slot here and a slot of another proxy. Methods
// other than Close need the group entered.
type Binding struct {
	group   *Group
	handler Handler
	id      uint32
	epoch   uint32
	local   frame.Endpoint
	remote  frame.Endpoint
	peers   []netip.AddrPort
	writers []*udp.Writer // by path

	link   *link.Link
	state  link.State
	down   chan struct{} // closed when the link is down
	held   held
	taker  func(*tlp.Packet) // deliver, made once
	closed bool
	dirty  bool // in group.touched
	pumped bool // in group.pumped
	// deficit is what may be sent in this turn, in bytes; below zero after a
	// last datagram that was larger than what was left.
	deficit int
	times   times

	timer  *time.Timer
	armed  time.Duration // when the timer fires; never: not armed
	timers sync.WaitGroup
}

// Attach adds a binding to the group. The link starts to connect at once.
func (g *Group) Attach(cfg BindingConfig) (*Binding, error) {
	f := g.fabric
	if len(cfg.Peers) == 0 || len(cfg.Peers) > len(f.paths) || len(cfg.Peers) != len(cfg.Link.Paths) {
		return nil, fmt.Errorf("fabric: binding %d has %d peer addresses and %d paths; this proxy has %d paths",
			cfg.Link.Binding, len(cfg.Peers), len(cfg.Link.Paths), len(f.paths))
	}
	l, err := link.New(f.Now(), cfg.Link)
	if err != nil {
		return nil, fmt.Errorf("fabric: binding %d: %w", cfg.Link.Binding, err)
	}
	b := &Binding{
		group: g, handler: cfg.Handler, id: cfg.Link.Binding, peers: cfg.Peers,
		epoch: cfg.Link.Epoch, local: cfg.Link.Local, remote: cfg.Link.Remote,
		link: l, state: l.State(), down: make(chan struct{}), armed: machine.Never,
	}
	b.taker = b.deliver
	for i := range cfg.Peers {
		b.writers = append(b.writers, f.paths[i].conn.NewWriter())
	}
	if err := f.add(b); err != nil {
		return nil, err
	}
	g.Enter()
	b.touch()
	g.Leave()
	return b, nil
}

// add publishes the binding to the readers: they look at an immutable map.
func (f *Fabric) add(b *Binding) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := *f.bindings.Load()
	if old[b.id] != nil {
		return fmt.Errorf("fabric: binding %d exists", b.id)
	}
	next := make(map[uint32]*Binding, len(old)+1)
	for id, other := range old {
		next[id] = other
	}
	next[b.id] = b
	f.bindings.Store(&next)
	return nil
}

func (f *Fabric) remove(b *Binding) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := *f.bindings.Load()
	if old[b.id] != b {
		return
	}
	next := make(map[uint32]*Binding, len(old))
	for id, other := range old {
		if other != b {
			next[id] = other
		}
	}
	f.bindings.Store(&next)
}

// ID returns the number of the binding.
func (b *Binding) ID() uint32 { return b.id }

// Send gives a TLP to the link, which copies it; it leaves with the group.
// The error is link.ErrFull when there is no room now: Pump is called when
// there may be again.
func (b *Binding) Send(now time.Duration, p *tlp.Packet) error {
	if b.closed {
		return link.ErrDown
	}
	b.touch()
	err := b.link.Send(now, p)
	if err == nil {
		b.watch(false, p)
	}
	return err
}

// Room returns how many payload bytes Send takes now.
func (b *Binding) Room() int { return b.link.Room() }

// State returns the state of the link.
func (b *Binding) State() link.State { return b.link.State() }

// Why says in words why the link is down.
func (b *Binding) Why() string {
	reason, code := b.link.Reason()
	if reason == link.PeerClosed {
		return fmt.Sprintf("%v: %v", reason, CloseCode(code))
	}
	return reason.String()
}

// Stats returns the counters of the link.
func (b *Binding) Stats() link.Stats { return b.link.Stats() }

// Touch asks for Pump when the group is left.
func (b *Binding) Touch() { b.touch() }

func (b *Binding) touch() {
	if !b.dirty {
		b.dirty = true
		b.group.touched = append(b.group.touched, b)
	}
}

// Shutdown tells the peer why this end goes away.
func (b *Binding) Shutdown(now time.Duration, code CloseCode) {
	b.link.Close(now, uint16(code))
	b.touch()
	b.noteState(now)
}

// lingerTimeout bounds how long Close waits for the last datagrams of a link,
// which take some milliseconds.
const lingerTimeout = 50 * time.Millisecond

// Close removes the binding and waits for its timer. After Shutdown it waits
// until the peer has been told. Call it outside the group.
func (b *Binding) Close() {
	b.group.Enter()
	closing := b.link.State() == link.Closing
	b.group.Leave()
	if closing {
		linger := time.NewTimer(lingerTimeout)
		select {
		case <-b.down:
		case <-linger.C:
		}
		linger.Stop()
	}
	b.group.fabric.remove(b)
	b.group.Enter()
	b.closed = true
	if b.timer != nil && b.timer.Stop() {
		b.timers.Done()
	}
	b.group.Leave()
	b.timers.Wait()
}

func (b *Binding) receive(now time.Duration, path uint8, datagram []byte, from netip.AddrPort) {
	if b.closed {
		return
	}
	// A binding without a cipher knows its peer by nothing else. The others would
	// find out by the seal, and pay for that: for noise a hundred times what this costs.
	if int(path) >= len(b.peers) || from != b.peers[path] {
		b.group.fabric.strangers.Add(1)
		return
	}
	// A datagram that is dropped is counted by the link, by reason.
	_ = b.link.Receive(now, path, datagram, b.taker)
	b.noteHeld(now)
	b.touch()
	b.noteState(now)
}

func (b *Binding) noteState(now time.Duration) {
	if s := b.link.State(); s != b.state {
		if b.state = s; s == link.Down {
			close(b.down)
		}
		b.handler.LinkChanged(now, s)
	}
}

// quantum is what a binding sends before it is the next one's turn, in bytes: a
// batch of segmentation offload, which costs one system call.
const quantum = udp.ReadBuffer

// transmit sends what the link has ready, but no more than a quantum: runs of
// datagrams of one size on one path go out as one batch. It reports whether
// there may be more.
func (b *Binding) transmit(now time.Duration) (more bool) {
	if b.closed {
		return false
	}
	out := batch{binding: b}
	more = true
	for b.deficit += quantum; b.deficit > 0; {
		buf := out.space()
		n, path := b.link.Transmit(now, buf)
		if n == 0 {
			b.deficit, more = 0, false // who has nothing to send saves nothing up
			break
		}
		b.deficit -= n
		out.add(now, n, path)
	}
	out.flush(now)
	b.noteState(now)
	return more
}

// arm sets the timer to the next time that the link or the handler wants. A
// timer that fires early does no harm, so it is only ever moved forward: most
// entries leave it alone.
func (b *Binding) arm(now time.Duration) {
	if b.closed {
		return
	}
	b.armAt(now, min(b.link.Wake(), b.handler.Wake()))
}

func (b *Binding) armAt(now, wake time.Duration) {
	if wake >= b.armed {
		return
	}
	wait := max(wake-now, 0)
	b.armed = wake
	if b.timer == nil {
		b.timers.Add(1)
		b.timer = time.AfterFunc(wait, b.fire)
		return
	}
	if !b.timer.Reset(wait) {
		b.timers.Add(1)
	}
}

func (b *Binding) fire() {
	defer b.timers.Done()
	b.group.Enter()
	b.armed = machine.Never
	if !b.closed {
		b.touch()
	}
	b.group.Leave()
}
