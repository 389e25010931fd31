package manager

import (
	"context"
	"fmt"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// A host reports what the guest does with a device: that it has ejected it, that it
// still uses it, that the device was removed by force.

// followGuest records whether the guest has ejected an attached device. The lease keeps
// an ejected device, and pays for it, until the lease ends or an operator plugs it in
// again: to do so without a request would be against the guest's will.
func (t *tx) followGuest(b *bindingRecord) bool {
	o := t.observed(b.HostID, b)
	if o == nil || o.State != attached || o.Ejected == b.Ejected && truncateText(o.Detail) == b.Detail {
		return false
	}
	news := o.Ejected != b.Ejected
	b = t.bindings.edit(b.ID)
	b.Ejected, b.Detail = o.Ejected, truncateText(o.Detail)
	switch {
	case news && b.Ejected:
		t.event(b.event(dxpuv1.EventType_EVENT_TYPE_GPU_EJECTED),
			"the guest of %s slot %d has ejected GPU %s; lease %s keeps it", b.HostID, b.HostSlot, b.gpuID(), b.LeaseID)
	case news:
		t.event(b.event(dxpuv1.EventType_EVENT_TYPE_GPU_PLUGGED), "GPU %s is plugged into %s slot %d again", b.gpuID(), b.HostID, b.HostSlot)
	}
	if l := t.leases.get(b.LeaseID); news && l != nil && l.State == leaseActive {
		t.editLease(l.ID).StateReason = t.activeReason(l.ID)
	}
	return true
}

// activeReason returns the state reason of a lease with all of its GPUs.
func (t *tx) activeReason(id string) string {
	for _, bid := range t.bindingsOf(id) {
		if b := t.bindings.get(bid); b.serving() && b.Ejected {
			return fmt.Sprintf("the guest has ejected GPU %s", b.gpuID())
		}
	}
	return "every GPU is attached"
}

// recordInUse records that the guest still uses a device that is being detached.
// It makes the event once.
func (t *tx) recordInUse(b *bindingRecord) bool {
	o := t.observed(b.HostID, b)
	if o == nil || o.State != detaching || o.Detail == "" || truncateText(o.Detail) == b.Detail {
		return false
	}
	told := b.InUse
	b = t.bindings.edit(b.ID)
	b.InUse, b.Detail = true, truncateText(o.Detail)
	if !told {
		t.event(b.event(dxpuv1.EventType_EVENT_TYPE_GPU_IN_USE), "GPU %s is in use on %s slot %d: %s; it will be removed anyway %s after the request",
			b.gpuID(), b.HostID, b.HostSlot, b.Detail, t.cfg.UnplugTimeout)
	}
	return true
}

// clearHost records that a host has nothing left of a binding, and makes an event if
// the device was removed by force. It returns the binding, which is editable.
func (t *tx) clearHost(id string) *bindingRecord {
	b := t.bindings.edit(id)
	b.HostClear, b.Ejected = true, false
	if b.State == detaching {
		b.Detail = ""
	}
	if r := t.observedSlot(b.HostID, b.HostSlot).GetRemoval(); r.GetForced() && r.BindingId == b.ID {
		t.event(b.event(dxpuv1.EventType_EVENT_TYPE_GPU_TAKEN), "GPU %s was removed from the guest of %s slot %d by force: %s",
			b.gpuID(), b.HostID, b.HostSlot, truncateText(r.Detail))
	}
	return b
}

func (s *poolService) ReplugGPU(ctx context.Context, req *connect.Request[dxpuv1.ReplugGPURequest]) (*connect.Response[dxpuv1.ReplugGPUResponse], error) {
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.ReplugGPUResponse) error {
		b, err := t.leasedGPU(req.Msg.GpuId)
		if err != nil {
			return err
		}
		if b.State != attached || !b.Ejected {
			return errorf(connect.CodeFailedPrecondition,
				"gpu_id: the guest of %s has not ejected GPU %s, so there is nothing to plug in again", b.HostID, req.Msg.GpuId)
		}
		b = t.bindings.edit(b.ID)
		b.Replugs++
		t.touch(b.HostID)
		res.Binding = bindingMessage(b)
		return nil
	})
}
