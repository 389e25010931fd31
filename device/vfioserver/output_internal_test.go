package vfioserver

import (
	"testing"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// interrupting returns the connection to a server with MSI-X vectors, all unmasked.
func interrupting(vectors int) *connection {
	var about description
	about.hasMSIX = true
	about.msix = cfgspace.MSIXInfo{Vectors: vectors}
	about.vectors[vfiouser.IRQMSIX] = vectors
	about.vectors[vfiouser.IRQINTx] = 1
	c := &connection{about: about, requests: newWorker(func() {})}
	c.dma.init(func(*vfiouser.DMARequest, error) {}, c.about.limits())
	c.irqs.init(&c.about)
	c.irqs.on = true
	c.master.Store(true)
	return c
}

// A write to the MSI-X table concerns its own vectors, not the others of which there may be
// 2047: a host writes there as often as it likes.
func TestTableWritesLookAtTheirVectors(t *testing.T) {
	c := interrupting(2048)
	s := &c.irqs
	c.fn.BARs[0].Size = 64 << 10
	c.fn.Snoop(&tlp.Packet{Type: tlp.CfgWr0, Register: cfgspace.OffCommand, FirstBE: 1, Data: []byte{cfgspace.CmdMemory, 0, 0, 0}})
	for v := range 2048 {
		s.pending[v/8] |= 1 << (v % 8)
	}
	p := tlp.Packet{Type: tlp.MWr, Data: make([]byte, 8)}
	p.SetMemory(9*msixEntrySize-4, 8) // the control of vector 8, and half of the address of vector 9
	c.memoryWrite(&p)
	for v := range 2048 {
		sent := s.pending[v/8]>>(v%8)&1 == 0
		if want := v == 8 || v == 9; sent != want || s.armed[v] != want {
			t.Errorf("vector %d: sent %v, armed %v, want %v", v, sent, s.armed[v], want)
		}
	}
}

// Interrupts that a server signals while the host takes none stay pending beyond
// a bound. None is lost.
func TestInterruptsOfFullLinkStayPending(t *testing.T) {
	const vectors = 2048
	c := interrupting(vectors)
	s := &c.irqs
	for range 3 {
		for v := range vectors {
			c.interrupt(vectorID{vfiouser.IRQMSIX, v})
		}
	}
	for range maxOutput {
		s.wireAllowed = !s.wireAllowed // the host changes INTx Disable
		c.interrupt(vectorID{vfiouser.IRQINTx, 0})
	}
	if n := len(c.out.items); n > maxOutput {
		t.Errorf("%d messages are queued, want at most %d", n, maxOutput)
	}
	messages := 0
	c.transmit(0, nil, func(p *tlp.Packet) bool {
		if p.Type == tlp.MWr && len(p.Data) == pcie.DW {
			messages++
		}
		return true
	})
	if messages < vectors || messages > vectors+maxOutput {
		t.Errorf("%d interrupts, want those of %d vectors and at most %d more", messages, vectors, maxOutput)
	}
	if s.owed || len(c.out.items) > 0 {
		t.Error("messages are left")
	}
}
