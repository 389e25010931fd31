package manager

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/plural"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// The states of a lease, shortened.
const (
	leasePending   = dxpuv1.LeaseState_LEASE_STATE_PENDING
	leaseBinding   = dxpuv1.LeaseState_LEASE_STATE_BINDING
	leaseActive    = dxpuv1.LeaseState_LEASE_STATE_ACTIVE
	leaseDegraded  = dxpuv1.LeaseState_LEASE_STATE_DEGRADED
	leaseReleasing = dxpuv1.LeaseState_LEASE_STATE_RELEASING
	leaseReleased  = dxpuv1.LeaseState_LEASE_STATE_RELEASED
	leaseFailed    = dxpuv1.LeaseState_LEASE_STATE_FAILED
)

// advanceLease moves a lease as far as its bindings and the clock allow, and
// reports whether it changed anything.
func (t *tx) advanceLease(id string) bool {
	l := t.leases.get(id)
	if l.ended() {
		return false
	}
	if e := l.expires(); !e.IsZero() && l.State != leaseReleasing && t.dueOrSchedule(subject{leaseSubject, id}, e) {
		why := "it expired"
		if l.State == leasePending {
			why = "its time was over before it got its GPUs"
		}
		t.endLease(id, dxpuv1.Reason_REASON_LEASE_EXPIRED, why, true)
		return true
	}
	if by := t.renewBy(l); !by.IsZero() && l.State != leaseReleasing && t.dueOrSchedule(subject{leaseSubject, id}, by) {
		t.endLease(id, dxpuv1.Reason_REASON_LEASE_EXPIRED, fmt.Sprintf("it was not renewed for %s", l.spec.Ttl.AsDuration()), true)
		return true
	}
	if t.hostGaveUp(l) {
		return true
	}
	switch l.State {
	case leasePending:
		if t.advancePromise(l) {
			return true
		}
		if w := l.spec.WaitTimeout; w != nil && t.dueOrSchedule(subject{leaseSubject, id}, l.queuedSince().Add(w.AsDuration())) {
			t.endWait(l, "the wait timed out: "+t.lackOf(l))
			return true
		}
		t.holdIfAged(id)
		return false
	case leaseReleasing:
		return t.advanceReleasing(id)
	default:
		return t.advanceHolding(id)
	}
}

// advanceHolding replaces broken GPUs of a lease and sets its state.
func (t *tx) advanceHolding(id string) bool {
	var broken, grown []string
	var good, up, coming int
	l := t.leases.get(id)
	for _, bid := range t.bindingsOf(id) {
		b := t.bindings.get(bid)
		switch {
		case b.serving():
			good++
			if b.Grown {
				coming++
			}
		case !b.needsReplacement():
		case b.Grown && t.hostAway(b):
			coming++
		case b.Grown:
			grown = append(grown, bid)
		case !t.replacementPaused(l, b):
			broken = append(broken, bid)
		}
		if b.State == attached {
			up++
		}
	}
	if len(grown) > 0 {
		t.advanceGrown(grown)
		return true
	}
	if len(broken) == 0 {
		return t.updateLeaseState(id, good, up, coming)
	}
	if !l.ActiveTime.IsZero() {
		replaced := t.replace(broken)
		for _, bid := range broken {
			if t.bindings.get(bid).Successor != "" {
				good++
			}
		}
		return t.updateLeaseState(id, good, up, coming) || replaced
	}
	return t.retryOrFail(l, broken) || t.updateLeaseState(id, good, up, coming)
}

// retryOrFail gives a lease that was never active other GPUs, or ends it: after too many
// attempts, or because its host cannot attach any GPU.
func (t *tx) retryOrFail(l *leaseRecord, broken []string) bool {
	first := t.bindings.get(broken[0])
	for _, id := range broken {
		if b := t.bindings.get(id); b.Reason == dxpuv1.Reason_REASON_HOST_FAILED {
			t.failLease(l.ID, b.attachFailure())
			return true
		}
	}
	hopeless := l.Attempts+len(broken) >= maxAttempts*int(l.spec.Count)
	switch {
	case !hopeless && t.replace(broken):
	case l.spec.Wait && !hopeless:
		t.editLease(l.ID).Attempts += len(broken)
		t.requeue(l.ID, dxpuv1.Reason_REASON_LEASE_FAILED, "back in the queue: "+first.attachFailure(), true)
	default:
		t.failLease(l.ID, first.attachFailure())
	}
	return true
}

