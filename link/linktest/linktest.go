// Package linktest connects two links by a network in virtual time, with fault
// plans and bottlenecks, and checks that every TLP arrives exactly once and in
// order.
package linktest

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// Side is one end.
type Side int

// The two ends: Host is the initiator.
const (
	Host Side = 0
	Box  Side = 1
)

// Path describes the network of one path.
type Path struct {
	// Plans are the faults of the direction from Host and of that from Box.
	Plans [2]fault.Plan
	// Rate is the bandwidth of each direction in bytes per second, 0 for
	// unlimited. Queue is the size of its queue in bytes; datagrams that exceed
	// it are dropped.
	Rate  float64
	Queue int
	// Mark is from how many bytes on in the queue datagrams are marked whose sender
	// understands it (ECN), and others dropped; 0: none. Some networks drop the former.
	Mark          int
	DropsMarkable bool
}

// Config describes a network.
type Config struct {
	Ends  [2]link.Config
	Paths []Path // by path ID
	Seed  uint64
}

// Arrival is a TLP that was delivered.
type Arrival struct {
	At     time.Duration
	Packet tlp.Packet // with its own copy of Data
}

// Network is two links and the paths between them.
type Network struct {
	Now  time.Duration
	Link [2]*link.Link
	// Arrived holds the TLPs delivered to each side, unless OnDeliver is set.
	Arrived [2][]Arrival
	// OnDeliver, if set, receives the TLPs instead. The packet is valid during
	// the call, which may call Send.
	OnDeliver func(to Side, p *tlp.Packet)
	// Runs counts the runs that were delivered to Host.
	Runs int
	// OnDatagram is called with every datagram that is sent.
	OnDatagram func(from Side, path uint8, datagram []byte)

	cfg    Config
	guards [2][]*link.Guard
	pipes  [2][]pipe
	events machine.Queue[arrival]
	plans  uint64 // calls of SetPlan
	buf    []byte
}

type pipe struct {
	injector *fault.Injector
	busy     time.Duration // when the bottleneck is free
}

// New returns the links and the network at time 0.
func New(cfg Config) (*Network, error) {
	n := &Network{cfg: cfg, buf: make([]byte, 1<<16)}
	for side := range n.Link {
		l, err := link.New(0, cfg.Ends[side])
		if err != nil {
			return nil, err
		}
		n.Link[side] = l
		if n.guards[side], err = link.NewGuards(cfg.Ends[side]); err != nil {
			return nil, err
		}
		for i, p := range cfg.Paths {
			n.pipes[side] = append(n.pipes[side], pipe{injector: fault.New(p.Plans[side], cfg.Seed+uint64(2*i+side))})
		}
	}
	if len(cfg.Paths) != len(cfg.Ends[0].Paths) || len(cfg.Paths) != len(cfg.Ends[1].Paths) {
		return nil, fmt.Errorf("linktest: %d paths for links with %d and %d",
			len(cfg.Paths), len(cfg.Ends[0].Paths), len(cfg.Ends[1].Paths))
	}
	return n, nil
}

// Restart replaces one end by a new one with another session ID, like a restarted
// process.
func (n *Network) Restart(side Side, session uint64) error {
	cfg := n.cfg.Ends[side]
	cfg.Session = session
	binary.BigEndian.PutUint64(cfg.Ephemeral[:], session)
	l, err := link.New(n.Now, cfg)
	if err != nil {
		return err
	}
	n.Link[side] = l
	n.guards[side], err = link.NewGuards(cfg)
	return err
}

// SetPlan replaces the faults of a direction.
func (n *Network) SetPlan(from Side, path int, plan fault.Plan) {
	n.plans++
	n.pipes[from][path].injector = fault.New(plan, n.cfg.Seed+uint64(2*len(n.cfg.Paths))+n.plans)
}

// Send gives a TLP to a side's link.
func (n *Network) Send(from Side, p *tlp.Packet) error { return n.Link[from].Send(n.Now, p) }

// Inject delivers a datagram to a side by a path now, like an attacker who claims
// to be the other side, and returns the error of its guard or its link.
func (n *Network) Inject(to Side, path uint8, datagram []byte) error {
	return n.receive(to, path, slices.Clone(datagram), false)
}

