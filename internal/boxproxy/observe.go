package boxproxy

import (
	"context"
	"fmt"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/agent"
)

// Observe tells the manager what the box has.
func (b *Box) Observe() *dxpuv1.ObservedState {
	// Revisions first: a slot that goes on meanwhile shows more than it says, never less.
	applied := b.slots[0].applied.Load()
	for _, s := range b.slots {
		applied = min(applied, s.applied.Load())
	}
	out := &dxpuv1.ObservedState{
		AppliedRevision: applied, Rack: b.cfg.Rack, Labels: b.cfg.Labels, BoxKind: b.cfg.Kind,
		Addresses: agent.Addresses(b.fabric),
	}
	for _, s := range b.slots {
		out.Slots = append(out.Slots, s.observe())
	}
	return out
}

func (s *slot) observe() *dxpuv1.ObservedSlot {
	out := &dxpuv1.ObservedSlot{Slot: uint32(s.index)}
	if s.device == nil {
		return out
	}
	out.Device = &dxpuv1.Device{
		Model: s.info.Model, MemoryBytes: s.info.Memory, Serial: s.info.Serial,
		VendorId: uint32(s.info.Vendor), DeviceId: uint32(s.info.Device),
		NvlinkDomain: s.info.NVLink, PcieSwitch: s.info.PCISwitch,
	}
	// The reset before the health: who sees the one sees what came of it.
	out.ResetSequence = s.reset.Load()
	out.Health = dxpuv1.Health_HEALTH_OK
	if h := s.lastHealth.Load(); h != nil && !h.ok {
		out.Health, out.HealthDetail = dxpuv1.Health_HEALTH_FAILED, h.detail
	}
	if errs := s.lastErrors.Load(); errs != nil {
		for _, e := range *errs {
			out.Errors = append(out.Errors, &dxpuv1.DeviceError{Code: e.Code, Count: e.Count})
		}
	}
	st := s.status.Get()
	out.Binding = st.Observed()
	if l := s.linkStats.Load(); l != nil && out.Binding != nil {
		out.Binding.Counters, out.Binding.Paths = agent.LinkCounters(*l), agent.PathStatuses(*l)
	}
	return out
}

// With calls f on the device of a slot while nothing else uses it: for tools
// that look at a device or make it fail. The box must be running.
func (b *Box) With(ctx context.Context, index int, f func(d device.Device)) error {
	if index < 0 || index >= len(b.slots) || b.slots[index].device == nil {
		return fmt.Errorf("boxproxy: no device in slot %d: the box has slots 0 to %d", index, len(b.slots)-1)
	}
	done := make(chan struct{})
	call := func(d device.Device) {
		defer close(done)
		f(d)
	}
	select {
	case b.slots[index].calls <- call:
		<-done
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
