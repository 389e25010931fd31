package hostproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/internal/embedded"
	"github.com/dxpu-project/dxpu/internal/embedded/rootcomplex"
	"github.com/dxpu-project/dxpu/internal/embedded/vswitch"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// Embedded shows devices to the embedded host: a root complex in Go above a
// virtual switch, for benchmarks, tests and machines without a VMM. At start it
// enumerates the switch with its empty slots, as firmware does at boot (paper,
// section 3.3). It enumerates each device when it appears.
type Embedded struct {
	spec EmbeddedSpec
	host *embedded.Computer
	enum rootcomplex.EnumSpec

	owner *Proxy // set by start
	root  *rootcomplex.Function

	mu    sync.Mutex              // guards found
	found []*rootcomplex.Function // by slot: the device, once it has been enumerated

	// Guarded by the group:
	sw    *vswitch.Switch
	entry engine.Entry    // of the pump that is under way
	owing []*embeddedPort // those with reads of their device
	timer engine.Timer    // calls kick
	armed time.Duration   // when it fires; machine.Never: not armed
}

// EmbeddedSpec describes an embedded host. Zero values stand for the defaults.
type EmbeddedSpec struct {
	Memory int // bytes of host memory; default 64 MiB
	Host   rootcomplex.Spec
	Enum   *rootcomplex.EnumSpec
}

const (
	defaultMemory = 64 << 20
	memoryBase    = 1 << 20 // bus address of host memory, where PCs have theirs
)

// NewEmbedded makes the front for one host proxy.
func NewEmbedded(spec EmbeddedSpec) *Embedded {
	spec.Memory, spec.Host.MemoryBase = cmp.Or(spec.Memory, defaultMemory), cmp.Or(spec.Host.MemoryBase, memoryBase)
	// The network carries these sizes, whatever the enumeration writes into Device Control.
	spec.Host.MaxPayload = cmp.Or(spec.Host.MaxPayload, pcie.MaxPayload)
	spec.Host.MaxRead = cmp.Or(spec.Host.MaxRead, pcie.MaxPayload)
	e := &Embedded{spec: spec, enum: rootcomplex.DefaultEnumSpec(), armed: machine.Never}
	if spec.Enum != nil {
		e.enum = *spec.Enum
	}
	return e
}

// start powers the host on, with empty slots.
func (f *Embedded) start(h *Proxy) error {
	f.owner = h
	f.found = make([]*rootcomplex.Function, len(h.slots))
	var err error
	if f.sw, err = vswitch.New(vswitch.Spec{Slots: len(h.slots), MaxPayload: f.enum.MaxPayload, TenBitTags: true}); err != nil {
		return err
	}
	h.router = f.sw
	f.spec.Host.Timeout = cmp.Or(f.spec.Host.Timeout, h.cfg.CompletionTimeout)
	f.spec.Host.Slack, f.spec.Host.TimedOut = f.slack, f.timedOut
	if f.host, err = embedded.New(f.spec.Host, f.spec.Memory, f.kick); err != nil {
		return err
	}
	if h.waiter != nil {
		f.host.SetWaiter(h.waiter)
	}
	if s, ok := h.fabric.(embedded.Scheduler); ok {
		f.host.SetScheduler(s)
	}
	if f.root, err = rootcomplex.Enumerate(f.host, f.enum); err != nil {
		return fmt.Errorf("hostproxy: enumerate the virtual switch: %w", err)
	}
	return nil
}

// Host is the root complex with its memory.
func (f *Embedded) Host() *embedded.Computer { return f.host }

// Bus draws the enumerated functions, as "lspci -tv" does. Do not call it while
// devices appear or disappear.
func (f *Embedded) Bus() string { return f.root.String() }

// Open opens the device in a slot for a driver. It may be called at any time,
// even while devices appear and disappear.
func (f *Embedded) Open(slot int) (*embedded.Bus, error) {
	f.mu.Lock() // held until the host knows the bus, so that a removal finds it
	defer f.mu.Unlock()
	if f.found[slot] == nil {
		return nil, fmt.Errorf("hostproxy: slot %d is empty", slot)
	}
	return f.host.Open(f.found[slot])
}

// find sets the device of a slot, nil for none.
func (f *Embedded) find(slot int, fn *rootcomplex.Function) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.found[slot] = fn
}

// port returns the enumerated downstream port of a slot.
func (f *Embedded) port(slot int) *rootcomplex.Function { return f.root.Children[0].Children[slot] }

func (f *Embedded) stop() {}

