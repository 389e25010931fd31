package manager

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/plural"
	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
)

// The manager counts the errors that a box reports of a GPU, beside the health that the
// box reports now. Every error has a class, and the class an action (package gpuerr):
//
//	in service --reset----> reset due: moved off its lease if another GPU fits, then reset
//	in service --replace--> quarantined: replaced at once, as if it had failed
//	reset due, or quarantine over, and unbound --reset by the box--> in service
//
// Each quarantine lasts twice as long as the one before; an error during a
// quarantine starts it again.

// maxErrors bounds the number of error classes that are counted for a GPU.
const maxErrors = 64

// resetPatience is how long a box may take to confirm a reset before the
// manager makes an event.
const resetPatience = time.Minute

// whyResetFailed is why a GPU is quarantined that its box does not report healthy after a reset.
const whyResetFailed = "unhealthy after a reset"

// newlyFailed returns the slots whose device a report calls failed while the
// records do not.
func (t *tx) newlyFailed(o *dxpuv1.ObservedState) map[uint32]bool {
	n := t.nodes.get(o.NodeId)
	if n.Kind != dxpuv1.NodeKind_NODE_KIND_BOX {
		return nil
	}
	out := map[uint32]bool{}
	for _, s := range o.Slots {
		old := n.slot(s.Slot)
		if s.Health == dxpuv1.Health_HEALTH_FAILED && old != nil && old.Device != nil && s.Device != nil && old.Health != s.Health {
			out[s.Slot] = true
		}
	}
	return out
}

// recordErrors counts the errors that a box reports and takes the actions that
// they require.
func (t *tx) recordErrors(o *dxpuv1.ObservedState, fallen map[uint32]bool) {
	if t.nodes.get(o.NodeId).Kind != dxpuv1.NodeKind_NODE_KIND_BOX {
		return
	}
	t.reindexBindings() // once: the errors of a box change no binding
	classes := t.nodes.get(o.NodeId).errorClasses()
	for _, s := range o.Slots {
		slot := t.nodes.get(o.NodeId).slot(s.Slot)
		if slot == nil || slot.Device == nil || len(s.Errors) == 0 && !fallen[s.Slot] && slot.Fault == nil {
			continue
		}
		c := slot.Fault.forDevice(slot.Device.Serial, o.InstanceId)
		others := classes - slot.Fault.classes()
		var news []gpuerr.Occurrence
		for _, e := range s.Errors[:min(len(s.Errors), maxErrors)] {
			if !t.admitError(o.NodeId, s.Slot, c, e, &others) {
				continue
			}
			if n := c.count(e, t.now); n > 0 {
				news = append(news, gpuerr.Occurrence{Code: e.Code, Count: n, Time: t.now})
			}
		}
		classes = others + len(c.Errors)
		if fallen[s.Slot] {
			news = append(news, gpuerr.Occurrence{Code: gpuerr.DeviceFailed, Count: 1, Time: t.now})
		}
		if slot.Fault.sameRun(c) && len(news) == 0 {
			continue
		}
		n := t.nodes.edit(o.NodeId)
		n.slot(s.Slot).Fault = c
		for _, h := range news {
			t.handleError(n, n.slot(s.Slot), h)
		}
	}
	if classes < maxNodeErrors/2 && t.nodes.get(o.NodeId).ErrorsFull {
		t.nodes.edit(o.NodeId).ErrorsFull = false
	}
}

// forDevice returns an editable copy for the device that is in the slot now and
// for the run of the box proxy that reports.
func (c *faultRecord) forDevice(serial, instance string) *faultRecord {
	serial, instance = identity(serial), identity(instance)
	out := &faultRecord{Serial: serial, Instance: instance}
	if c == nil {
		return out
	}
	if identity(c.Serial) != serial { // another device, the same reset counter
		out.Reset, out.Done = c.Reset, c.Reset
		return out
	}
	*out = *c
	out.Serial = serial
	out.Errors, out.Recent = slices.Clone(c.Errors), slices.Clone(c.Recent)
	if identity(c.Instance) != instance { // the proxy counts from 0 again
		out.Instance = instance
		for i := range out.Errors {
			out.Errors[i].Seen = 0
		}
	}
	return out
}

