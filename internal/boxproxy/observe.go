package boxproxy

import (
	"context"
	"fmt"
	"sync/atomic"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/agent"
)

// Observe implements agent.Handler.
func (b *Box) Observe() *dxpuv1.ObservedState {
	out := agent.Observe(b.fabric, b.cfg.Rack, b.cfg.Labels, b.slots)
	out.BoxKind = b.cfg.Kind
	return out
}

// Observe implements agent.Slot.
func (s *slot) Observe() *dxpuv1.ObservedSlot {
	out := &dxpuv1.ObservedSlot{Slot: uint32(s.index)}
	if s.device == nil {
		return out
	}
	// Read the reset before the condition: a report with the reset shows the
	// condition after it.
	out.ResetSequence = s.reset.Load()
	seen := s.seen.Load()
	out.Device = &dxpuv1.Device{
		Model: seen.info.Model, MemoryBytes: seen.info.Memory, Serial: seen.info.Serial,
		VendorId: uint32(seen.info.Vendor), DeviceId: uint32(seen.info.Device),
		NvlinkDomain: s.place.NVLink, PcieSwitch: s.place.PCISwitch,
	}
	out.Health = dxpuv1.Health_HEALTH_OK
	if !seen.ok {
		out.Health, out.HealthDetail = dxpuv1.Health_HEALTH_FAILED, seen.detail
	}
	for _, e := range seen.errors {
		out.Errors = append(out.Errors, &dxpuv1.DeviceError{Code: e.Code, Count: e.Count})
	}
	if out.Immovable = seen.stuck; s.movable() != nil {
		out.Immovable = s.movable().Error()
	}
	out.Movable = out.Immovable == ""
	if out.Binding = s.Binding(); out.Binding != nil {
		out.Binding.Migration = s.migration.Load()
	}
	s.describePart(out)
	return out
}

// With calls f with exclusive access to the device of a slot, for tools that
// inspect a device or make it fail. The box must be running.
func (b *Box) With(ctx context.Context, index int, f func(d device.Device)) error {
	if index < 0 || index >= len(b.slots) || b.slots[index].device == nil {
		return fmt.Errorf("boxproxy: no device in slot %d: the box has slots 0 to %d", index, len(b.slots)-1)
	}
	s, c := b.slots[index], &call{f: f, done: make(chan struct{})}
	select {
	case s.calls <- c:
		s.wake()
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-c.done:
		return nil
	case <-ctx.Done():
	}
	if c.taken.CompareAndSwap(false, true) {
		return ctx.Err()
	}
	<-c.done // it has begun
	return nil
}

// maxCalls bounds the calls of With that wait for a slot.
const maxCalls = 16

// call is one call of With.
type call struct {
	f     func(device.Device)
	taken atomic.Bool // run makes the call, or its caller has left
	done  chan struct{}
}

// makeCalls makes the waiting calls of With.
func (s *slot) makeCalls() {
	for {
		select {
		case c := <-s.calls:
			if c.taken.CompareAndSwap(false, true) {
				s.call(c.f)
				close(c.done)
			}
		default:
			return
		}
	}
}