// failLease ends a lease that could not be satisfied, and those of its gang.
func (t *tx) failLease(id, why string) {
	for _, o := range t.gangOf(id) {
		t.editLease(o).Failing = true
	}
	t.endLease(id, dxpuv1.Reason_REASON_LEASE_FAILED, why, true)
}

// attachedText says how many of the GPUs of a lease work.
func attachedText(up, want, coming int) string {
	verb := "are"
	if coming == 1 {
		verb = "is"
	}
	return fmt.Sprintf("%d of %s attached, %d %s being attached", up, plural.Count(want, "GPU is", "GPUs are"), coming, verb)
}

// updateLeaseState sets the state that follows from the number of GPUs of a
// lease. GPUs that are being added by a resize do not count.
func (t *tx) updateLeaseState(id string, good, up, coming int) bool {
	l := t.leases.get(id)
	want := int(l.spec.Count) - coming
	reason := ""
	switch l.State {
	case leaseBinding:
		reason = t.withObstacle(l, "GPUs are being attached")
	case leaseActive, leaseDegraded:
		reason = t.withObstacle(l, attachedText(up, want, good-up-coming))
	}
	reason = truncate(reason, maxReason)
	switch {
	case up == want && l.State != leaseActive:
		l = t.editLease(id)
		l.ActiveTime, l.Running = cmp.Or(l.ActiveTime, t.now), cmp.Or(l.Running, t.now)
		l.Granted = l.Running
		t.setLeaseState(id, leaseActive, t.activeReason(id))
	case up < want && l.State == leaseActive:
		t.setLeaseState(id, leaseDegraded, reason)
	case up < want && l.StateReason != reason:
		t.editLease(id).StateReason = reason
	default:
		return false
	}
	return true
}

// replace finds GPUs for the broken bindings of a lease, including spares, for
// the same slots of the same host. It reports whether it found all of them.
func (t *tx) replace(broken []string) bool {
	l := t.leases.get(t.bindings.get(broken[0]).LeaseID)
	d := t.findReplacements(l, broken)
	for i, pick := range d.Picks {
		t.bindReplacement(broken[i], pick, d.Share)
	}
	t.reportStuck(l, broken[len(d.Picks):], "be replaced", d.Why)
	return len(d.Picks) == len(broken)
}

// findReplacements looks for all replacements together, so that GPUs which must be
// together stay together. If they need not be, it returns those that it finds.
func (t *tx) findReplacements(l *leaseRecord, broken []string) placement.Decision {
	req := t.replacement(l, broken)
	d := t.chooseForAffinity(l, req)
	if !d.OK() && (!l.ActiveTime.IsZero() || t.joinsOthers(l, broken)) {
		// A GPU that could not be attached before is better than none.
		req.Exclude, _ = t.promised(l.ID, l.spec, t.now, t.until(l))
		d = t.chooseOthers(l, req)
	}
	for !d.OK() && !mustBeTogether(l.spec) && req.Count > 1 {
		req.Count--
		d = t.chooseOthers(l, req)
	}
	return d
}

// until returns when a lease that has GPUs ends; zero: never.
func (t *tx) until(l *leaseRecord) time.Time {
	if e := l.expires(); !e.IsZero() {
		return e
	}
	return t.endsBy(l.spec) // it is not active yet, or never ends
}

// replacement returns the placement request for replacements: the lease's
// constraints, its model, close to the GPUs that it still has, and none of the
// GPUs that it could not attach.
func (t *tx) replacement(l *leaseRecord, broken []string) placement.Request {
	req := t.requestOf(l.ID, l.spec, t.until(l))
	req.Count, req.UseSpares, req.Near = len(broken), true, t.near(l.HostID)
	req.Exclude = append(req.Exclude, l.Avoid...)
	// A lease that asked for any model keeps the one that it got, also when the
	// device has been removed and its slot does not tell the model any more.
	req.Model = cmp.Or(req.Model, l.Model)
	for _, id := range broken {
		if b := t.bindings.get(id); b.excludesGPU() {
			req.Exclude = append(req.Exclude, b.ref())
		}
	}
	for _, id := range t.bindingsOf(l.ID) {
		b := t.bindings.get(id)
		if b.serving() && !slices.Contains(broken, id) {
			req.Together = append(req.Together, b.gpu())
		}
		if req.Model == "" { // of an earlier version, which did not record it
			req.Model = t.modelAt(b.ref())
		}
	}
	if len(req.Together) > 0 && req.Part != nil {
		req.Part.Share = placementShares[cmp.Or(l.spec.Part.Share, l.Share)] // the parts of a lease have one mode
	}
	return req
}

