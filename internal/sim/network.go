package sim

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/link"
)

// DefaultMTU is the UDP payload of an Ethernet jumbo frame over IPv6, in bytes.
const DefaultMTU = 9000 - 48

// Path is one of the parallel networks of a node.
type Path struct {
	Addr netip.AddrPort
	MTU  int // bytes of UDP payload; 0: DefaultMTU
	// Plan is the delay, the bandwidth and the faults of the datagrams that the
	// node sends, and the restarts and jumps of the node. Its times count from the
	// start of the world.
	Plan fault.Plan
	// Port is that of the switch through which all datagrams to the node pass.
	Port Port
}

// Port is an output of a switch: datagrams wait in its buffer for the link behind it, and
// those that find it full are dropped.
type Port struct {
	Rate   float64 // of the link in bytes per second; 0: no bound
	Buffer int     // bytes; 0: no bound
	// Mark is from how many bytes on, which wait in the buffer, datagrams of senders that
	// understand it are marked, and others dropped (ECN, RFC 3168 section 5); 0: none.
	Mark int
}

// output is a port in use.
type output struct {
	Port
	busy    time.Duration // when the link has sent all that is in the buffer
	dropped uint64
	marked  uint64
}

// pass returns when a datagram that arrives now has passed the port, or false, and whether
// it then has a mark.
func (o *output) pass(now time.Duration, size int, ecn link.ECN) (at time.Duration, marked, ok bool) {
	if o.Rate == 0 {
		return now, ecn == link.CE, true
	}
	waiting := max(o.busy-now, 0).Seconds() * o.Rate
	if o.Buffer > 0 && int(waiting)+size > o.Buffer {
		o.dropped++
		return 0, false, false
	}
	if marked = o.Mark > 0 && int(waiting)+size > o.Mark; marked && ecn == link.NotECT {
		o.dropped++
		return 0, false, false
	}
	if marked {
		o.marked++
	}
	marked = marked || ecn == link.CE
	o.busy = max(o.busy, now) + time.Duration(float64(size)/o.Rate*float64(time.Second))
	return o.busy, marked, true
}

// uplink is a path of a node in use.
type uplink struct {
	Path
	faults *fault.Injector
	port   output
	in     engine.Input
	sender netip.AddrPort // of the datagram that is dispatched
}

// Disturb replaces the plan of a path. It returns an error if the plan has restarts
// and nothing restarts the node.
func (n *Node) Disturb(path int, plan fault.Plan) error {
	if len(plan.Restarts) > 0 && n.restart == nil {
		return fmt.Errorf("path %d: this node cannot be restarted by a fault plan", path)
	}
	u := n.uplinks[path]
	u.Plan, u.faults = plan, fault.New(plan, n.rng.Uint64())
	for _, at := range plan.Restarts {
		n.schedule(path, at, n.restart)
	}
	for _, j := range plan.Jumps {
		n.schedule(path, j.At, func() { n.Jump(j.By) })
	}
	return nil
}

// schedule does something at a time to come, if the path still has its present plan
// then.
func (n *Node) schedule(path int, at time.Duration, do func()) {
	now := n.uplinks[path].faults
	if at <= n.world.now {
		return // an earlier run of the node had it
	}
	n.world.at(at, n, func() {
		if n.uplinks[path].faults == now {
			do()
		}
	})
}

// send gives a datagram to the network.
func (w *World) send(from *uplink, to netip.AddrPort, datagram []byte, ecn link.ECN) {
	if w.OnDatagram != nil {
		w.OnDatagram(w.now, from.Addr, to, datagram)
	}
	for _, d := range from.faults.Apply(w.now, slices.Clone(datagram)) {
		p, ok := w.ports[to]
		if !ok {
			continue
		}
		w.at(d.At, p.node, func() { p.node.arrive(p.path, d.Data, from.Addr, ecn) })
	}
}

// arrive takes a datagram through the port of the switch before the node.
func (n *Node) arrive(path uint8, datagram []byte, from netip.AddrPort, ecn link.ECN) {
	at, marked, ok := n.uplinks[path].port.pass(n.world.now, len(datagram), ecn)
	switch {
	case !ok:
	case at == n.world.now:
		n.receive(path, datagram, from, marked)
	default:
		n.world.at(at, n, func() { n.receive(path, datagram, from, marked) })
	}
}

// ecn reports whether a switch before the node marks datagrams, as then all do.
func (n *Node) ecn() bool {
	return slices.ContainsFunc(n.uplinks, func(u *uplink) bool { return u.port.Mark > 0 })
}

// receive hands a datagram to the binding that it names.
func (n *Node) receive(path uint8, datagram []byte, from netip.AddrPort, marked bool) {
	u := n.uplinks[path]
	u.sender = from
	n.Drops.Add(engine.Dispatch(n.routes, &u.in, engine.Batch{Bytes: datagram, Segment: len(datagram), From: from, Marked: marked}, nil))
}

// Buffer implements engine.Output.
func (n *Node) Buffer() *engine.Buffer {
	b := n.world.buffers
	if len(b) == 0 {
		return new(engine.Buffer)
	}
	n.world.buffers = b[:len(b)-1]
	return b[len(b)-1]
}

// Release implements engine.Output.
func (n *Node) Release(b *engine.Buffer) { n.world.buffers = append(n.world.buffers, b) }

// MaxBatch implements engine.Output.
func (n *Node) MaxBatch(uint8, int) int { return len(engine.Buffer{}) / 2 }

// Write implements engine.Output.
func (n *Node) Write(_ time.Duration, path uint8, to netip.AddrPort, batch [][]byte, segment int, ecn link.ECN) {
	for datagram := range slices.Chunk(slices.Concat(batch...), segment) {
		n.world.send(n.uplinks[path], to, datagram, ecn)
	}
}
