package sim

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/agent/agenttest"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// PoolSpec describes a pool of hosts and boxes. All of one kind are equal.
type PoolSpec struct {
	Hosts, Boxes        int
	HostSlots, BoxSlots int
	GPU                 gpu.Spec
	Paths               int // of each member; 0: one
	Plan                fault.Plan
	// HostPort and BoxPort are the ports of the switch before each member; their links
	// have the same bandwidth in the other direction, before the plan's own bound.
	HostPort, BoxPort Port
	Memory            int // of each host in bytes; 0: 64 MiB
	// ControlDelay is the time of a message between the manager and a member,
	// ControlLoss the share of them that is lost.
	ControlDelay time.Duration
	ControlLoss  float64
	// Program runs as a task of the host for each device that is attached. It
	// ends when the device is lost. nil: none.
	Program func(t Tenant) error
	Seed    uint64
}

// Tenant is a program with a device.
type Tenant struct {
	Host    *Host
	Slot    int
	Binding string // ID
	Rand    *rand.Rand
}

// Pool is a world of hosts and boxes with a manager. The manager is small: it
// places bindings with package placement and keeps the order of the pool's
// protocol, but it has no leases, tenants or store.
type Pool struct {
	*World
	Hosts    []*Host
	Boxes    []*Box
	Bindings []*Binding // that are not over
	// Lost counts bindings that were lost with their device or link, Failures
	// tells what tenants' programs reported.
	Lost     int
	Failures []error

	spec    PoolSpec
	manager *Node
	epochs  map[placement.Ref]uint64 // of the newest binding of a box slot
	made    uint64
	tenants map[string]bool          // by binding: its program was started
	places  map[string]placement.Ref // of every binding so far, by ID
}

// phase is how far the manager is with a binding.
//
//	preparing ──> connecting ──> serving
//	    │             │             │
//	    └─────────────┴─> closing <─┘      the host is to let go
//	                        │
//	                      freeing ──> (gone) the box is to let go
type phase uint8

const (
	preparing  phase = iota // the box has been told
	connecting              // the host has been told too
	serving                 // the host reports the device as attached
	closing
	freeing
)

// String returns the name of the phase.
func (p phase) String() string {
	return [...]string{"preparing", "connecting", "serving", "closing", "freeing"}[p]
}

// Binding is a host slot and a box slot that the manager has joined.
type Binding struct {
	ID     string
	Host   *Host
	Box    *Box
	spec   agenttest.Binding
	phase  phase
	wanted bool // lost bindings are replaced while they are wanted
}

// String describes the binding for messages.
func (b *Binding) String() string {
	return fmt.Sprintf("%s %s/%d %s/%d %v", b.ID, b.Host.Name, b.spec.Host.Slot, b.Box.Name, b.spec.Box.Slot, b.phase)
}

// NewPool makes a pool without bindings.
func NewPool(spec PoolSpec) (*Pool, error) {
	spec.Paths = max(spec.Paths, 1)
	p := &Pool{
		World: NewWorld(spec.Seed), spec: spec,
		epochs: map[placement.Ref]uint64{}, tenants: map[string]bool{}, places: map[string]placement.Ref{},
	}
	var err error
	if p.manager, err = p.NewNode(nil, nil); err != nil {
		return nil, err
	}
	for i := range spec.Hosts {
		p.Hosts = append(p.Hosts, p.newHost(i))
	}
	for i := range spec.Boxes {
		p.Boxes = append(p.Boxes, p.newBox(i))
	}
	for _, m := range p.members() {
		if err := m.start(); err != nil {
			p.Close()
			return nil, fmt.Errorf("sim: %s: %w", m.Name, err)
		}
	}
	return p, nil
}

func (p *Pool) members() []*Member {
	var out []*Member
	for _, b := range p.Boxes {
		out = append(out, &b.Member)
	}
	for _, h := range p.Hosts {
		out = append(out, &h.Member)
	}
	return out
}

// Settled reports whether the manager and the members agree and no binding is
// on its way.
func (p *Pool) Settled() bool {
	for _, b := range p.Bindings {
		if b.phase != serving {
			return false
		}
	}
	for _, m := range p.members() {
		if !m.Running() || m.observed.GetAppliedRevision() != m.wanted.Revision {
			return false
		}
	}
	return true
}

// Place returns the box slot of a binding, also of one that is over.
func (p *Pool) Place(binding string) placement.Ref { return p.places[binding] }

// Attach asks for a GPU for a host. It reports whether there was one.
func (p *Pool) Attach(h *Host) (*Binding, bool) {
	slot, ok := p.freeSlot(h)
	if !ok {
		return nil, false
	}
	d := placement.Place(p.inventory(), placement.Reserve{}, placement.Request{Count: 1})
	if !d.OK() {
		return nil, false
	}
	ref := d.Picks[0]
	box := p.Boxes[slices.IndexFunc(p.Boxes, func(b *Box) bool { return b.Name == ref.Box })]
	p.made++
	p.epochs[ref]++
	b := &Binding{ID: fmt.Sprintf("b-%d", p.made), Host: h, Box: box, wanted: true}
	b.spec = agenttest.Binding{
		ID: b.ID, Epoch: p.epochs[ref], Domain: h.Name + "/0", Host: h.node.end(h.number, slot), Box: box.node.end(box.number, ref.Slot),
	}
	for range 32 / 8 {
		b.spec.Secret = binary.LittleEndian.AppendUint64(b.spec.Secret, p.manager.rng.Uint64())
	}
	p.Bindings = append(p.Bindings, b)
	p.places[b.ID] = ref
	p.tell(&box.Member)
	return b, true
}

// Detach ends a binding.
func (p *Pool) Detach(b *Binding) {
	b.wanted = false
	p.end(b)
}