// sameRun reports whether two records are of one device and one run of the proxy.
func (c *faultRecord) sameRun(o *faultRecord) bool {
	return c != nil && c.Serial == o.Serial && c.Instance == o.Instance
}

// count records a counter of the box and returns the number of new errors.
func (c *faultRecord) count(e *dxpuv1.DeviceError, now time.Time) uint64 {
	if e == nil || e.Code == gpuerr.DeviceFailed || e.Count == 0 {
		return 0
	}
	i, ok := slices.BinarySearchFunc(c.Errors, e.Code, func(x errorCount, code uint32) int { return cmp.Compare(x.Code, code) })
	if !ok {
		if len(c.Errors) >= maxErrors {
			return 0
		}
		c.Errors = slices.Insert(c.Errors, i, errorCount{Code: e.Code})
	}
	x := &c.Errors[i]
	if e.Count <= x.Seen {
		return 0
	}
	n := e.Count - x.Seen
	x.Seen, x.Count, x.Detail, x.Last = e.Count, x.Count+n, truncateText(e.Detail), now
	return n
}

// handleError records new errors of a GPU and takes the action that they
// require. The slot's fault record must be editable, and the index of bindings up to date.
func (t *tx) handleError(n *nodeRecord, s *slotRecord, h gpuerr.Occurrence) {
	c := s.Fault
	c.Recent = gpuerr.Append(c.Recent, h)
	class := gpuerr.Lookup(h.Code)
	action, escalated := gpuerr.Assess(c.Recent, h.Code, t.now)
	b := t.holder(n.ID, s.Slot)
	e := gpuEvent(n, s.Slot, dxpuv1.EventType_EVENT_TYPE_GPU_ERROR)
	whose := ""
	if b != nil {
		e.LeaseId, e.BindingId, e.HostId = b.LeaseID, b.ID, b.HostID
		whose = " under lease " + b.LeaseID
	}
	often := ""
	if escalated {
		often = fmt.Sprintf(", %d or more within %s", class.Limit, period(class.Window))
	}
	e.ErrorCode, e.ErrorCount, e.ErrorAction = h.Code, h.Count, dxpuv1.ErrorAction(action)
	if h.Code != gpuerr.DeviceFailed || escalated {
		t.event(e, "GPU %s has had %s %s%s%s: %s", e.GpuId, class, plural.Count(h.Count, "time", "times"), whose, often, action)
	}
	switch action {
	case gpuerr.Reset:
		c.ResetDue = true
		c.Why = class.String()
	case gpuerr.Replace:
		t.quarantine(c, class.String())
	}
	if !c.QuarantinedUntil.IsZero() && action >= gpuerr.Reset {
		c.QuarantinedUntil = t.now.Add(t.cfg.Quarantine.After(c.Quarantines)) // the quarantine starts again
	}
	n.ResourceVersion = t.revision()
}

// quarantine takes a GPU out of service, longer each time.
func (t *tx) quarantine(c *faultRecord, why string) {
	c.Why, c.ResetDue = why, true
	if !c.QuarantinedUntil.IsZero() {
		return
	}
	if !c.Returned.IsZero() && t.now.Sub(c.Returned) >= t.cfg.Quarantine.Max {
		c.Quarantines = 0 // it was in service for long
	}
	c.Quarantines++
	c.QuarantinedUntil = t.now.Add(t.cfg.Quarantine.After(c.Quarantines))
}

