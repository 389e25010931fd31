package sim

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
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
}

// uplink is a path of a node in use.
type uplink struct {
	Path
	faults *fault.Injector
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
func (w *World) send(from *uplink, to netip.AddrPort, datagram []byte) {
	if w.OnDatagram != nil {
		w.OnDatagram(w.now, from.Addr, to, datagram)
	}
	for _, d := range from.faults.Apply(w.now, slices.Clone(datagram)) {
		p, ok := w.ports[to]
		if !ok {
			continue
		}
		w.at(d.At, p.node, func() { p.node.receive(p.path, d.Data, from.Addr) })
	}
}

// receive hands a datagram to the binding that it names.
func (n *Node) receive(path uint8, datagram []byte, from netip.AddrPort) {
	u := n.uplinks[path]
	u.sender = from
	n.Drops.Add(engine.Dispatch(n.routes, &u.in, engine.Batch{Bytes: datagram, Segment: len(datagram), From: from}, nil))
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
func (n *Node) Write(_ time.Duration, path uint8, to netip.AddrPort, batch []byte, segment int) {
	for datagram := range slices.Chunk(batch, segment) {
		n.world.send(n.uplinks[path], to, datagram)
	}
}
