package vfioserver

import (
	"testing"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// Interrupts that a server signals while the host takes none stay pending beyond
// a bound. None is lost.
func TestInterruptsOfFullLinkStayPending(t *testing.T) {
	const vectors = 2048
	var about description
	about.hasMSIX = true
	about.msix = cfgspace.MSIXInfo{Vectors: vectors}
	about.vectors[vfiouser.IRQMSIX] = vectors
	about.vectors[vfiouser.IRQINTx] = 1
	c := &connection{about: about, requests: newWorker(func() {})}
	c.dma.init(func(*vfiouser.DMARequest, error) {}, c.about.limits())
	s := &c.irqs
	s.init(&c.about)
	s.on = true // every vector is unmasked
	c.master.Store(true)
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