// advanceRepair takes the repair of a GPU that is out of service as far as possible: it
// moves the lease away, then asks the box for a reset, then returns the GPU to service.
func (t *tx) advanceRepair(id string, slot uint32) {
	s := t.nodes.get(id).slot(slot)
	c := s.Fault
	if c.usable() || !c.QuarantinedUntil.IsZero() && !t.dueOrSchedule(subject{nodeSubject, id}, c.QuarantinedUntil) {
		return
	}
	t.maintainSoon(id)
	if bound := t.boundAt(t.nodes.get(id), s); len(bound) > 0 {
		for _, bid := range bound {
			b := t.bindings.get(bid)
			if l := t.leases.get(b.LeaseID); b.serving() && l != nil && l.holds() {
				t.moveAway(l, []string{bid}, dxpuv1.Reason_REASON_GPU_FAILED)
			}
		}
		return
	}
	if s.Device == nil || !t.connected(id) {
		return
	}
	if c.Reset == c.Done {
		revision := t.revision() // no box has carried it out, not even before a restore
		t.editFault(id, slot, func(c *faultRecord) { c.Reset, c.ResetAsked = revision, t.now })
		t.touch(id)
		return
	}
	if t.observedSlot(id, slot).GetResetSequence() != c.Reset {
		if t.now.Sub(c.ResetAsked) >= resetPatience {
			t.editFault(id, slot, func(c *faultRecord) { c.ResetAsked = t.now })
			e := gpuEvent(t.nodes.get(id), slot, dxpuv1.EventType_EVENT_TYPE_OVERDUE)
			t.event(e, "box %s has not confirmed the reset of GPU %s", id, e.GpuId)
		}
		return
	}
	t.returnToService(id, slot)
}

// returnToService returns a GPU to service after its reset, if its box reports
// it healthy.
func (t *tx) returnToService(id string, slot uint32) {
	s := t.editFault(id, slot, func(c *faultRecord) { c.Done = c.Reset })
	t.touch(id) // the reset is no longer wanted
	if s.Health != dxpuv1.Health_HEALTH_OK {
		s.Fault.QuarantinedUntil = time.Time{}
		t.quarantine(s.Fault, whyResetFailed)
		return
	}
	s.Fault.ResetDue, s.Fault.QuarantinedUntil, s.Fault.Returned = false, time.Time{}, t.now
	t.announceReturn(id, slot, "it has been reset")
}

func (t *tx) announceReturn(id string, slot uint32, why string) {
	n := t.nodes.edit(id)
	n.ResourceVersion = t.revision()
	e := gpuEvent(n, slot, dxpuv1.EventType_EVENT_TYPE_GPU_RETURNED)
	t.event(e, "GPU %s is in service again: %s", e.GpuId, why)
}

// editFault changes a copy of a slot's fault record.
func (t *tx) editFault(id string, slot uint32, f func(*faultRecord)) *slotRecord {
	s := t.nodes.edit(id).slot(slot)
	c := *s.Fault
	f(&c)
	s.Fault = &c
	return s
}

// desiredResets returns the resets that a box has not confirmed.
func desiredResets(n *nodeRecord) []*dxpuv1.DesiredReset {
	var out []*dxpuv1.DesiredReset
	for i := range n.Slots {
		if c := n.Slots[i].Fault; c != nil && c.Reset != c.Done {
			out = append(out, &dxpuv1.DesiredReset{Slot: n.Slots[i].Slot, Sequence: c.Reset})
		}
	}
	return out
}

// errorsMessage lists a GPU's error classes, the gravest first.
func (c *faultRecord) errorsMessage() []*dxpuv1.DeviceError {
	var out []*dxpuv1.DeviceError
	if c == nil {
		return nil
	}
	for _, e := range c.Errors {
		if e.Count == 0 {
			continue // cleared
		}
		class := gpuerr.Lookup(e.Code)
		detail := class.Name
		if e.Detail != "" {
			detail += ": " + e.Detail
		}
		out = append(out, &dxpuv1.DeviceError{
			Code: e.Code, Count: e.Count, Detail: detail, Action: dxpuv1.ErrorAction(class.Action), LastTime: timestamp(e.Last),
		})
	}
	slices.SortStableFunc(out, func(a, b *dxpuv1.DeviceError) int { return cmp.Compare(b.Action, a.Action) })
	return out
}

// outOfService returns why a GPU's errors keep it out of service, "" if they do not.
func (c *faultRecord) outOfService() string {
	switch {
	case c.usable():
		return ""
	case c.QuarantinedUntil.IsZero():
		return "to be reset: " + c.Why
	default:
		return "out of service: " + c.Why
	}
}
