package manager

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// A host may be unable to attach a device, or wait for its VM, or be gone. None of these
// is the GPU's fault, and another GPU would not help: the lease keeps its place, waits
// for the host, or ends with the host's own reason.

// maxAttachRetry bounds the pause before a lease in use tries again to attach a GPU.
const maxAttachRetry = 5 * time.Minute

// hostReason returns the reason for a binding that the host reports as FAILED.
func hostReason(o *dxpuv1.ObservedBinding) dxpuv1.Reason {
	if o.Reason == dxpuv1.Reason_REASON_HOST_FAILED {
		return o.Reason
	}
	return dxpuv1.Reason_REASON_ATTACH_FAILED
}

// boxLostLink handles a box's report that the link is down. A host that closes a link has
// a reason, which may arrive after the box's report: the host's reason applies. A box
// whose host is silent has lost the link because of that.
func (t *tx) boxLostLink(b *bindingRecord, box, host *dxpuv1.ObservedBinding) bool {
	switch {
	case host != nil && host.State == lost:
		t.failBinding(b.ID, lost, dxpuv1.Reason_REASON_LINK_LOST, cmp.Or(host.Detail, box.Detail))
	case !t.connected(b.HostID):
		if !t.awayOrSchedule(b.HostID) {
			return false // the manager has just begun, and the host has not found it yet
		}
		t.failBinding(b.ID, lost, dxpuv1.Reason_REASON_HOST_LOST, "host "+b.HostID+" does not report and its link is down")
	case b.LinkLostAt.IsZero():
		t.bindings.edit(b.ID).LinkLostAt = t.now
	case t.dueOrSchedule(subject{bindingSubject, b.ID}, b.LinkLostAt.Add(t.cfg.LinkGrace)):
		t.failBinding(b.ID, lost, dxpuv1.Reason_REASON_LINK_LOST, box.Detail)
	default:
		return false
	}
	return true
}

// restarted reports whether a node begins a binding again that it had before: its proxy
// was restarted and has lost the link.
func restarted(o *dxpuv1.ObservedBinding) bool { return o != nil && o.State == preparing }

// followAttach records what a host says while it attaches a device: that it waits for
// its VM, or that an attempt has failed. A host that does not report is waited for, too.
func (t *tx) followAttach(b *bindingRecord) bool {
	waiting, detail := false, ""
	switch o := t.observed(b.HostID, b); {
	case !t.connected(b.HostID):
		if !t.awayOrSchedule(b.HostID) {
			return false
		}
		waiting, detail = true, "the host does not report"
	case o != nil && o.State == preparing:
		waiting, detail = o.Waiting, truncateText(o.Detail)
	}
	if b.Waiting == waiting && b.Detail == detail {
		return false
	}
	news := waiting != b.Waiting || detail != "" && b.Detail == ""
	b = t.bindings.edit(b.ID)
	if b.Waiting && !waiting {
		b.WaitedUntil = t.now
	}
	b.Waiting, b.Detail = waiting, detail
	switch {
	case !news:
	case waiting:
		t.event(b.event(dxpuv1.EventType_EVENT_TYPE_BINDING_STATE), "binding %s of GPU %s waits for host %s: %s", b.ID, b.gpuID(), b.HostID, detail)
	case detail != "":
		t.event(b.event(dxpuv1.EventType_EVENT_TYPE_BINDING_STATE), "host %s cannot attach GPU %s yet: %s", b.HostID, b.gpuID(), detail)
	}
	return true
}

// hostOverdue reports whether a host that reports has had enough time to attach a device,
// without the time for which it waited.
func (t *tx) hostOverdue(b *bindingRecord) bool {
	since := b.since()
	if b.WaitedUntil.After(since) {
		since = b.WaitedUntil
	}
	return !b.Waiting && t.connected(b.HostID) && t.dueOrSchedule(subject{bindingSubject, b.ID}, since.Add(t.cfg.AttachTimeout))
}

// wasAttached reports whether the host has had the device.
func (b *bindingRecord) wasAttached() bool {
	return slices.ContainsFunc(b.Steps, func(s stepRecord) bool { return s.NodeID == "" && s.Name == stateWord(attached) })
}

// attachFailed reports whether an attempt to attach the GPU has failed, which another
// attempt may repeat. A GPU or box that is known to have failed is not chosen again.
func (b *bindingRecord) attachFailed() bool {
	switch b.Reason {
	case dxpuv1.Reason_REASON_ATTACH_FAILED, dxpuv1.Reason_REASON_HOST_FAILED:
		return true
	case dxpuv1.Reason_REASON_LINK_LOST, dxpuv1.Reason_REASON_BINDING_FORGOTTEN, dxpuv1.Reason_REASON_HOST_LOST:
		return !b.wasAttached()
	}
	return false
}

// attachFailure describes a failed attempt.
func (b *bindingRecord) attachFailure() string {
	why := cmp.Or(b.Detail, reasonWord(b.Reason))
	if b.Reason == dxpuv1.Reason_REASON_HOST_FAILED {
		return fmt.Sprintf("host %s could not attach GPU %s: %s", b.HostID, b.gpuID(), why)
	}
	return fmt.Sprintf("GPU %s could not be attached: %s", b.gpuID(), why)
}

// hostAway reports whether the host of a broken binding does not report, so that a
// replacement would have to wait for it.
func (t *tx) hostAway(b *bindingRecord) bool {
	if t.connected(b.HostID) {
		return false
	}
	t.awayOrSchedule(b.HostID)
	return true
}

// replacementPaused reports whether a broken binding gets no replacement yet: its host
// does not report, or the lease is in use and attempts have failed before. Each pause is
// twice as long as the one before. If so, it schedules the lease for the end of the pause.
func (t *tx) replacementPaused(l *leaseRecord, b *bindingRecord) bool {
	if t.hostAway(b) {
		return true
	}
	if l.ActiveTime.IsZero() || b.Replaces == "" || !b.attachFailed() {
		return false
	}
	pause := attachRetry
	for i := 1; i < b.Tries && pause < maxAttachRetry; i++ {
		pause *= 2
	}
	return !t.dueOrSchedule(subject{leaseSubject, l.ID}, b.since().Add(min(pause, maxAttachRetry)))
}

// obstacle returns why a lease does not have all of its GPUs, "" if they are on the way.
func (t *tx) obstacle(l *leaseRecord) string {
	for _, id := range t.bindingsOf(l.ID) {
		b := t.bindings.get(id)
		switch {
		case b.State == ready && b.Waiting && !t.connected(b.HostID):
			return t.hostAbsence(l)
		case b.State == ready && b.Waiting:
			return fmt.Sprintf("waiting for host %s: %s", b.HostID, b.Detail)
		case b.State == ready && b.Detail != "":
			return fmt.Sprintf("host %s: %s", b.HostID, b.Detail)
		case !b.needsReplacement():
		case !t.connected(b.HostID):
			return t.hostAbsence(l)
		case b.attachFailed():
			return b.attachFailure() + "; it is tried again"
		case b.NoSpare && t.localBox(l.HostID) != "":
			return fmt.Sprintf("GPU %s: no other GPU of host %s can replace it yet, and a host with GPUs of its own gets no others", b.gpuID(), l.HostID)
		case b.NoSpare:
			return fmt.Sprintf("no GPU can replace %s yet", b.gpuID())
		}
	}
	return ""
}

// withObstacle adds what a lease waits for to its state reason.
func (t *tx) withObstacle(l *leaseRecord, reason string) string {
	if o := t.obstacle(l); o != "" {
		return reason + "; " + o
	}
	return reason
}
