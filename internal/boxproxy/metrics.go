package boxproxy

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
)

var _ prometheus.Collector = (*Box)(nil)

// Describe implements prometheus.Collector: the metrics depend on what is
// attached, so none are announced.
func (b *Box) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (b *Box) Collect(out chan<- prometheus.Metric) {
	m := agent.NewMetrics(out)
	if f, ok := b.fabric.(*netio.Fabric); ok {
		m.Fabric(f)
	}
	for _, s := range b.slots {
		if s.device == nil {
			continue
		}
		c := &s.counters
		m.Counter("slot_tlps_total", "TLPs between the device and its host.", s.index, c.toDevice.Load(), "direction", "to_device")
		m.Counter("slot_tlps_total", "TLPs between the device and its host.", s.index, c.fromDevice.Load(), "direction", "from_device")
		m.Counter("slot_payload_bytes_total", "Payload of those TLPs.", s.index, c.toDeviceBytes.Load(), "direction", "to_device")
		m.Counter("slot_payload_bytes_total", "Payload of those TLPs.", s.index, c.fromDeviceBytes.Load(), "direction", "from_device")
		m.Counter("slot_peer_tlps_total", "TLPs handed to a neighbour in the box.", s.index, c.peer.Load())
		m.Counter("slot_dropped_tlps_total", "TLPs of the device that had no link to take.", s.index, c.dropped.Load())
		healthy := 1.0
		if !s.seen.Load().ok {
			healthy = 0
		}
		m.Gauge("device_healthy", "Whether the device works.", s.index, healthy)
		if l := s.linkStats.Load(); l != nil {
			m.Link(s.index, l)
		}
	}
}