// end makes the host let go, and then the box.
func (p *Pool) end(b *Binding) {
	if b.phase < closing {
		b.phase = closing
		p.tell(&b.Host.Member)
	}
}

func (p *Pool) freeSlot(h *Host) (uint32, bool) {
	host := placement.Host{ID: h.Name, Usable: h.Running()}
	for i := range p.spec.HostSlots {
		used := slices.ContainsFunc(p.Bindings, func(b *Binding) bool { return b.Host == h && b.spec.Host.Slot == uint32(i) })
		host.Slots = append(host.Slots, placement.HostSlot{Slot: uint32(i), Domain: h.Name, Free: !used})
	}
	d := placement.PlaceHost([]placement.Host{host}, placement.HostRequest{Count: 1})
	if !d.OK() {
		return 0, false
	}
	return d.Slots[0], true
}

// inventory is what the manager knows of the GPUs.
func (p *Pool) inventory() []placement.Box {
	used := map[placement.Ref]bool{}
	for _, b := range p.Bindings {
		used[placement.Ref{Box: b.Box.Name, Slot: b.spec.Box.Slot}] = true
	}
	var out []placement.Box
	for _, b := range p.Boxes {
		box := placement.Box{ID: b.Name, Kind: placement.PCIeSwitch}
		for i := range uint32(p.spec.BoxSlots) {
			s := b.slot(i)
			box.GPUs = append(box.GPUs, placement.GPU{
				Slot: i, Model: s.GetDevice().GetModel(), Memory: s.GetDevice().GetMemoryBytes(),
				Usable: s.GetHealth() == dxpuv1.Health_HEALTH_OK, Free: !used[placement.Ref{Box: b.Name, Slot: i}],
			})
		}
		out = append(out, box)
	}
	return out
}

// tell works out what a member is to do and sends it.
func (p *Pool) tell(m *Member) {
	var bindings []agenttest.Binding
	for _, b := range p.Bindings {
		if m == &b.Box.Member && b.phase < freeing || m == &b.Host.Member && (b.phase == connecting || b.phase == serving) {
			bindings = append(bindings, b.spec)
		}
	}
	m.wanted = agenttest.Desired(m.number, m.wanted.Revision+1, bindings...)
	m.push()
}

// control sends a message between the manager and a member.
func (p *Pool) control(to *Node, do func()) {
	if p.spec.ControlLoss > 0 && p.manager.rng.Float64() < p.spec.ControlLoss {
		return
	}
	p.at(p.now+p.spec.ControlDelay, to, do)
}

// reported makes the manager go on with the bindings of a member.
func (p *Pool) reported(m *Member) {
	if m.observed.AppliedRevision < m.wanted.Revision {
		m.push() // the message may have been lost
	}
	for _, b := range slices.Clone(p.Bindings) {
		if m == &b.Host.Member || m == &b.Box.Member {
			p.advance(b)
		}
	}
}

// advance takes the next step of a binding that the reports allow.
func (p *Pool) advance(b *Binding) {
	host, box := b.state(&b.Host.Member, b.spec.Host.Slot), b.state(&b.Box.Member, b.spec.Box.Slot)
	if b.phase < closing && (ended(host) || ended(box)) {
		p.Lost++
		p.end(b)
		return
	}
	switch {
	case b.phase == preparing && (box == dxpuv1.BindingState_BINDING_STATE_READY || box == dxpuv1.BindingState_BINDING_STATE_ATTACHED):
		b.phase = connecting
		p.tell(&b.Host.Member)
	case b.phase == connecting && host == dxpuv1.BindingState_BINDING_STATE_ATTACHED:
		b.phase = serving
	case b.phase == closing && b.gone(&b.Host.Member, host):
		b.phase = freeing
		p.tell(&b.Box.Member)
	case b.phase == freeing && b.gone(&b.Box.Member, box):
		p.Bindings = slices.DeleteFunc(p.Bindings, func(o *Binding) bool { return o == b })
		if b.wanted {
			p.Attach(b.Host)
		}
	}
}

func ended(s dxpuv1.BindingState) bool {
	return s == dxpuv1.BindingState_BINDING_STATE_FAILED || s == dxpuv1.BindingState_BINDING_STATE_LOST
}

// state returns what a member reports of the binding, unspecified for nothing.
func (b *Binding) state(m *Member, slot uint32) dxpuv1.BindingState {
	if s := m.slot(slot); s.GetBinding().GetBindingId() == b.ID {
		return s.Binding.State
	}
	return dxpuv1.BindingState_BINDING_STATE_UNSPECIFIED
}

// gone reports whether a member has nothing left of the binding: it has applied
// a state without it and does not report it.
func (b *Binding) gone(m *Member, s dxpuv1.BindingState) bool {
	return m.observed != nil && m.observed.AppliedRevision == m.wanted.Revision && s == dxpuv1.BindingState_BINDING_STATE_UNSPECIFIED
}

// attached starts the program of a device that has appeared in a host.
func (p *Pool) attached(m *Member, slot int, binding string) {
	i := slices.IndexFunc(p.Hosts, func(h *Host) bool { return &h.Member == m })
	key := fmt.Sprint(m.Name, m.run, binding)
	if i < 0 || p.spec.Program == nil || p.tenants[key] {
		return
	}
	p.tenants[key] = true
	t := Tenant{Host: p.Hosts[i], Slot: slot, Binding: binding, Rand: rand.New(rand.NewPCG(m.node.rng.Uint64(), 0))}
	m.node.Go(func() {
		if err := p.spec.Program(t); err != nil {
			p.Failures = append(p.Failures, fmt.Errorf("%s: %s: %w", t.Host.Name, binding, err))
		}
	})
}
