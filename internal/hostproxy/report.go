package hostproxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/internal/pool/revision"
)

// Report tells how the slots are doing.
func (h *Proxy) Report() agent.Report {
	out := agent.Report{Role: "host", Time: time.Now()}
	for _, s := range h.slots {
		out.Slots = append(out.Slots, s.describe())
	}
	return out
}

func (s *slot) describe() agent.SlotReport {
	c := &s.counters
	_, desired := s.host.Wanted(s.index)
	out := agent.SlotReport{
		Slot: s.index,
		Counters: agent.SlotCounters{
			ToDevice: c.toDevice.Load(), FromDevice: c.fromDevice.Load(),
			ToDeviceBytes: c.toDeviceBytes.Load(), FromDeviceBytes: c.fromDeviceBytes.Load(),
			Peer: c.peer.Load(), DMARefused: c.dmaRefused.Load(), Unsupported: c.unsupported.Load(),
			Translated: c.translated.Load(), Poisoned: c.poisoned.Load(), Digests: c.digests.Load(),
			Timeouts: c.timeouts.Load(), Interrupts: c.interrupts.Load(), Errors: c.errors.Load(),
		},
		Binding: agent.ReportBinding(s.index, s.status.Get(), desired),
	}
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

// Observe tells the manager what the host has.
func (h *Proxy) Observe() *dxpuv1.ObservedState {
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
		c.TlpsRefused = s.counters.refused()
		c.CompletionTimeouts = s.counters.timeouts.Load()
		out.Binding.Counters, out.Binding.Paths = c, agent.PathStatuses(*l)
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
	if f, ok := h.fabric.(*netio.Fabric); ok {
		m.Fabric(f)
	}
	for _, s := range h.slots {
		c := &s.counters
		m.Counter("slot_tlps_total", "TLPs between the device and its host.", s.index, c.toDevice.Load(), "direction", "to_device")
		m.Counter("slot_tlps_total", "TLPs between the device and its host.", s.index, c.fromDevice.Load(), "direction", "from_device")
		m.Counter("slot_payload_bytes_total", "Payload of those TLPs.", s.index, c.toDeviceBytes.Load(), "direction", "to_device")
		m.Counter("slot_payload_bytes_total", "Payload of those TLPs.", s.index, c.fromDeviceBytes.Load(), "direction", "from_device")
		m.Counter("slot_dma_refused_total", "DMA outside the VM's mappings.", s.index, c.dmaRefused.Load())
		m.Counter("slot_unsupported_tlps_total", "TLPs without a destination.", s.index, c.unsupported.Load())
		m.Counter("slot_translated_requests_total", "Requests of the device with a translated address or a prefix such as PASID, refused.", s.index, c.translated.Load())
		m.Counter("slot_poisoned_tlps_total", "TLPs of the device with poisoned data, dropped.", s.index, c.poisoned.Load())
		m.Counter("slot_ecrc_errors_total", "TLPs of the device with a wrong ECRC, discarded.", s.index, c.digests.Load())
		m.Counter("slot_completion_timeouts_total", "Requests that the device did not answer in time.", s.index, c.timeouts.Load())
		m.Counter("slot_peer_tlps_total", "TLPs to the device of another slot.", s.index, c.peer.Load())
		m.Counter("slot_interrupts_total", "Interrupts of the device.", s.index, c.interrupts.Load())
		m.Counter("slot_error_messages_total", "ERR_COR, ERR_NONFATAL and ERR_FATAL messages of the device.", s.index, c.errors.Load())
		m.Counter("slot_ejections_total", "Removals by the guest itself.", s.index, c.ejected.Load())
		m.Counter("slot_forced_removals_total", "Removals without the guest's consent.", s.index, c.forced.Load())
		if l := s.linkStats.Load(); l != nil {
			m.Link(s.index, l)
		}
	}
}
