package hostproxy

import (
	"time"

	"github.com/dxpu-project/dxpu/internal/agent"
)

// Report tells how the slots are doing.
func (h *Host) Report() agent.Report {
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
