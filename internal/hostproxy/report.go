package hostproxy

import (
	"github.com/prometheus/client_golang/prometheus"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/agent"
)

// Report tells how the slots are doing.
func (h *Proxy) Report() agent.Report {
	out := agent.Report{Role: "host", Time: h.fabric.WallTime()}
	for _, s := range h.slots {
		out.Slots = append(out.Slots, s.describe())
	}
	return out
}

func (s *slot) describe() agent.SlotReport {
	_, desired := s.host.Wanted(s.index)
	out, c := s.SlotState.Report(s.index, desired), &s.counters
	n := &out.Counters
	n.DMARefused, n.Unsupported, n.Translated = c.dmaRefused.Load(), c.unsupported.Load(), c.translated.Load()
	n.Poisoned, n.Digests = c.poisoned.Load(), c.digests.Load()
	n.Timeouts, n.Interrupts, n.Errors = c.timeouts.Load(), c.interrupts.Load(), c.errors.Load()
	e := s.host.group.Enter()
	defer s.host.group.Leave(e)
	if s.binding == nil || out.Binding == nil {
		return out
	}
	out.Binding.Link = agent.ReportLink(e, s.binding)
	if _, embedded := s.port.(*embeddedPort); !embedded { // a root complex has requests of its own
		r := s.root.requester
		out.Tags = &agent.TagsReport{InFlight: r.InFlight(), Total: r.Tags()}
	}
	return out
}

// refused counts the TLPs of the device that the host did not carry out.
func (c *counters) refused() uint64 {
	return c.dmaRefused.Load() + c.unsupported.Load() + c.translated.Load() + c.poisoned.Load() + c.digests.Load()
}

// Observe implements agent.Handler.
func (h *Proxy) Observe() *dxpuv1.ObservedState {
	return agent.Observe(h.fabric, h.cfg.Rack, h.cfg.Labels, h.slots)
}

// Observe implements agent.Slot.
func (s *slot) Observe() *dxpuv1.ObservedSlot {
	out := &dxpuv1.ObservedSlot{
		Slot: uint32(s.index), Domain: s.host.cfg.Domain, Health: dxpuv1.Health_HEALTH_OK, Movable: true, Binding: s.Binding(),
	}
	out.Removal = s.guest.removal.Load() // after the status: a binding that is not there has left it
	if out.Binding == nil {
		return out
	}
	s.guest.observe(out.Binding)
	out.Binding.Migration = s.migration.Load()
	if c := out.Binding.Counters; c != nil {
		c.TlpsRefused = s.counters.refused()
		c.CompletionTimeouts = s.counters.timeouts.Load()
	}
	return out
}

var _ prometheus.Collector = (*Proxy)(nil)

// Describe implements prometheus.Collector. It announces none: the metrics depend
// on the attached devices.
func (h *Proxy) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (h *Proxy) Collect(out chan<- prometheus.Metric) {
	m := agent.NewMetrics(out)
	m.Fabric(h.fabric)
	for _, s := range h.slots {
		c := &s.counters
		m.Slot(s.index, &s.SlotState)
		m.Counter("slot_dma_refused_total", "DMA outside the VM's mappings.", s.index, c.dmaRefused.Load())
		m.Counter("slot_unsupported_tlps_total", "TLPs without a destination.", s.index, c.unsupported.Load())
		m.Counter("slot_translated_requests_total", "Requests of the device with a translated address or a prefix such as PASID, refused.", s.index, c.translated.Load())
		m.Counter("slot_poisoned_tlps_total", "TLPs of the device with poisoned data, dropped.", s.index, c.poisoned.Load())
		m.Counter("slot_ecrc_errors_total", "TLPs of the device with a wrong ECRC, discarded.", s.index, c.digests.Load())
		m.Counter("slot_completion_timeouts_total", "Requests that the device did not answer in time.", s.index, c.timeouts.Load())
		m.Counter("slot_interrupts_total", "Interrupts of the device.", s.index, c.interrupts.Load())
		m.Counter("slot_error_messages_total", "ERR_COR, ERR_NONFATAL and ERR_FATAL messages of the device.", s.index, c.errors.Load())
		m.Counter("slot_ejections_total", "Removals by the guest itself.", s.index, c.ejected.Load())
		m.Counter("slot_forced_removals_total", "Removals without the guest's consent.", s.index, c.forced.Load())
	}
}
