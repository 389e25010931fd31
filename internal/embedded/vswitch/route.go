package vswitch

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

var toHost = Route{Where: mapping.ToHost}

// FromHost routes a TLP that arrives at the upstream port. A configuration
// request that leaves towards a device is converted to type 0 in place (section
// 7.3.3). Requests to the ports themselves are answered (Here); those that
// nobody takes are answered with Unsupported Request, both through Transmit.
func (s *Switch) FromHost(p *tlp.Packet) Route {
	switch {
	case p.Type.Config():
		return s.config(p)
	case p.Type.Memory():
		return s.downByAddress(p)
	case p.Type.Completion():
		if slot, ok := s.slotOf(p.Requester.Bus()); ok && s.down[slot].active {
			return Route{mapping.ToSlot, slot}
		}
		s.counters.Unexpected++
		return Route{Where: mapping.Unsupported}
	case p.Type.Message():
		return s.downMessage(p)
	}
	return s.refuse(Upstream, p) // I/O: the bridges have no I/O windows
}

// FromSlot routes a TLP that arrives at a downstream port: to the host, to the
// device of another slot (peer-to-peer), or nowhere.
func (s *Switch) FromSlot(slot int, p *tlp.Packet) Route {
	switch {
	case p.Type.Memory():
		return s.upByAddress(slot, p)
	case p.Type.Completion():
		return s.upByID(slot, p, p.Requester, acsCompletionRedirect)
	case p.Type.Message():
		return s.upMessage(slot, p)
	}
	return s.refuse(slot, p) // configuration and I/O requests never go upstream
}

func (s *Switch) downByAddress(p *tlp.Packet) Route {
	n := uint64(p.Length) * pcie.DW
	if s.up.claims(p.Addr, n) {
		if slot, ok := s.slotAt(p.Addr, n); ok && s.down[slot].active {
			return Route{mapping.ToSlot, slot}
		}
	}
	return s.refuse(Upstream, p)
}

func (s *Switch) downMessage(p *tlp.Packet) Route {
	switch p.Routing {
	case tlp.RouteBroadcast:
		return Route{Where: mapping.ToAll}
	case tlp.RouteByID:
		if slot, ok := s.slotOf(p.Target.Bus()); ok && s.down[slot].active {
			return Route{mapping.ToSlot, slot}
		}
	case tlp.RouteByAddress:
		return s.downByAddress(p)
	case tlp.RouteLocal:
		return Route{Where: mapping.Here}
	}
	return s.refuse(Upstream, p)
}

// upByAddress: an address in the window of another port is a peer's; one in
// this port's own window, or in the upstream port's windows but behind no port,
// has nowhere to go; all others are the host's (PCI-to-PCI Bridge Architecture
// Specification, section 4.2). Access Control Services may send peers' requests
// to the host instead (section 6.12.1.1).
func (s *Switch) upByAddress(slot int, p *tlp.Packet) Route {
	d := &s.down[slot]
	n := uint64(p.Length) * pcie.DW
	if !d.master || !d.active {
		return s.refuse(slot, p)
	}
	if peer, ok := s.slotAt(p.Addr, n); ok {
		switch {
		case d.acsControl&acsRequestRedirect != 0 && p.AT != tlp.ATTranslated && s.up.master:
			return toHost
		case peer == slot || !s.down[peer].active:
			return s.refuse(slot, p)
		}
		return Route{mapping.ToSlot, peer}
	}
	if !s.up.master || s.up.claims(p.Addr, n) {
		return s.refuse(slot, p)
	}
	return toHost
}

func (s *Switch) upByID(slot int, p *tlp.Packet, id pcie.BDF, redirect uint16) Route {
	peer, ok := s.slotOf(id.Bus())
	switch {
	case !ok && s.up.secondary != 0 && id.Bus() == s.up.secondary:
		// For a downstream port, which never asks anything.
	case !ok || s.down[slot].acsControl&redirect != 0 && p.Attr&tlp.RelaxedOrdering == 0:
		return toHost
	case peer != slot && s.down[peer].active:
		return Route{mapping.ToSlot, peer}
	}
	if p.Type.Completion() {
		s.counters.Unexpected++
		return Route{Where: mapping.Unsupported}
	}
	return s.refuse(slot, p)
}

func (s *Switch) upMessage(slot int, p *tlp.Packet) Route {
	switch p.Routing {
	case tlp.RouteToRootComplex, tlp.RouteGatherToRoot:
		return toHost
	case tlp.RouteByID:
		return s.upByID(slot, p, p.Target, 0)
	case tlp.RouteByAddress:
		return s.upByAddress(slot, p)
	case tlp.RouteLocal:
		if p.Code >= tlp.CodeAssertINTA && p.Code <= tlp.CodeDeassertINTD {
			s.interruptPin(slot, p.Code)
		}
		return Route{Where: mapping.Here}
	}
	return s.refuse(slot, p)
}

// slotAt finds the downstream port that forwards an address.
func (s *Switch) slotAt(addr, n uint64) (slot int, ok bool) {
	for i := range s.down {
		if s.down[i].claims(addr, n) {
			return i, true
		}
	}
	return 0, false
}

// slotOf finds the downstream port that has a bus behind it.
func (s *Switch) slotOf(bus uint8) (slot int, ok bool) {
	if !s.up.covers(bus) {
		return 0, false
	}
	for i := range s.down {
		if s.down[i].covers(bus) {
			return i, true
		}
	}
	return 0, false
}

// config serves a configuration request. Type 0 is for the upstream port. Type
// 1 is for a downstream port when it names the bus inside the switch, and
// otherwise goes to the port that has the bus behind it, as type 0 if the bus
// is right behind it.
func (s *Switch) config(p *tlp.Packet) Route {
	write := p.Type == tlp.CfgWr0 || p.Type == tlp.CfgWr1
	if p.Type == tlp.CfgRd0 || p.Type == tlp.CfgWr0 {
		if p.Target.Device() != 0 || p.Target.Function() != 0 {
			return s.refuse(Upstream, p)
		}
		if write {
			s.up.bus = p.Target.Bus()
		}
		return s.configPort(Upstream, p, write)
	}
	if bus := p.Target.Bus(); s.up.secondary != 0 && bus == s.up.secondary {
		if int(p.Target.Device()) >= len(s.down) || p.Target.Function() != 0 {
			return s.refuse(Upstream, p)
		}
		return s.configPort(int(p.Target.Device()), p, write)
	}
	slot, ok := s.slotOf(p.Target.Bus())
	if !ok || !s.down[slot].active {
		return s.refuse(Upstream, p)
	}
	if p.Target.Bus() == s.down[slot].secondary {
		if p.Target.Device() != 0 {
			return s.refuse(Upstream, p) // a link has device 0 only (section 7.3.1)
		}
		p.Type = tlp.CfgRd0
		if write {
			p.Type = tlp.CfgWr0
		}
	}
	return Route{mapping.ToSlot, slot}
}

// configPort reads or writes a register of a port and answers.
func (s *Switch) configPort(slot int, p *tlp.Packet, write bool) Route {
	at := &s.up
	if slot != Upstream {
		at = &s.down[slot]
	}
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
	return Route{Where: mapping.Here}
}
