package manager

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// preempt gives a lease that does not fit the GPUs of preemptible leases of lower
// priority, if those make enough room. It creates the bindings at once, so that no
// other lease gets the GPUs first; each waits for the binding that holds its GPU.
func (t *tx) preempt(l *leaseRecord) bool {
	gone := t.preemptionVictims(l)
	if len(gone) == 0 {
		return false
	}
	held := t.heldBy(gone)
	d, h := t.decideWithout(l, held)
	var names []string
	for _, v := range gone {
		t.preemptLease(v.ID, l)
		names = append(names, v.ID)
	}
	holders := map[placement.Ref]string{}
	for id := range held {
		holders[t.bindings.get(id).ref()] = id
	}
	t.bindDecision(l.ID, d, h, holders)
	l = t.editLease(l.ID)
	why := fmt.Sprintf("lease %s is preempted", names[0])
	if len(names) > 1 {
		why = fmt.Sprintf("leases %s are preempted", strings.Join(names, ", "))
	}
	l.explain(strings.ToUpper(why[:1]) + why[1:] + ".")
	l.StateReason = truncate(why, maxReason)
	return true
}

// preemptionVictims chooses the leases to preempt for a lease, none if that
// makes no room.
func (t *tx) preemptionVictims(l *leaseRecord) []placement.Victim {
	candidates := t.preemptionCandidates(l)
	if len(candidates) == 0 {
		return nil
	}
	return placement.Preempt(candidates, func(gone []placement.Victim) bool {
		d, h := t.decideWithout(l, t.heldBy(gone))
		return d.OK() && h.OK()
	})
}

// preemptionCandidates returns the leases that a lease may preempt. A lease
// that itself waits for a GPU of another lease has nothing to give yet.
func (t *tx) preemptionCandidates(l *leaseRecord) []placement.Victim {
	t.reindex()
	var out []placement.Victim
	for id := range t.preemptibleLeases {
		o := t.leases.get(id)
		if o.spec.Priority >= l.spec.Priority || l.spec.Model != "" && o.Model != l.spec.Model && o.HostID != l.spec.HostId {
			continue
		}
		if slices.ContainsFunc(t.bindingsByLease[id], func(b string) bool { return t.bindings.get(b).AwaitsGPUOf != "" }) {
			continue
		}
		digits, _ := leaseNumber(id)
		order, _ := strconv.ParseUint(digits, 10, 64)
		out = append(out, placement.Victim{ID: id, Priority: o.spec.Priority, GPUs: int(o.spec.Count), Order: order})
	}
	return out
}

func (t *tx) heldBy(gone []placement.Victim) map[string]bool {
	out := map[string]bool{}
	for _, v := range gone {
		for _, id := range t.bindingsOf(v.ID) {
			if b := t.bindings.get(id); b.serving() {
				out[id] = true
			}
		}
	}
	return out
}

// decideWithout returns where a lease would be placed if certain bindings were gone.
func (t *tx) decideWithout(l *leaseRecord, gone map[string]bool) (d placement.Decision, h placement.HostDecision) {
	t.reindex()
	t.indexFrozen = true // the changes below only try something out
	boxes, hosts := map[string]bool{}, map[string]bool{}
	for id := range gone {
		b := t.bindings.get(id)
		boxes[b.BoxID], hosts[b.HostID] = true, true
		for _, g := range t.indexedNodes[b.BoxID].placementBox.GPUs {
			if g.Slot == b.BoxSlot {
				g.Free = true
				t.gpuPool.SetGPU(b.BoxID, g)
			}
		}
		for _, s := range t.indexedNodes[b.HostID].placementHost.Slots {
			if s.Slot == b.HostSlot {
				s.Free = true
				t.hostPool.SetSlot(b.HostID, s)
			}
		}
	}
	d, h = t.decide(l.ID, l.spec)
	for id := range boxes {
		t.gpuPool.SetBox(t.indexedNodes[id].placementBox)
	}
	for id := range hosts {
		t.hostPool.SetHost(t.indexedNodes[id].placementHost)
	}
	t.indexFrozen = false
	if d.OK() && t.overQuota(l.spec.Tenant, l.spec.Count, t.modelAt(d.Picks[0])) != "" {
		d.Picks = nil
	}
	return d, h
}

