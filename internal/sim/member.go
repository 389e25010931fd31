package sim

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/embedded"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
	"github.com/dxpu-project/dxpu/machine"
)

// proxy is a host proxy or a box proxy.
type proxy interface {
	Apply(*dxpuv1.DesiredState)
	Observe() *dxpuv1.ObservedState
	OnChange(f func())
	Controllers() []func(context.Context)
}

// Member is a host or a box of a pool: a node with a proxy, which restarts.
type Member struct {
	Name string

	pool   *Pool
	number uint32
	paths  []Path
	build  func() (proxy, error) // makes the proxy on node
	node   *Node
	proxy  proxy
	stored *dxpuv1.DesiredState // the desired state on the disk

	// Used by the manager:
	wanted   *dxpuv1.DesiredState
	observed *dxpuv1.ObservedState // nil: no report has come from this run
	run      int                   // counts starts
}

// Host is a member with an embedded host.
type Host struct {
	Member
	front *hostproxy.Embedded
}

// Box is a member with GPUs.
type Box struct {
	Member
	gpus []*gpu.GPU
}

func (p *Pool) newHost(i int) *Host {
	h := &Host{Member: p.newMember(fmt.Sprintf("host-%d", i), i+1, p.spec.HostPort)}
	h.build = func() (proxy, error) {
		h.front = hostproxy.NewEmbedded(hostproxy.EmbeddedSpec{Memory: p.spec.Memory})
		return hostproxy.New(hostproxy.Config{
			Slots: p.spec.HostSlots, Front: h.front, Fabric: h.node, Domain: h.Name, Logger: discard,
		})
	}
	return h
}

func (p *Pool) newBox(i int) *Box {
	b := &Box{Member: p.newMember(fmt.Sprintf("box-%d", i), p.spec.Hosts+i+1, p.spec.BoxPort)}
	b.build = func() (proxy, error) {
		slots := make([]boxproxy.Slot, p.spec.BoxSlots)
		b.gpus = make([]*gpu.GPU, len(slots))
		for s := range slots {
			g, err := gpu.New(p.spec.GPU)
			if err != nil {
				return nil, err
			}
			b.gpus[s] = g
			slots[s].Device = g
		}
		return boxproxy.New(boxproxy.Config{Slots: slots, Fabric: b.node, Logger: discard})
	}
	return b
}

var discard = slog.New(slog.DiscardHandler)

func (p *Pool) newMember(name string, number int, port Port) Member {
	m := Member{Name: name, pool: p, number: uint32(number)}
	plan := p.spec.Plan
	if port.Rate > 0 && plan.Rate == 0 {
		plan.Rate = port.Rate // the sender's own buffer holds all that it has
	}
	for path := range p.spec.Paths {
		m.paths = append(m.paths, Path{Addr: address(number, path), Plan: plan, Port: port})
		plan.Restarts, plan.Jumps = nil, nil // once for each member
	}
	m.wanted = &dxpuv1.DesiredState{NodeNumber: m.number}
	return m
}

// start starts the proxy, with the state on its disk.
func (m *Member) start() error {
	var err error
	if m.node, err = m.pool.NewNode(m.paths, func() { m.Restart(restartTime) }); err != nil {
		return err
	}
	if m.proxy, err = m.build(); err != nil {
		return err
	}
	m.run++
	m.observed = nil
	m.proxy.OnChange(m.changed())
	start(m.node, m.proxy.Controllers())
	if m.stored != nil {
		m.proxy.Apply(m.stored)
	}
	m.heartbeat()
	return nil
}

// Running reports whether the member's proxy runs.
func (m *Member) Running() bool { return !m.node.dead }

// restartTime is how long a proxy is away when a fault plan restarts it.
const restartTime = 100 * time.Millisecond

// Restart kills the proxy. It comes back after the given time, with its state on
// disk; a box has new GPUs then.
func (m *Member) Restart(after time.Duration) {
	if !m.Running() {
		return
	}
	m.node.Stop()
	m.observed = nil
	m.pool.at(m.pool.now+after, m.pool.manager, func() {
		if err := m.start(); err != nil {
			panic(err) // the same configuration has worked before
		}
	})
}

// Disturb changes what happens to the datagrams that the member sends, and when it
// restarts and its clock jumps. Restarts and jumps are in the plan of the first path
// only.
func (m *Member) Disturb(plan fault.Plan) {
	for i := range m.paths {
		m.paths[i].Plan = plan
		if err := m.node.Disturb(i, plan); err != nil {
			panic(err) // a member restarts
		}
		plan.Restarts, plan.Jumps = nil, nil
	}
}

// Slots returns the number of slots of the box.
func (b *Box) Slots() int { return len(b.gpus) }

// Fail kills the GPU of a slot.
func (b *Box) Fail(slot int) { b.gpus[slot].Inject(gpu.Kill) }

// heartbeatInterval is how often a member reports without a change.
const heartbeatInterval = time.Second

func (m *Member) heartbeat() {
	m.report()
	m.node.AfterFunc(heartbeatInterval, m.heartbeat)
}

// changed returns the function that reports a change of the running proxy, once
// for all changes of a moment.
func (m *Member) changed() func() {
	pending := false
	return func() {
		if pending {
			return
		}
		pending = true
		m.node.AfterFunc(0, func() {
			pending = false
			m.report()
		})
	}
}

// report sends the state of the proxy to the manager.
func (m *Member) report() {
	run, seen := m.run, m.proxy.Observe()
	m.pool.control(m.pool.manager, func() {
		if run != m.run || !m.Running() {
			return
		}
		m.observed = seen
		m.pool.reported(m)
	})
	for i, s := range seen.Slots {
		if s.Binding.GetState() == dxpuv1.BindingState_BINDING_STATE_ATTACHED {
			m.pool.attached(m, i, s.Binding.BindingId)
		}
	}
}

// push sends the member what the manager wants of it.
func (m *Member) push() {
	state := m.wanted
	if !m.Running() {
		return
	}
	m.pool.control(m.node, func() {
		if m.stored != nil && m.stored.Revision >= state.Revision {
			return // late
		}
		m.stored = state
		m.proxy.Apply(state)
	})
}

// slot returns the reported state of a slot, nil while it is not known.
func (m *Member) slot(i uint32) *dxpuv1.ObservedSlot {
	if m.observed == nil {
		return nil
	}
	return m.observed.Slots[i]
}

// Bindings returns the IDs of the bindings that the member's proxy has in its
// slots, "" for a free one.
func (m *Member) Bindings() []string {
	var out []string
	for _, s := range m.proxy.Observe().Slots {
		out = append(out, s.Binding.GetBindingId())
	}
	return out
}

// Idle reports whether no access of a program waits for a device.
func (h *Host) Idle() bool { return h.front.Host().Wake() == machine.Never }

// Attached returns the IDs of the bindings whose devices the host has.
func (h *Host) Attached() []string {
	var out []string
	for _, s := range h.proxy.Observe().Slots {
		if s.Binding.GetState() == dxpuv1.BindingState_BINDING_STATE_ATTACHED {
			out = append(out, s.Binding.BindingId)
		}
	}
	return out
}

// Open gives a driver the device in a slot.
func (h *Host) Open(slot int) (*embedded.Bus, error) { return h.front.Open(slot) }
