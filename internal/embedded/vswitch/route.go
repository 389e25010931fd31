package vswitch

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// here is the route of a TLP that ends in the switch.
var here = mapping.Route{Where: mapping.Here}

// FromHost routes a TLP that arrives at the upstream port. It converts a configuration
// request for a device to type 0 in place (section 7.3.3). The route is Here for a TLP
// that ends in the switch: a request to a port, and a request without a destination,
// which gets Unsupported Request. Transmit emits the answers.
func (s *Switch) FromHost(p *tlp.Packet) mapping.Route {
	if p.Type.Config() {
		return s.config(p)
	}
	r := s.router.FromHost(p)
	if r.Where == mapping.Unsupported {
		return s.refuse(Upstream, p)
	}
	return r
}

// SlotOf returns the slot to which a request of the host goes. ok is false if it goes to none.
func (s *Switch) SlotOf(p *tlp.Packet) (slot int, ok bool) {
	r := s.router.FromHost(p)
	return r.Slot, r.Where == mapping.ToSlot
}

// FromSlot routes a TLP that arrives at a downstream port: to the host, to the
// device of another slot (peer-to-peer), or Here, as FromHost does.
func (s *Switch) FromSlot(slot int, p *tlp.Packet) mapping.Route {
	r := s.router.FromSlot(slot, p)
	switch {
	case r.Where == mapping.Unsupported:
		return s.refuse(slot, p)
	case r.Where == mapping.Here && p.Code >= tlp.CodeAssertINTA && p.Code <= tlp.CodeDeassertINTD:
		s.interruptPin(slot, p.Code)
	}
	return r
}

// AllToHost reports whether a run of memory requests of a device goes to the host, see
// mapping.Router.
func (s *Switch) AllToHost(slot int, addr, n uint64) bool { return s.router.AllToHost(slot, addr, n) }

// config routes a configuration request. Type 0 is for the upstream port. Type 1 is for a
// downstream port if it names the bus inside the switch. Otherwise it goes to the port
// before the bus, as type 0 if that bus is the port's own.
func (s *Switch) config(p *tlp.Packet) mapping.Route {
	write := p.Type == tlp.CfgWr0 || p.Type == tlp.CfgWr1
	if p.Type == tlp.CfgRd0 || p.Type == tlp.CfgWr0 {
		if p.Target.Device() != 0 || p.Target.Function() != 0 {
			return s.refuse(Upstream, p)
		}
		if write {
			s.bus = p.Target.Bus()
		}
		return s.configPort(Upstream, p, write)
	}
	if inside := s.up.secondary(); inside != 0 && p.Target.Bus() == inside {
		if int(p.Target.Device()) >= len(s.down) || p.Target.Function() != 0 {
			return s.refuse(Upstream, p)
		}
		return s.configPort(int(p.Target.Device()), p, write)
	}
	r := s.router.FromHost(p)
	if r.Where != mapping.ToSlot {
		return s.refuse(Upstream, p)
	}
	if p.Target.Bus() == s.down[r.Slot].secondary() {
		if p.Target.Device() != 0 {
			return s.refuse(Upstream, p) // a link has device 0 only (section 7.3.1)
		}
		p.Type = tlp.CfgRd0
		if write {
			p.Type = tlp.CfgWr0
		}
	}
	return r
}

// configPort reads or writes a register of a port and answers.
func (s *Switch) configPort(slot int, p *tlp.Packet, write bool) mapping.Route {
	at := s.port(slot)
	c := tlp.Packet{
		Type: tlp.Cpl, Attr: p.Attr, Requester: p.Requester, Tag: p.Tag,
		Completer: s.id(slot), ByteCount: pcie.DW,
	}
	var data [pcie.DW]byte
	switch {
	case !write:
		c.Type, c.Length = tlp.CplD, 1
		binary.LittleEndian.PutUint32(data[:], at.space.Read(int(p.Register), pcie.DW))
	case len(p.Data) < pcie.DW || p.EP:
		return s.refuse(Upstream, p) // poisoned: section 2.7.2.1
	default:
		s.writePort(slot, p.Register, p.FirstBE, binary.LittleEndian.Uint32(p.Data))
		c.Completer = s.id(slot) // the write may have changed it
	}
	s.send(Upstream, c, data)
	return here
}
