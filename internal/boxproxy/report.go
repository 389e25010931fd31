package boxproxy

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/dxpu-project/dxpu/internal/agent"
)

// Report returns the state and the counters of the slots.
func (b *Box) Report() agent.Report {
	out := agent.Report{Role: "box", Time: b.fabric.WallTime()}
	for _, s := range b.slots {
		if s.device != nil {
			out.Slots = append(out.Slots, s.describe())
		}
	}
	return out
}

func (s *slot) describe() agent.SlotReport {
	_, desired := s.box.Wanted(s.index)
	out := s.SlotState.Report(s.index, desired)
	out.Device, out.Counters.Dropped = s.seen.Load().info.Model, s.dropped.Load()
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
	m.Fabric(b.fabric)
	for _, s := range b.slots {
		if s.device == nil {
			continue
		}
		m.Slot(s.index, &s.SlotState)
		m.Counter("slot_dropped_tlps_total", "TLPs of the device that had no link to take.", s.index, s.dropped.Load())
		healthy := 1.0
		if !s.seen.Load().ok {
			healthy = 0
		}
		if s.dispatcher != nil {
			m.Counter("slice_compute_milliseconds_total", "Time of the GPU that the slice has used since it was bound.", s.index, uint64(s.box.SliceUsage(s.index).Service.Milliseconds()))
		}
		m.Gauge("device_healthy", "Whether the device works.", s.index, healthy)
	}
}
