package vfioserver

import (
	"slices"
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

// A server with a full backlog has to take minProgress in each stallTimeout, as far as
// the owner ran.
func TestStall(t *testing.T) {
	const ms = time.Millisecond
	type look struct {
		at   time.Duration
		full bool
		done uint64
	}
	// from looks at a full backlog at the usual times after a look at the given time.
	from := func(at time.Duration, done uint64) (out []look) {
		for i := range time.Duration(stallLooks) {
			out = append(out, look{at + (i+1)*lookEvery, true, done})
		}
		return out
	}
	for _, c := range []struct {
		name  string
		looks [][]look
		slow  time.Duration // when it is too slow; 0: never
	}{
		{"never full", [][]look{{{0, false, 0}, {5 * stallTimeout, false, 0}}}, 0},
		{"full and silent", [][]look{{{0, true, 9}}, from(0, 9)}, stallTimeout},
		{"full and slow", [][]look{{{0, true, 0}}, from(0, minProgress-1)}, stallTimeout},
		{"full and good", [][]look{{{0, true, 0}}, from(0, minProgress), from(stallTimeout, 2*minProgress)}, 0},
		{"good, then silent", [][]look{{{0, true, 0}}, from(0, minProgress), from(stallTimeout, minProgress)}, 2 * stallTimeout},
		{"room meanwhile", [][]look{{{0, true, 0}, {stallTimeout / 2, false, 1}, {stallTimeout, true, 1}, {2*stallTimeout - ms, true, 1}}}, 0},
		{"many looks", [][]look{{{0, true, 0}, {1 * ms, true, 0}, {2 * ms, true, 0}, {3 * ms, true, 0}, {4 * ms, true, 0}, {stallTimeout - ms, true, 0}}}, 0},
		{"a suspension, then silent", [][]look{{{0, true, 0}, {time.Hour, true, 0}}, from(time.Hour, 0)}, time.Hour + stallTimeout - lookEvery},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s stall
			for _, l := range slices.Concat(c.looks...) {
				s.note(l.at, l.full, l.done)
				if slow := s.tooSlow(l.at, l.done); slow != (c.slow != 0 && l.at == c.slow) {
					t.Errorf("too slow at %v: %v", l.at, slow)
				}
				if s.wake() <= l.at {
					t.Errorf("wakes at %v, at %v", s.wake(), l.at)
				}
			}
		})
	}
}
