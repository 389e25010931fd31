package hostproxy

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/internal/embedded"
	"github.com/dxpu-project/dxpu/internal/embedded/rootcomplex"
	"github.com/dxpu-project/dxpu/internal/embedded/vswitch"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// Embedded shows devices to the embedded host: a root complex in Go above a
// virtual switch, for benchmarks, tests and machines without a VMM. At its
// start it enumerates the switch with its empty slots, as firmware does at boot
// (paper, section 3.3); each device that appears later is enumerated then.
type Embedded struct {
	spec EmbeddedSpec
	host *embedded.Host
	enum rootcomplex.EnumSpec

	owner *Host // set by start, before anything else
	root  *rootcomplex.Function

	mu    sync.Mutex              // guards found
	found []*rootcomplex.Function // by slot: the device, once it has been enumerated

	// With the group entered:
	sw    *vswitch.Switch
	timer *time.Timer   // calls kick
	armed time.Duration // when it does; never: not armed
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
	if spec.Memory == 0 {
		spec.Memory = defaultMemory
	}
	if spec.Host.MemoryBase == 0 {
		spec.Host.MemoryBase = memoryBase
	}
	e := &Embedded{spec: spec, enum: rootcomplex.DefaultEnumSpec(), armed: machine.Never}
	if spec.Enum != nil {
		e.enum = *spec.Enum
	}
	return e
}

// start powers the host on: the switch is there, its slots are empty.
func (e *Embedded) start(h *Host) error {
	e.owner = h
	e.found = make([]*rootcomplex.Function, len(h.slots))
	var err error
	if e.sw, err = vswitch.New(vswitch.Spec{Slots: len(h.slots), MaxPayload: e.enum.MaxPayload, TenBitTags: true}); err != nil {
		return err
	}
	h.router = e.sw
	if e.spec.Host.Timeout == 0 {
		e.spec.Host.Timeout = h.cfg.CompletionTimeout
	}
	if e.host, err = embedded.New(e.spec.Host, e.spec.Memory, e.kick); err != nil {
		return err
	}
	e.host.SetWaiter(h.fabric)
	if e.root, err = rootcomplex.Enumerate(e.host, e.enum); err != nil {
		return fmt.Errorf("hostproxy: enumerate the virtual switch: %w", err)
	}
	return nil
}

// Host is the root complex with its memory.
func (e *Embedded) Host() *embedded.Host { return e.host }

// Bus draws what has been enumerated, as "lspci -tv" does. Not while devices
// come and go.
func (e *Embedded) Bus() string { return e.root.String() }

// Open gives a driver the device in a slot. It may be called at any time, also
// while devices come and go.
func (e *Embedded) Open(slot int) (*embedded.Bus, error) {
	e.mu.Lock() // until the host knows the bus: a removal finds it
	defer e.mu.Unlock()
	if e.found[slot] == nil {
		return nil, fmt.Errorf("hostproxy: slot %d is empty", slot)
	}
	return e.host.Open(e.found[slot])
}

// find notes the device of a slot, nil for none.
func (e *Embedded) find(slot int, fn *rootcomplex.Function) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.found[slot] = fn
}

// port is the downstream port of a slot, as enumeration found it.
func (e *Embedded) port(slot int) *rootcomplex.Function { return e.root.Children[0].Children[slot] }

func (e *Embedded) plug(ctx context.Context, s *slot) (plugged, error) {
	p := &embeddedPort{front: e, slot: s}
	s.host.group.Enter()
	s.port = p
	e.sw.SetPresence(s.index, true)
	e.sw.SetLink(s.index, true)
	s.host.group.Leave()
	// Enumeration makes tens of requests, one after the other. Nobody waits for
	// each of them to time out when it is no longer wanted.
	stop := context.AfterFunc(ctx, func() {
		p.lost(s.host.group.Enter())
		s.host.group.Leave()
	})
	err := rootcomplex.Rescan(e.host, e.enum, e.port(s.index))
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err == nil && len(e.port(s.index).Children) == 0 {
		err = errors.New("nothing answers there")
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("hostproxy: enumerate slot %d: %w", s.index, err)
	}
	e.find(s.index, e.port(s.index).Children[0])
	s.status.Step("enumerated")
	return p, nil
}

