package vswitch

import (
	"encoding/binary"
	"fmt"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// EventKind is the kind of an Event.
type EventKind uint8

// Kinds of event.
const (
	EventReset    EventKind = iota // hot reset: the device resets (device.ConventionalReset)
	EventPowerOff                  // the host turned the slot off: the device may be removed
	EventPowerOn
)

// String names the event.
func (k EventKind) String() string {
	if names := [...]string{"reset", "power off", "power on"}; int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Event is a request of the host to the owner of the device in a slot.
type Event struct {
	Kind EventKind
	Slot int
}

// NextEvent takes the oldest event.
func (s *Switch) NextEvent() (Event, bool) {
	if len(s.events) == 0 {
		return Event{}, false
	}
	e := s.events[0]
	s.events = s.events[1:]
	return e, true
}

// SetPresence sets whether a device is in a slot. Without a device the link is down: for
// the host this is a surprise removal, unless it had turned the slot off.
func (s *Switch) SetPresence(slot int, present bool) {
	d := &s.down[slot]
	if d.present == present {
		return
	}
	d.present = present
	if !present {
		d.linkUp = false
	}
	d.space.PokeBits(d.express+cfgspace.OffSlotSta, d.presentBit()|cfgspace.SlotStaPresence, cfgspace.SlotStaPresent&^d.presentBit())
	s.relink(slot)
	s.signal(slot)
}

// SetLink sets whether the device of a slot is reachable. The link is up for the host if
// a device is present and reachable, the slot has power and Link Disable is not set.
func (s *Switch) SetLink(slot int, up bool) {
	s.down[slot].linkUp = up
	s.relink(slot)
	s.signal(slot)
}

// PressAttention presses the attention button of a slot: a request for hot-plug or
// removal, which the OS grants after some seconds.
func (s *Switch) PressAttention(slot int) {
	d := &s.down[slot]
	d.space.PokeBits(d.express+cfgspace.OffSlotSta, cfgspace.SlotStaAttnButton, 0)
	s.signal(slot)
}

// Active reports whether the link of a slot is up for the host.
func (s *Switch) Active(slot int) bool { return s.down[slot].active }

// relink computes the state of the link and updates the registers.
func (s *Switch) relink(slot int) {
	d := &s.down[slot]
	off := d.slotControl()&cfgspace.SlotCtlPowerOff != 0
	disabled := d.space.Read(d.express+cfgspace.OffLinkCtl, 2)&cfgspace.LinkCtlDisable != 0
	up := d.present && d.linkUp && !off && !disabled
	was := d.space.Read(d.express+cfgspace.OffLinkSta, 2)&cfgspace.LinkStaActive != 0
	d.active = up
	s.update(slot)
	if up == was {
		return
	}
	speedAndWidth := uint16(s.spec.Generation) | uint16(s.spec.Width)<<4
	if up {
		d.space.PokeBits(d.express+cfgspace.OffLinkSta, cfgspace.LinkStaActive|speedAndWidth, ^uint16(cfgspace.LinkStaActive|speedAndWidth)&0x3ff)
	} else {
		d.space.PokeBits(d.express+cfgspace.OffLinkSta, 0, cfgspace.LinkStaActive)
		s.releasePins(slot)
	}
	d.space.PokeBits(d.express+cfgspace.OffSlotSta, cfgspace.SlotStaLinkChange, 0)
}

func (p *port) slotControl() uint16 {
	return uint16(p.space.Read(p.express+cfgspace.OffSlotCtl, 2))
}

// signal sends the hot-plug MSI when the condition of section 6.7.3.4 becomes true:
// Hot-Plug Interrupt Enable, and an event whose own enable bit is set. The enable bits
// have the positions of the status bits, except for the link change.
func (s *Switch) signal(slot int) {
	d := &s.down[slot]
	status := uint16(d.space.Read(d.express+cfgspace.OffSlotSta, 2))
	control := d.slotControl()
	pending := status & control & (cfgspace.SlotStaAttnButton | cfgspace.SlotStaPowerFault | cfgspace.SlotStaPresence | cfgspace.SlotStaCmdCpl)
	if status&cfgspace.SlotStaLinkChange != 0 && control&cfgspace.SlotCtlLinkChange != 0 {
		pending |= cfgspace.SlotStaLinkChange
	}
	if pending == 0 || control&cfgspace.SlotCtlHotPlug == 0 || !d.msiReady() {
		d.signalled = false
		return
	}
	if d.signalled {
		return
	}
	d.signalled = true
	s.counters.Interrupts++
	p, data := d.message(s.id(slot))
	s.send(Upstream, p, data)
}

func (p *port) msiReady() bool {
	m := p.space.MSI()
	return p.space.BusMaster() && m.Enabled && m.Mask&1 == 0
}

// message returns the memory write that the MSI capability describes.
func (p *port) message(id pcie.BDF) (tlp.Packet, [pcie.DW]byte) {
	c := p.space.MSI()
	m := tlp.Packet{Type: tlp.MWr, Requester: id, Length: 1, FirstBE: 0xf}
	m.SetAddr(c.Addr)
	var data [pcie.DW]byte
	binary.LittleEndian.PutUint16(data[:], c.Data)
	return m, data
}

// writePort writes a register of a port and carries out the side effects.
func (s *Switch) writePort(slot int, reg uint16, be uint8, v uint32) {
	if slot == Upstream {
		change := s.up.space.WriteBE(reg, be, v)
		s.update(Upstream)
		if change.Has(cfgspace.SecondaryReset) && s.up.inReset() {
			s.resetBelow()
		}
		return
	}
	d := &s.down[slot]
	before := d.slotControl()
	change := d.space.WriteBE(reg, be, v)
	s.update(slot)
	if change.Has(cfgspace.SecondaryReset) && d.inReset() && d.present {
		s.events = append(s.events, Event{EventReset, slot})
	}
	if int(reg) == d.express+cfgspace.OffSlotCtl && be&3 != 0 {
		s.slotCommand(slot, before)
	}
	if change.Has(cfgspace.LinkControl) || change.Has(cfgspace.SlotControl) {
		s.relink(slot)
	}
	s.signal(slot)
}

func (p *port) inReset() bool {
	return p.space.Read(cfgspace.OffBridgeControl, 2)&cfgspace.BridgeSecReset != 0
}

// slotCommand completes a write to Slot Control at once (section 6.7.3.2).
func (s *Switch) slotCommand(slot int, before uint16) {
	d := &s.down[slot]
	d.space.PokeBits(d.express+cfgspace.OffSlotSta, cfgspace.SlotStaCmdCpl, 0)
	now := d.slotControl()
	switch {
	case (before^now)&cfgspace.SlotCtlPowerOff == 0:
	case now&cfgspace.SlotCtlPowerOff != 0:
		s.events = append(s.events, Event{EventPowerOff, slot})
	default:
		s.events = append(s.events, Event{EventPowerOn, slot})
	}
}

// interruptPin updates the virtual interrupt wires. The device number of the downstream
// port rotates the pins (table 2-20), and an upstream pin is asserted while at least one
// downstream wire asserts it.
func (s *Switch) interruptPin(slot int, code uint8) {
	pin := (code - tlp.CodeAssertINTA) & 3
	assert := code < tlp.CodeDeassertINTA
	d := &s.down[slot]
	if d.pins>>pin&1 != 0 == assert {
		return
	}
	d.pins ^= 1 << pin
	out := (int(pin) + slot) % 4
	first, message := s.pins[out] == 0, uint8(tlp.CodeAssertINTA)
	if assert {
		s.pins[out]++
	} else {
		s.pins[out]--
		first, message = s.pins[out] == 0, tlp.CodeDeassertINTA
	}
	if first {
		s.send(Upstream, tlp.Packet{
			Type: tlp.Msg, DW4: true, Routing: tlp.RouteLocal, Code: message + uint8(out), Requester: s.id(Upstream),
		}, [pcie.DW]byte{})
	}
}

// releasePins deasserts the wires of a removed device.
func (s *Switch) releasePins(slot int) {
	for pin := range uint8(4) {
		if s.down[slot].pins>>pin&1 != 0 {
			s.interruptPin(slot, tlp.CodeDeassertINTA+pin)
		}
	}
}