func (t *tx) preemptLease(id string, l *leaseRecord) {
	v := t.leases.get(id)
	e := leaseEvent(v, dxpuv1.EventType_EVENT_TYPE_LEASE_PREEMPTED)
	e.Reason = dxpuv1.Reason_REASON_PREEMPTED
	t.event(e, "lease %s (priority %d) is preempted: its %d GPUs go to lease %s (priority %d)",
		id, v.spec.Priority, v.spec.Count, l.ID, l.spec.Priority)
	why := fmt.Sprintf("preempted by lease %s, whose priority is %d", l.ID, l.spec.Priority)
	if v.spec.Wait {
		t.requeue(id, dxpuv1.Reason_REASON_PREEMPTED, why, true)
		return
	}
	t.endLease(id, dxpuv1.Reason_REASON_PREEMPTED, why, true)
}

// requeue takes a lease's GPUs and returns it to the queue. It keeps its
// creation time, so it is the first of its tenant and priority again. Without grace the
// host is not asked to release the devices.
func (t *tx) requeue(id string, reason dxpuv1.Reason, why string, grace bool) {
	for _, bid := range t.bindingsOf(id) {
		t.release(bid, reason, grace)
		if b := t.bindings.get(bid); b.Successor == "" && !b.Dropped {
			t.bindings.edit(bid).Dropped = true
		}
	}
	l := t.editLease(id)
	l.HostID, l.Model, l.QueueTime, l.Running, l.Avoid = "", "", t.now, time.Time{}, nil
	t.setLeaseState(id, leasePending, why)
}

// whyNotPreempt returns why a pending lease preempts no other lease.
func (t *tx) whyNotPreempt(l *leaseRecord) string {
	n := len(t.preemptionCandidates(l))
	if n == 0 {
		return fmt.Sprintf("No preemptible lease has a priority below %d.", l.spec.Priority)
	}
	return fmt.Sprintf("Preempting all %d preemptible leases of lower priority would not make room.", n)
}

// bindAfter binds a GPU to a host. If holder is not empty, the binding waits
// until that binding has released the GPU.
func (t *tx) bindAfter(l *leaseRecord, host string, hostSlot uint32, gpu placement.Ref, holder string) {
	if holder == "" {
		t.bind(l, host, hostSlot, gpu, nil)
		return
	}
	b := t.newBinding(l, host, hostSlot, gpu)
	b.AwaitsGPUOf, b.BoxClear = holder, true
	t.bindings.put(b.ID, b)
	t.bindings.edit(holder).GPUPromisedTo = b.ID
	t.setBindingState(b, preparing)
}

// passGPUOn starts the binding that has waited for the GPU of b.
func (t *tx) passGPUOn(b *bindingRecord) {
	h := t.bindings.get(b.GPUPromisedTo)
	if b.GPUPromisedTo == "" || h == nil || !h.serving() || h.AwaitsGPUOf != b.ID {
		return
	}
	h = t.bindings.edit(h.ID)
	h.AwaitsGPUOf, h.BoxClear = "", false
	h.BoxTold = t.touch(h.BoxID)
	t.setBindingState(h, preparing)
}

// advanceWaiting fails a binding that waits for its GPU too long or in vain.
func (t *tx) advanceWaiting(b *bindingRecord) bool {
	limit := t.cfg.UnplugTimeout + unplugSlack + t.cfg.AttachTimeout
	switch {
	case t.gpuHealth(b) == dxpuv1.Health_HEALTH_FAILED:
		t.failBinding(b.ID, failed, dxpuv1.Reason_REASON_GPU_FAILED, "")
	case t.overdueOrSchedule(b, limit):
		t.failBinding(b.ID, failed, dxpuv1.Reason_REASON_ATTACH_FAILED, "binding "+b.AwaitsGPUOf+" did not release the GPU in time")
	default:
		return false
	}
	return true
}
