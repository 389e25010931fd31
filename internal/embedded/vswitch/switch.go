// Package vswitch is the PCI Express switch of the embedded host: one upstream port, and
// a hot-plug capable downstream port for each slot in which a remote GPU can appear
// (section 3.3 of the DxPU paper).
//
// Section numbers without a name refer to the PCI Express Base Specification,
// revision 6.0.
package vswitch

import (
	"cmp"
	"fmt"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// Device IDs of the ports; the vendor is that of QEMU's virtual devices, as
// for the software GPU, so that no driver of a vendor binds.
const (
	VendorID         = 0x1234
	UpstreamDevice   = 0xd9b1
	DownstreamDevice = 0xd9b2

	classBridge = 0x060400 // PCI-to-PCI bridge, normal decode

	// MaxSlots is the number of device numbers on the bus inside the switch.
	MaxSlots = 32
)

// Spec describes a switch.
type Spec struct {
	Slots int // downstream ports, 1 to MaxSlots
	// FirstSlotNumber is the physical slot number of slot 0; the others follow.
	FirstSlotNumber uint16
	Generation      pcie.Generation  // 0: Gen4
	Width           int              // lanes; 0: 16
	MaxPayload      pcie.PayloadSize // 0: 512
	// TenBitTags makes the ports report support of 10-bit tags. The switch passes
	// them in any case.
	TenBitTags bool
}

func (s Spec) withDefaults() Spec {
	s.Generation = cmp.Or(s.Generation, pcie.Gen4)
	s.Width = cmp.Or(s.Width, 16)
	s.MaxPayload = cmp.Or(s.MaxPayload, 512)
	return s
}

// Upstream is the slot number that Transmit gives for the upstream port.
const Upstream = -1

// Counters count events since New.
type Counters struct {
	Unsupported uint64 // requests answered with Unsupported Request, or dropped if posted
	Unexpected  uint64 // completions without a destination
	Interrupts  uint64 // hot-plug MSI sent
}

// Switch is a running switch: a pure machine without a clock. FromHost and FromSlot route
// the TLPs that arrive; Transmit emits the switch's own TLPs.
type Switch struct {
	spec     Spec
	router   *mapping.Router // follows the registers of the ports
	bus      uint8           // of the upstream port, as configuration writes name it
	up       port
	down     []port // by slot
	pins     [4]int // downstream interrupt wires that pull each upstream one
	out      []generated
	outHead  int
	events   []Event
	counters Counters
}

// New makes a switch with empty slots.
func New(spec Spec) (*Switch, error) {
	spec = spec.withDefaults()
	if spec.Slots < 1 || spec.Slots > MaxSlots {
		return nil, fmt.Errorf("vswitch: %d slots: want 1 to %d", spec.Slots, MaxSlots)
	}
	s := &Switch{spec: spec, router: mapping.NewRouter(spec.Slots), down: make([]port, spec.Slots)}
	var err error
	if s.up.space, err = upstreamSpace(spec); err != nil {
		return nil, fmt.Errorf("vswitch: upstream port: %w", err)
	}
	s.up.findCapabilities()
	s.update(Upstream)
	for i := range s.down {
		if s.down[i].space, err = downstreamSpace(spec, i); err != nil {
			return nil, fmt.Errorf("vswitch: downstream port %d: %w", i, err)
		}
		s.down[i].findCapabilities()
		s.update(i)
	}
	return s, nil
}

// portSpace starts the configuration space of a port.
func portSpace(spec Spec, device uint16, express cfgspace.Express) *cfgspace.Builder {
	express.Generation, express.Width, express.MaxPayload = spec.Generation, spec.Width, spec.MaxPayload
	express.ExtendedTag, express.TenBitTag, express.Atomics = true, spec.TenBitTags, true
	return cfgspace.NewBridge(cfgspace.Identity{
		Vendor: VendorID, Device: device, Class: classBridge, Revision: 1, SubVendor: VendorID, SubDevice: device,
	}).PowerManagement(false).Msi(0).Express(express).AER(false)
}

func upstreamSpace(spec Spec) (*cfgspace.Space, error) {
	return portSpace(spec, UpstreamDevice, cfgspace.Express{Type: cfgspace.UpstreamPort}).Build()
}

func downstreamSpace(spec Spec, i int) (*cfgspace.Space, error) {
	return portSpace(spec, DownstreamDevice, cfgspace.Express{
		Type: cfgspace.DownstreamPort, PortNumber: uint8(i + 1), LinkDown: true,
		Slot: &cfgspace.Slot{Number: spec.FirstSlotNumber + uint16(i), HotPlug: true},
	}).ACS(acsCaps).Build()
}

// port returns the port of a slot, or the upstream port.
func (s *Switch) port(slot int) *port {
	if slot == Upstream {
		return &s.up
	}
	return &s.down[slot]
}

// update tells the router the state of a port.
func (s *Switch) update(slot int) {
	if slot == Upstream {
		s.router.SetUpstream(s.up.routing())
	} else {
		s.router.Set(slot, s.down[slot].routing())
	}
}

// Slots returns the number of downstream ports.
func (s *Switch) Slots() int { return len(s.down) }

// Counters returns a copy of the counters.
func (s *Switch) Counters() Counters { return s.counters }

// Reset is a conventional reset of the whole switch: it resets the configuration, drops
// the TLPs to send and makes an EventReset for each slot with a device. Devices stay
// plugged in.
func (s *Switch) Reset() {
	s.up.space.Reset(false)
	s.update(Upstream)
	s.bus = 0
	s.out, s.outHead = s.out[:0], 0
	s.resetBelow()
}

// resetBelow performs a hot reset on the bus inside the switch.
func (s *Switch) resetBelow() {
	s.pins = [4]int{}
	for i := range s.down {
		d := &s.down[i]
		d.space.Reset(false)
		d.pins, d.signalled = 0, false
		d.space.PokeBits(d.express+cfgspace.OffSlotSta, d.presentBit(), 0)
		if d.present {
			s.events = append(s.events, Event{EventReset, i})
		}
		s.relink(i)
		// The reset of a link is not a change for the slot.
		d.space.PokeBits(d.express+cfgspace.OffSlotSta, 0, cfgspace.SlotStaLinkChange)
	}
}

// generated is a TLP of the switch's own.
type generated struct {
	to  int // slot or Upstream
	p   tlp.Packet
	dat [pcie.DW]byte
}

// send queues a TLP; data is its payload, if it has one.
func (s *Switch) send(to int, p tlp.Packet, data [pcie.DW]byte) {
	s.out = append(s.out, generated{to: to, p: p, dat: data})
}

// Transmit emits the switch's own TLPs, in order, until emit refuses one, which the next
// call offers again. slot is Upstream for the host. The packet is valid only during the
// call of emit.
func (s *Switch) Transmit(emit func(slot int, p *tlp.Packet) bool) {
	for s.outHead < len(s.out) {
		g := &s.out[s.outHead]
		if g.p.Type.HasData() {
			g.p.Data = g.dat[:]
		}
		if !emit(g.to, &g.p) {
			return
		}
		s.outHead++
	}
	s.out, s.outHead = s.out[:0], 0
}

// refuse answers a request without a destination with Unsupported Request (section
// 2.3.1). It logs the request at the port where it arrived and sends the error message
// that the port demands. It drops an unexpected completion.
func (s *Switch) refuse(from int, p *tlp.Packet) mapping.Route {
	if p.Type.Completion() {
		s.counters.Unexpected++
		return here
	}
	s.counters.Unsupported++
	var header [tlp.MaxHeader]byte
	raw := p.AppendHeader(header[:0])[len(p.Prefix):]
	if code := s.port(from).space.LogUncorrectable(cfgspace.AERUnsupported, p.Type.NonPosted(), raw); code != 0 {
		s.send(Upstream, tlp.Packet{Type: tlp.Msg, DW4: true, Routing: tlp.RouteToRootComplex, Code: code, Requester: s.id(from)}, [pcie.DW]byte{})
	}
	if p.Type.NonPosted() {
		var answer tlp.Packet
		transaction.Respond(&answer, p, s.id(from), pcie.UnsupportedRequest)
		s.send(from, answer, [pcie.DW]byte{})
	}
	return here
}

// id returns the Routing ID of a port. The upstream port captures its bus number from
// configuration writes (section 2.2.6.2); the downstream ports are on the bus behind it.
func (s *Switch) id(slot int) pcie.BDF {
	if slot == Upstream {
		return pcie.NewBDF(s.bus, 0, 0)
	}
	return pcie.NewBDF(s.up.secondary(), uint8(slot), 0)
}