// excludesGPU reports whether the lease should not get that GPU again at once.
func (b *bindingRecord) excludesGPU() bool {
	return b.Reason == dxpuv1.Reason_REASON_ATTACH_FAILED || b.Reason == dxpuv1.Reason_REASON_REPLACED
}

func (t *tx) bindReplacement(id string, pick placement.Ref, share placement.ShareMode) {
	b := t.bindings.edit(id)
	l := t.editLease(b.LeaseID)
	l.Share = shareMode(share)
	if b.attachFailed() {
		l.Attempts++
	}
	if b.Reason == dxpuv1.Reason_REASON_ATTACH_FAILED {
		l.avoid(b)
	}
	l.explain(fmt.Sprintf("GPU %s was replaced by %s (%s).", b.gpuID(), pick, reasonWord(b.Reason)))
	next := t.bind(l, b.HostID, b.HostSlot, pick, b)
	next.Grown, next.Tries = b.Grown, b.Tries+1
	t.setSize(l.ID)
	e := next.event(dxpuv1.EventType_EVENT_TYPE_GPU_REPLACED)
	e.Reason = b.Reason
	t.event(e, "GPU %s replaces %s in %s slot %d (%s)", next.gpuID(), b.gpuID(), b.HostID, b.HostSlot, reasonWord(b.Reason))
}

// endLease begins to release all GPUs of a lease, and of those of its gang.
func (t *tx) endLease(id string, reason dxpuv1.Reason, why string, grace bool) {
	gang := t.gangOf(id)
	t.endOne(id, reason, why, grace)
	for _, o := range gang {
		if l := t.leases.get(o); o != id && !l.ended() && l.State != leaseReleasing {
			t.endOne(o, reason, t.leases.get(id).withGang(why), true)
		}
	}
}

// endOne begins to release all GPUs of a single lease.
func (t *tx) endOne(id string, reason dxpuv1.Reason, why string, grace bool) {
	l := t.leases.get(id)
	for _, b := range t.bindingsOf(id) {
		t.release(b, reason, grace)
	}
	if l.ended() || l.State == leaseReleasing {
		return
	}
	e := leaseEvent(l, dxpuv1.EventType_EVENT_TYPE_LEASE_DELETED)
	e.Reason = reason
	t.event(e, "lease %s ends: %s", id, why)
	if l.Promise != nil {
		t.editLease(id).Promise = nil
	}
	t.setLeaseState(id, leaseReleasing, why)
}

func (t *tx) advanceReleasing(id string) bool {
	for _, bid := range t.bindingsOf(id) {
		if !t.doneForLease(t.bindings.get(bid)) {
			return false
		}
	}
	l, end := t.leases.get(id), leaseReleased
	if l.Failing {
		end = leaseFailed
	}
	t.setLeaseState(id, end, l.StateReason)
	return true
}

// doneForLease reports whether a lease may end without waiting for a
// binding any longer: the rest of the binding is on nodes that do not report.
// It stays fenced off and on record until they return.
func (t *tx) doneForLease(b *bindingRecord) bool {
	if b.State == released {
		return true
	}
	return !b.serving() && b.State != detaching && (b.HostClear || t.awayOrSchedule(b.HostID)) && (b.BoxClear || t.awayOrSchedule(b.BoxID))
}

// setLeaseState moves a lease into a state and makes the event.
func (t *tx) setLeaseState(id string, s dxpuv1.LeaseState, why string) {
	l := t.editLease(id)
	l.State, l.StateReason = s, truncate(why, maxReason)
	t.positions = nil
	if l.ended() {
		l.EndTime = t.now
	}
	types := map[dxpuv1.LeaseState]dxpuv1.EventType{
		leasePending:  dxpuv1.EventType_EVENT_TYPE_LEASE_QUEUED,
		leaseActive:   dxpuv1.EventType_EVENT_TYPE_LEASE_ACTIVE,
		leaseDegraded: dxpuv1.EventType_EVENT_TYPE_LEASE_DEGRADED,
		leaseReleased: dxpuv1.EventType_EVENT_TYPE_LEASE_RELEASED,
		leaseFailed:   dxpuv1.EventType_EVENT_TYPE_LEASE_FAILED,
	}
	if typ, ok := types[s]; ok {
		t.event(leaseEvent(l, typ), "lease %s is %s: %s", id, leaseWord(s), why)
	}
}

func leaseWord(s dxpuv1.LeaseState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "LEASE_STATE_"))
}

func leaseEvent(l *leaseRecord, typ dxpuv1.EventType) *dxpuv1.Event {
	return &dxpuv1.Event{Type: typ, LeaseId: l.ID, HostId: l.HostID, LeaseState: l.State}
}
