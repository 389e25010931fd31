package vswitch

import (
	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/pcie"
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

// port is one type 1 function.
type port struct {
	space *cfgspace.Space
	// Offsets of the capabilities of a downstream port.
	express, acs int

	// Slot of a downstream port.
	present   bool // a device is plugged in
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

// routing decodes the routing state from the registers.
func (p *port) routing() mapping.Port {
	s := p.space
	r := mapping.Port{Active: p.active, Master: s.BusMaster()}
	if s.MemoryEnabled() {
		r.Windows = []cfgspace.Window{s.MemoryWindow(), s.PrefetchableWindow()}
	}
	// Secondary 0 means that the numbers were not assigned yet.
	if _, secondary, subordinate := s.Buses(); secondary != 0 {
		r.FirstID, r.LastID = pcie.NewBDF(secondary, 0, 0), pcie.NewBDF(subordinate, 0x1f, 7)
	}
	if p.acs != 0 {
		control := s.Read(p.acs+offACSControl, 2)
		r.RedirectRequests = control&acsRequestRedirect != 0
		r.RedirectCompletions = control&acsCompletionRedirect != 0
		r.ForwardUpstream = control&acsUpstreamForward != 0
	}
	return r
}

func (p *port) secondary() uint8 {
	_, secondary, _ := p.space.Buses()
	return secondary
}

func (p *port) presentBit() uint16 {
	if p.present {
		return cfgspace.SlotStaPresent
	}
	return 0
}