func (f *Embedded) plug(ctx context.Context, s *slot) (plugged, error) {
	p := newEmbeddedPort(f, s)
	e := s.host.group.Enter()
	s.port = p
	f.sw.SetPresence(s.index, true)
	f.sw.SetLink(s.index, true)
	s.host.group.Leave(e)
	// Enumeration makes tens of requests, one after the other. The end of ctx
	// cancels them, instead of a timeout for each.
	stop := context.AfterFunc(ctx, func() {
		e := s.host.group.Enter()
		p.DeviceLost(e)
		s.host.group.Leave(e)
	})
	err := rootcomplex.Rescan(f.host, f.enum, f.port(s.index))
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err == nil && len(f.port(s.index).Children) == 0 {
		err = errors.New("nothing answers there")
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("hostproxy: enumerate slot %d: %w", s.index, err)
	}
	f.find(s.index, f.port(s.index).Children[0])
	s.Status.Step("enumerated")
	return p, nil
}

// kick transmits the host's TLPs. Users of the host call it without having entered
// the group.
func (f *Embedded) kick() {
	g := f.owner.group
	e := g.Enter()
	f.pump(e)
	g.Leave(e)
}

// slack returns the time by which a request may exceed its Completion Timeout: that
// of the slowest link, because the root complex does not know which slot a request
// went to. A box that was not heard since the deadline is left to its link: no VMM waits here.
func (f *Embedded) slack(o transaction.Overdue) (most time.Duration) {
	for _, s := range f.owner.slots {
		most = max(most, s.slack(f.entry, o.Timeout))
		if s.binding != nil && !s.gone {
			most = max(most, s.binding.Unheard(f.entry, o.Deadline))
		}
	}
	return most + f.entry.StoodStill(o.Deadline-o.Timeout)
}

// timedOut counts an access that a device has not answered in time.
func (f *Embedded) timedOut(access *tlp.Packet) {
	if slot, ok := f.sw.SlotOf(access); ok {
		f.owner.slots[slot].counters.timeouts.Add(1)
	}
}

// arm sets the timer for the root complex. The slots' bindings cannot do that: a
// request may wait for its timeout after its slot has lost its binding. Without
// outstanding requests the timer is not set.
func (f *Embedded) arm(e engine.Entry) {
	wake := f.host.Wake()
	if wake >= f.armed {
		return // an early call does no harm
	}
	f.armed = wake
	if wait := max(wake-e.Now(), 0); f.timer == nil {
		f.timer = f.owner.fabric.AfterFunc(wait, f.expire)
	} else {
		f.timer.Reset(wait)
	}
}

func (f *Embedded) expire() {
	g := f.owner.group
	e := g.Enter()
	f.armed = machine.Never
	f.pump(e)
	g.Leave(e)
}

// pump moves TLPs between the root complex, the switch and the slots until
// there are none, or a slot's link is full.
func (f *Embedded) pump(e engine.Entry) {
	f.entry = e
	all := true
	for moved := true; moved; {
		moved = false
		all = f.host.Transmit(e.Now(), func(p *tlp.Packet) bool {
			q := *p // routing may convert it
			sent := f.down(e, f.sw.FromHost(&q), &q)
			moved = moved || sent
			return sent
		})
		f.sw.Transmit(func(to int, p *tlp.Packet) bool {
			sent := true
			if to == vswitch.Upstream {
				f.host.Receive(e.Now(), p)
			} else {
				sent = f.owner.slots[to].forward(e, p)
			}
			moved = moved || sent
			return sent
		})
	}
	if all { // a completion does not pass an earlier store of the host (section 2.4.1)
		f.owing = slices.DeleteFunc(f.owing, func(p *embeddedPort) bool { return p.answer(e) })
	}
	for _, ok := f.sw.NextEvent(); ok; _, ok = f.sw.NextEvent() {
		// No TLP carries a hot reset or slot power to the box: the host resets a
		// function with FLR, and the box resets a device between two bindings.
		f.owner.log.Debug("reset or power of a slot is not carried over the network")
	}
	f.arm(e)
}

// down sends a TLP to where the switch routed it.
func (f *Embedded) down(e engine.Entry, r mapping.Route, p *tlp.Packet) bool {
	switch r.Where {
	case mapping.ToSlot:
		return f.owner.slots[r.Slot].forward(e, p)
	case mapping.ToAll:
		for _, s := range f.owner.slots {
			s.forward(e, p)
		}
	}
	return true // answered or dropped by the switch
}
