package boxproxy

import (
	"time"

	"github.com/dxpu-project/dxpu/internal/agent"
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
