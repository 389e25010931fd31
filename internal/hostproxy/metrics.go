package hostproxy

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
)

var _ prometheus.Collector = (*Host)(nil)

// Describe implements prometheus.Collector. It announces none: the metrics depend
// on the attached devices.
func (h *Host) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (h *Host) Collect(out chan<- prometheus.Metric) {
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
