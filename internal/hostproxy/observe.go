package hostproxy

import (
	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/pool/revision"
)

// Observe tells the manager what the host has.
func (h *Host) Observe() *dxpuv1.ObservedState {
	// Revisions first: a slot that goes on meanwhile shows more than it says, never less.
	applied := make([]uint64, 0, len(h.slots))
	for _, s := range h.slots {
		applied = append(applied, s.applied.Load())
	}
	out := &dxpuv1.ObservedState{
		AppliedRevision: revision.Common(applied...), Rack: h.cfg.Rack, Labels: h.cfg.Labels, Addresses: agent.Addresses(h.fabric),
	}
	for _, s := range h.slots {
		out.Slots = append(out.Slots, s.observe())
	}
	return out
}

func (s *slot) observe() *dxpuv1.ObservedSlot {
	st := s.status.Get()
	out := &dxpuv1.ObservedSlot{
		Slot: uint32(s.index), Domain: s.host.cfg.Domain, Health: dxpuv1.Health_HEALTH_OK, Binding: st.Observed(),
	}
	out.Removal = s.guest.removal.Load() // after the status: a binding that is not there has left it
	if out.Binding != nil {
		s.guest.observe(out.Binding)
	}
	if l := s.linkStats.Load(); l != nil && out.Binding != nil {
		c := agent.LinkCounters(*l)
		c.TlpsRefused = s.counters.dmaRefused.Load() + s.counters.unsupported.Load()
		c.CompletionTimeouts = s.counters.timeouts.Load()
		out.Binding.Counters, out.Binding.Paths = c, agent.PathStatuses(*l)
	}
	return out
}
