package boxproxy

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
)

// Report returns the state and the counters of the slots.
func (b *Box) Report() agent.Report {
	out := agent.Report{Role: "box", Time: time.Now()}
	for _, s := range b.slots {
		if s.device != nil {
			out.Slots = append(out.Slots, s.describe())
		}
	}
	return out
}

func (s *slot) describe() agent.SlotReport {
	c := &s.counters
	_, desired := s.box.Wanted(s.index)
	out := agent.SlotReport{
		Slot: s.index, Device: s.seen.Load().info.Model,
		Counters: agent.SlotCounters{
			ToDevice: c.toDevice.Load(), FromDevice: c.fromDevice.Load(),
			ToDeviceBytes: c.toDeviceBytes.Load(), FromDeviceBytes: c.fromDeviceBytes.Load(),
			Peer: c.peer.Load(), Dropped: c.dropped.Load(),
		},
		Binding: agent.ReportBinding(s.index, s.status.Get(), desired),
	}
	live := s.live.Load()
	if live == nil || out.Binding == nil {
		return out
	}
	e := live.group.Enter()
	defer live.group.Leave(e)
	out.Binding.Link = agent.ReportLink(e, live.binding)
	// After Detach the group no longer guards the device.
	if s.tags != nil && s.live.Load() == live {
		n, limit := s.tags.TagsInUse()
		out.Tags = &agent.TagsReport{InFlight: n, Total: limit}
	}
	return out
}

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
