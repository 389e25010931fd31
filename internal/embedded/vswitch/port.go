package vswitch

import (
	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
)

// Access Control Services that the downstream ports have (section 7.7.11): P2P
// request and completion redirect, upstream forwarding.
const (
	acsRequestRedirect    = 1 << 2
	acsCompletionRedirect = 1 << 3
	acsUpstreamForward    = 1 << 4
	acsCaps               = acsRequestRedirect | acsCompletionRedirect | acsUpstreamForward

	offACSControl = 6
)

// port is one type 1 function, with what routing needs decoded from its
// registers.
type port struct {
	space *cfgspace.Space
	// Offsets of the capabilities of a downstream port.
	express, acs int

	bus                    uint8 // upstream port: captured bus number
	secondary, subordinate uint8
	windows                [2]mapping.Window // 32-bit and prefetchable; empty ones have Base above Limit
	memory, master         bool
	acsControl             uint16

	// Slot of a downstream port.
	present   bool // somebody plugged a device in
	linkUp    bool // and its far end is connected
	active    bool // Data Link Layer Link Active
	signalled bool // the hot-plug interrupt condition holds and was signalled
	pins      uint8
}

func (p *port) findCapabilities() {
	dump := p.space.Bytes()
	p.express = p.space.ExpressOffset()
	p.acs = cfgspace.FindExtended(dump, cfgspace.ExtACS)
}

// refresh decodes the registers again after a write to them.
func (p *port) refresh() {
	s := p.space
	p.memory, p.master = s.MemoryEnabled(), s.BusMaster()
	_, p.secondary, p.subordinate = s.Buses()
	p.windows = [2]mapping.Window{mapping.Window(s.MemoryWindow()), mapping.Window(s.PrefetchableWindow())}
	if p.acs != 0 {
		p.acsControl = uint16(s.Read(p.acs+offACSControl, 2))
	}
}

// claims reports whether the bridge forwards the n bytes at addr downstream.
func (p *port) claims(addr, n uint64) bool {
	return p.memory && (p.windows[0].Contains(addr, n) || p.windows[1].Contains(addr, n))
}

// covers reports whether a bus number is behind the bridge. Secondary 0 means
// that the numbers were not assigned yet.
func (p *port) covers(bus uint8) bool {
	return p.secondary != 0 && bus >= p.secondary && bus <= p.subordinate
}

func (p *port) presentBit() uint16 {
	if p.present {
		return cfgspace.SlotStaPresent
	}
	return 0
}