// Run advances the time to until.
func (n *Network) Run(until time.Duration) {
	n.RunUntil(until, func() bool { return false })
}

// RunUntil advances the time until done returns true or to the deadline. It
// reports whether done returned true.
func (n *Network) RunUntil(deadline time.Duration, done func() bool) bool {
	for {
		n.pump()
		if done() {
			return true
		}
		at := min(deadline, n.events.Wake())
		for _, l := range n.Link {
			at = min(at, l.Wake())
		}
		n.Now = max(n.Now, at)
		for e, ok := n.events.Pop(n.Now); ok; e, ok = n.events.Pop(n.Now) {
			_ = n.receive(e.to, e.path, e.data, e.marked) // counted by the link
		}
		if n.Now >= deadline {
			n.pump()
			return done()
		}
	}
}

// pump transmits all datagrams that both sides can send now.
func (n *Network) pump() {
	for side, l := range n.Link {
		for {
			size, path := l.Transmit(n.Now, n.buf)
			if size == 0 {
				break
			}
			n.transmit(Side(side), path, slices.Clone(n.buf[:size]), l.ECN())
		}
	}
}

func (n *Network) transmit(from Side, path uint8, datagram []byte, ecn link.ECN) {
	if n.OnDatagram != nil {
		n.OnDatagram(from, path, datagram)
	}
	p, c := &n.pipes[from][path], &n.cfg.Paths[path]
	leaves, marked := n.Now, ecn == link.CE
	if ecn != link.NotECT && c.DropsMarkable {
		return
	}
	if c.Rate > 0 {
		waiting := float64(max(p.busy-n.Now, 0)) / float64(time.Second) * c.Rate
		if c.Queue > 0 && int(waiting)+len(datagram) > c.Queue {
			return
		}
		if over := c.Mark > 0 && int(waiting)+len(datagram) > c.Mark; over && ecn == link.NotECT {
			return
		} else if over {
			marked = true
		}
		p.busy = max(p.busy, n.Now) + time.Duration(float64(len(datagram))/c.Rate*float64(time.Second))
		leaves = p.busy
	}
	for _, d := range p.injector.Apply(leaves, datagram) {
		n.events.Push(d.At, arrival{to: 1 - from, path: path, data: d.Data, marked: marked})
	}
}

// Address returns the address of a side on a path.
func Address(side Side, path uint8) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(side + 1)}), 4791+uint16(path))
}

// admit asks the guard about a handshake datagram, and sends its answer.
func (n *Network) admit(to Side, path uint8, datagram []byte) error {
	if _, ok := frame.PeekBinding(datagram); !ok || !frame.PeekHandshake(datagram) {
		return nil // the link drops what is no datagram
	}
	size, err := n.guards[to][path].Check(n.Now, Address(1-to, path), datagram, n.buf)
	if size > 0 {
		n.transmit(to, path, slices.Clone(n.buf[:size]), link.NotECT)
	}
	return err
}

func (n *Network) receive(to Side, path uint8, datagram []byte, marked bool) error {
	if err := n.admit(to, path, datagram); err != nil {
		return err
	}
	deliver := func(p *tlp.Packet) {
		if n.OnDeliver != nil {
			n.OnDeliver(to, p)
			return
		}
		c := *p
		c.Data, c.Prefix = slices.Clone(p.Data), slices.Clone(p.Prefix)
		n.Arrived[to] = append(n.Arrived[to], Arrival{At: n.Now, Packet: c})
	}
	if marked {
		n.Link[to].Marked()
	}
	if to == Box { // takes single TLPs
		return n.Link[to].Receive(n.Now, path, datagram, deliver)
	}
	return n.Link[to].ReceiveRuns(n.Now, path, datagram, deliver, func(r *link.Run) {
		n.Runs++
		for i := range r.Count {
			var p tlp.Packet
			r.TLP(i, &p)
			deliver(&p)
		}
	})
}

// arrival is a datagram in flight.
type arrival struct {
	to   Side
	path uint8
	data []byte
	// marked says that the network was congested.
	marked bool
}
