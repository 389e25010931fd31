// Package sim runs real proxies in virtual time: host proxies with embedded
// hosts, box proxies with software GPUs, the GPU's driver, and the links between
// them over a network with delays, bandwidth and faults. Only the drivers differ
// from those of the daemons: a Node takes the place of sockets, timers and
// goroutines. Processors cost nothing, so a simulation measures the protocol.
//
// A World runs in one goroutine at a time and depends on its seed only: the same
// calls give the same datagrams at the same times.
package sim

import (
	"net/netip"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/machine"
)

// World is virtual time, the events in it, and the network between its nodes. It
// must not be used from several goroutines at a time.
type World struct {
	// OnDatagram sees every datagram when it is sent. The datagram is valid
	// during the call. nil: no one watches.
	OnDatagram func(at time.Duration, from, to netip.AddrPort, datagram []byte)

	seed    uint64
	now     time.Duration
	events  machine.Queue[event]
	ports   map[netip.AddrPort]port
	nodes   int // made so far
	running *task
	closed  bool
	buffers []*engine.Buffer
}

// event is work of a node. Afterwards the node's tasks continue whose
// conditions hold.
type event struct {
	node *Node
	do   func() // nil: only the tasks
}

// port is an address of a node.
type port struct {
	node *Node
	path uint8
}

// NewWorld makes an empty world at time 0.
func NewWorld(seed uint64) *World {
	return &World{seed: seed, ports: map[netip.AddrPort]port{}}
}

// Now returns the virtual time since the world was made.
func (w *World) Now() time.Duration { return w.now }

// Run lets time pass until the given time.
func (w *World) Run(until time.Duration) {
	w.RunUntil(until, func() bool { return false })
}

// RunUntil lets time pass until done returns true, which it reports, or until
// the deadline. done is called after every event.
func (w *World) RunUntil(deadline time.Duration, done func() bool) bool {
	for !done() {
		if w.events.Wake() > deadline {
			w.now = max(w.now, deadline)
			return false
		}
		w.step()
	}
	return true
}

// step handles the next event.
func (w *World) step() {
	w.now = max(w.now, w.events.Wake())
	e, _ := w.events.Pop(w.now)
	if e.node.dead {
		return
	}
	if e.do != nil {
		e.do()
	}
	e.node.resume()
}

// at schedules work of a node.
func (w *World) at(when time.Duration, n *Node, do func()) {
	w.events.Push(max(when, w.now), event{n, do})
}

// Close ends the tasks of all nodes. The world must not be used afterwards.
func (w *World) Close() {
	w.closed = true
	for _, p := range w.ports {
		p.node.Stop()
	}
}
