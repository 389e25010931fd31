// Package drivertest is a computer in one process for tests of drivers and for
// demonstrations without a network: an embedded host, a virtual switch and devices.
package drivertest

import (
	"fmt"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/internal/embedded"
	"github.com/dxpu-project/dxpu/internal/embedded/rootcomplex"
	"github.com/dxpu-project/dxpu/internal/embedded/vswitch"
	"github.com/dxpu-project/dxpu/tlp"
)

// Config describes a system. The zero value is small and sensible.
type Config struct {
	Slots  int              // 0: 4
	Memory int              // bytes of host memory at bus address 1 MiB; 0: 64 MiB
	Host   rootcomplex.Spec // without Memory
	Enum   *rootcomplex.EnumSpec
	// Filter sees every TLP between a slot and the switch and drops those for
	// which it returns false. It is called from the loop.
	Filter func(slot int, up bool, p *tlp.Packet) bool
}

// System is a running computer.
type System struct {
	Host *embedded.Computer
	Root *rootcomplex.Function // what enumeration found

	enum   rootcomplex.EnumSpec
	filter func(slot int, up bool, p *tlp.Packet) bool
	start  time.Time
	kick   chan struct{}
	stop   chan struct{}
	loop   sync.WaitGroup

	mu      sync.Mutex // guards the fields below; held while machines run
	sw      *vswitch.Switch
	devices []device.Device // by slot
}

// New starts a system with empty slots and enumerates its bus. Close ends it.
func New(cfg Config) (*System, error) {
	if cfg.Slots == 0 {
		cfg.Slots = 4
	}
	if cfg.Memory == 0 {
		cfg.Memory = 64 << 20
	}
	if cfg.Host.MemoryBase == 0 {
		cfg.Host.MemoryBase = 1 << 20
	}
	s := &System{
		enum: rootcomplex.DefaultEnumSpec(), filter: cfg.Filter, start: time.Now(),
		kick: make(chan struct{}, 1), stop: make(chan struct{}), devices: make([]device.Device, cfg.Slots),
	}
	if cfg.Enum != nil {
		s.enum = *cfg.Enum
	}
	var err error
	if s.sw, err = vswitch.New(vswitch.Spec{Slots: cfg.Slots, TenBitTags: true}); err != nil {
		return nil, err
	}
	if s.Host, err = embedded.New(cfg.Host, cfg.Memory, s.wake); err != nil {
		return nil, err
	}
	s.loop.Go(s.run)
	if s.Root, err = rootcomplex.Enumerate(s.Host, s.enum); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close stops the system. The waits of drivers end with driver.ErrClosed.
func (s *System) Close() {
	_ = s.Host.Close() // always nil
	close(s.stop)
	s.loop.Wait()
}

// port is the function of a slot's downstream port.
func (s *System) port(slot int) *rootcomplex.Function { return s.Root.Children[0].Children[slot] }

// Plug puts a device into a slot and enumerates it, as an OS does when the slot
// interrupts.
func (s *System) Plug(slot int, d device.Device) error {
	s.mu.Lock()
	s.devices[slot] = d
	s.sw.SetPresence(slot, true)
	s.sw.SetLink(slot, true)
	s.mu.Unlock()
	if n, ok := d.(device.Notifier); ok {
		n.SetNotify(s.wake)
	}
	s.wake()
	return rootcomplex.Rescan(s.Host, s.enum, s.port(slot))
}

// Unplug removes the device without a warning and then tells its drivers that it is
// lost, as an OS does when the slot interrupts.
func (s *System) Unplug(slot int) {
	s.mu.Lock()
	s.sw.SetPresence(slot, false)
	s.devices[slot] = nil
	s.mu.Unlock()
	s.Host.Unplugged(s.port(slot).Secondary)
	s.port(slot).Children = nil
	s.wake()
}

// Open returns the bus of the device in a slot.
func (s *System) Open(slot int) (*embedded.Bus, error) {
	if len(s.port(slot).Children) == 0 {
		return nil, fmt.Errorf("drivertest: slot %d is empty", slot)
	}
	return s.Host.Open(s.port(slot).Children[0])
}

// Do calls f while no machine runs.
func (s *System) Do(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	s.wake()
}

func (s *System) wake() {
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// run moves TLPs until there are none, then waits for a kick or a deadline.
func (s *System) run() {
	for {
		s.mu.Lock()
		for s.step(time.Since(s.start)) {
		}
		wake := s.nextWake() - time.Since(s.start)
		s.mu.Unlock()
		t := time.NewTimer(max(wake, 0))
		select {
		case <-s.kick:
		case <-t.C:
		case <-s.stop:
			t.Stop()
			return
		}
		t.Stop()
	}
}

func (s *System) nextWake() time.Duration {
	wake := s.Host.Wake()
	for _, d := range s.devices {
		if d != nil {
			wake = min(wake, d.Wake())
		}
	}
	return wake
}

// step calls Transmit of each machine once and reports whether anything moved.
func (s *System) step(now time.Duration) (moved bool) {
	s.Host.Transmit(now, func(p *tlp.Packet) bool {
		moved = true
		q := *p // routing may convert it
		s.deliver(now, s.sw.FromHost(&q), &q)
		return true
	})
	s.sw.Transmit(func(to int, p *tlp.Packet) bool {
		moved = true
		if to == vswitch.Upstream {
			s.Host.Receive(now, p)
		} else {
			s.toSlot(now, to, p)
		}
		return true
	})
	for slot, d := range s.devices {
		if d != nil && s.stepDevice(now, slot, d) {
			moved = true
		}
	}
	for e, ok := s.sw.NextEvent(); ok; e, ok = s.sw.NextEvent() {
		if d := s.devices[e.Slot]; d != nil && e.Kind == vswitch.EventReset {
			d.Reset(now, device.ConventionalReset)
			moved = true
		}
	}
	return moved
}

func (s *System) stepDevice(now time.Duration, slot int, d device.Device) (moved bool) {
	d.Transmit(now, func(p *tlp.Packet) bool {
		moved = true
		if s.filter == nil || s.filter(slot, true, p) {
			q := *p
			s.deliver(now, s.sw.FromSlot(slot, &q), &q)
		}
		return true
	})
	for job, ok := d.NextJob(); ok; job, ok = d.NextJob() {
		for job.Run() {
		}
		d.FinishJob(now, job)
		moved = true
	}
	return moved
}

func (s *System) deliver(now time.Duration, r mapping.Route, p *tlp.Packet) {
	switch r.Where {
	case mapping.ToHost:
		s.Host.Receive(now, p)
	case mapping.ToSlot:
		s.toSlot(now, r.Slot, p)
	case mapping.ToAll:
		for slot := range s.devices {
			s.toSlot(now, slot, p)
		}
	case mapping.Here, mapping.Unsupported: // ended in the switch
	}
}

func (s *System) toSlot(now time.Duration, slot int, p *tlp.Packet) {
	if d := s.devices[slot]; d != nil && (s.filter == nil || s.filter(slot, false, p)) {
		d.Receive(now, p)
	}
}