// kick lets what the host has to say go out. It is called by whoever uses the
// host, without the group.
func (e *Embedded) kick() {
	g := e.owner.group
	now := g.Enter()
	e.pump(now)
	g.Leave()
}

// arm makes kick be called when the root complex wants it. The slots' bindings
// cannot see to that: a request may wait for its timeout after its slot has lost
// its binding. Nothing is armed while nothing is outstanding.
func (e *Embedded) arm(now time.Duration) {
	wake := e.host.Wake()
	if wake >= e.armed {
		return // a call that comes early does no harm
	}
	e.armed = wake
	if wait := max(wake-now, 0); e.timer == nil {
		e.timer = time.AfterFunc(wait, e.expire)
	} else {
		e.timer.Reset(wait)
	}
}

func (e *Embedded) expire() {
	g := e.owner.group
	now := g.Enter()
	e.armed = machine.Never
	e.pump(now)
	g.Leave()
}

// pump moves TLPs between the root complex, the switch and the slots until
// there are none, or a slot's link is full.
func (e *Embedded) pump(now time.Duration) {
	for moved := true; moved; {
		moved = false
		e.host.Transmit(now, func(p *tlp.Packet) bool {
			q := *p // routing may convert it
			sent := e.down(now, e.sw.FromHost(&q), &q)
			moved = moved || sent
			return sent
		})
		e.sw.Transmit(func(to int, p *tlp.Packet) bool {
			sent := true
			if to == vswitch.Upstream {
				e.host.Receive(now, p)
			} else {
				sent = e.owner.slots[to].forward(now, p)
			}
			moved = moved || sent
			return sent
		})
	}
	for _, ok := e.sw.NextEvent(); ok; _, ok = e.sw.NextEvent() {
		// A hot reset or slot power has no TLP that could carry it to the box:
		// the host resets a function with FLR, and a device is reset when it
		// changes hands.
		e.owner.log.Debug("reset or power of a slot is not carried over the network")
	}
	e.arm(now)
}

// down sends a TLP to where the switch routed it.
func (e *Embedded) down(now time.Duration, r mapping.Route, p *tlp.Packet) bool {
	switch r.Where {
	case mapping.ToSlot:
		return e.owner.slots[r.Slot].forward(now, p)
	case mapping.ToAll:
		for _, s := range e.owner.slots {
			s.forward(now, p)
		}
	}
	return true // answered or dropped by the switch
}

// embeddedPort is a slot as the embedded host sees it.
type embeddedPort struct {
	front *Embedded
	slot  *slot
}

var _ plugged = (*embeddedPort)(nil)

func (p *embeddedPort) fromDevice(now time.Duration, t *tlp.Packet) bool {
	p.front.host.Receive(now, t)
	return true
}

func (p *embeddedPort) pump(now time.Duration) { p.front.pump(now) }

// wake: the front has a timer for the whole host.
func (p *embeddedPort) wake() time.Duration { return machine.Never }

// lost is a surprise removal: the drivers learn it at once.
func (p *embeddedPort) lost(now time.Duration) {
	p.remove()
	p.front.pump(now)
}

func (p *embeddedPort) remove() {
	p.front.find(p.slot.index, nil)
	p.front.sw.SetPresence(p.slot.index, false)
	p.front.host.Unplugged(p.front.port(p.slot.index).Secondary)
}

// unplug: the embedded host's drivers let go when they are told.
func (p *embeddedPort) unplug(context.Context) error { return nil }

// held and inUse: enumeration leaves every function bus master, so that nothing
// but traffic shows who uses it.
func (p *embeddedPort) held() bool    { return false }
func (p *embeddedPort) inUse() string { return "" }

func (p *embeddedPort) close() {
	g := p.slot.host.group
	g.Enter()
	p.remove()
	g.Leave()
	p.front.port(p.slot.index).Children = nil
}
