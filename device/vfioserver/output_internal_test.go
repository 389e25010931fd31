package vfioserver

import (
	"testing"
	"time"

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
	c.transmit(0, func(p *tlp.Packet) bool {
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

// A server with a full backlog has to take minProgress in each stallTimeout.
func TestStall(t *testing.T) {
	const ms = time.Millisecond
	type look struct {
		at   time.Duration
		full bool
		done uint64
		slow bool
	}
	for _, c := range []struct {
		name  string
		looks []look
	}{
		{"never full", []look{{0, false, 0, false}, {5 * stallTimeout, false, 0, false}}},
		{"full and silent", []look{{0, true, 9, false}, {stallTimeout - ms, true, 9, false}, {stallTimeout, true, 9, true}}},
		{"full and slow", []look{{0, true, 0, false}, {stallTimeout, true, minProgress - 1, true}}},
		{"full and good", []look{{0, true, 0, false}, {stallTimeout, true, minProgress, false}, {2 * stallTimeout, true, 2 * minProgress, false}}},
		{"good, then silent", []look{{0, true, 0, false}, {stallTimeout, true, minProgress, false}, {2 * stallTimeout, true, minProgress, true}}},
		{"room meanwhile", []look{{0, true, 0, false}, {stallTimeout / 2, false, 1, false}, {stallTimeout, true, 1, false}, {2*stallTimeout - ms, true, 1, false}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s stall
			for _, l := range c.looks {
				s.note(l.at, l.full, l.done)
				if slow := s.tooSlow(l.at, l.done); slow != l.slow {
					t.Errorf("too slow at %v: %v, want %v", l.at, slow, l.slow)
				}
				if due := s.wake() <= l.at; due {
					t.Errorf("wakes at %v, at %v", s.wake(), l.at)
				}
			}
		})
	}
}
