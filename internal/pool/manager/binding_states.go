package manager

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// The states of a binding, shortened.
const (
	preparing = dxpuv1.BindingState_BINDING_STATE_PREPARING
	ready     = dxpuv1.BindingState_BINDING_STATE_READY
	attached  = dxpuv1.BindingState_BINDING_STATE_ATTACHED
	detaching = dxpuv1.BindingState_BINDING_STATE_DETACHING
	resetting = dxpuv1.BindingState_BINDING_STATE_RESETTING
	released  = dxpuv1.BindingState_BINDING_STATE_RELEASED
	lost      = dxpuv1.BindingState_BINDING_STATE_LOST
	failed    = dxpuv1.BindingState_BINDING_STATE_FAILED
)

// wantedByBox reports whether the desired state of the box has the binding.
func (b *bindingRecord) wantedByBox() bool {
	return b.State == preparing && b.AwaitsGPUOf == "" || b.State == ready || b.State == attached || b.State == detaching || b.moving()
}

// wantedByHost reports whether the desired state of the host has the binding.
// The host gets a successor as part of the binding before it.
func (b *bindingRecord) wantedByHost() bool {
	return (b.State == ready || b.State == attached) && b.Follows == ""
}

// serving reports whether the binding serves its lease or is being made for it.
func (b *bindingRecord) serving() bool {
	return (b.State == preparing || b.State == ready || b.State == attached) && b.Follows == ""
}

// needsReplacement reports whether the lease still needs another binding in
// place of this one.
func (b *bindingRecord) needsReplacement() bool {
	return !b.serving() && b.Successor == "" && !b.Dropped && b.Follows == ""
}

// holdsGPU reports whether the binding occupies its box slot.
func (b *bindingRecord) holdsGPU() bool { return b.State != released && !b.BoxClear }

// holdsHostSlot reports whether the binding occupies its host slot.
func (b *bindingRecord) holdsHostSlot() bool {
	return b.State != released && (!b.HostClear || b.serving())
}

// stateWord returns a state as timelines and messages write it.
func stateWord(s dxpuv1.BindingState) string {
	return strings.ToLower(strings.TrimPrefix(s.String(), "BINDING_STATE_"))
}

// reasonWord returns a reason as messages write it.
func reasonWord(r dxpuv1.Reason) string {
	words := strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(r.String(), "REASON_"), "_", " "))
	return strings.Replace(words, "gpu", "GPU", 1)
}

// bindingID returns the ID of a binding with the newest epoch, such as
// "b-7-k3f9zq". Nodes tell bindings apart by their IDs, so each incarnation of
// the pool has other IDs.
func (t *tx) bindingID() string {
	id := fmt.Sprintf("b-%d", t.meta.Epoch)
	if t.meta.Incarnation != 0 {
		id += "-" + strconv.FormatUint(t.meta.Incarnation, 36)
	}
	return id
}

// newBinding returns a binding that is not stored yet.
func (t *tx) newBinding(l *leaseRecord, host string, hostSlot uint32, gpu placement.Ref) *bindingRecord {
	t.meta.Epoch++
	b := &bindingRecord{
		ID: t.bindingID(), Epoch: t.meta.Epoch, LeaseID: l.ID, HostID: host, HostSlot: hostSlot, BoxID: gpu.Box, BoxSlot: gpu.Slot,
		Secret: make([]byte, 32), Trace: l.Trace, Steps: []stepRecord{{Name: "created", Time: t.now}},
		HostClear: true, // the host does not know of the binding yet
		Part:      t.newPart(l, gpu),
	}
	_, _ = rand.Read(b.Secret) // never fails: crypto/rand ends the program instead
	return b
}

// bind creates a binding and puts it into the desired state of its box.
func (t *tx) bind(l *leaseRecord, host string, hostSlot uint32, gpu placement.Ref, replaces *bindingRecord) *bindingRecord {
	b := t.newBinding(l, host, hostSlot, gpu)
	if replaces != nil {
		b.Replaces = replaces.ID
		replaces.Successor = b.ID
	}
	t.bindings.put(b.ID, b)
	b.BoxTold = t.touch(b.BoxID)
	t.setBindingState(b, preparing)
	t.gatherAgain(l.ID, gpu, placement.HostSlotRef{Host: host, Slot: hostSlot})
	return b
}

// setBindingState moves a binding into a state, records the time, updates the
// desired states and makes an event. b must be editable.
func (t *tx) setBindingState(b *bindingRecord, s dxpuv1.BindingState) {
	d := t.now.Sub(b.since())
	wantedByBox, wantedByHost := b.wantedByBox(), b.wantedByHost()
	served := b.State == attached // d is the time of use, not that of a step
	b.State = s
	b.Steps = append(b.Steps, stepRecord{Name: stateWord(s), Time: t.now, Duration: d})
	b.Overdue = false
	if s == attached {
		b.Grown, b.Tries = false, 0
	}
	if wantedByHost && !b.wantedByHost() {
		b.HostDropped = t.touch(b.HostID)
	}
	if !wantedByHost && b.wantedByHost() {
		b.HostClear = false
		b.HostTold = t.touch(b.HostID)
	}
	if wantedByBox && !b.wantedByBox() {
		b.BoxDropped = t.touch(b.BoxID)
	}
	if s == released {
		b.Secret = nil
	}
	why := ""
	if b.Reason != 0 {
		why = " (" + reasonWord(b.Reason) + ")"
	}
	if b.Detail != "" {
		why += ": " + b.Detail
	}
	e := b.event(dxpuv1.EventType_EVENT_TYPE_BINDING_STATE)
	if !served {
		e.Duration = durationpb.New(d)
	}
	t.event(e, "binding %s of GPU %s to %s slot %d is %s%s", b.ID, b.gpuID(), b.HostID, b.HostSlot, stateWord(s), why)
}

// event returns an event about a binding, without its message.
func (b *bindingRecord) event(typ dxpuv1.EventType) *dxpuv1.Event {
	return &dxpuv1.Event{
		Type: typ, LeaseId: b.LeaseID, BindingId: b.ID, GpuId: b.gpuID(), BoxId: b.BoxID, HostId: b.HostID,
		BindingState: b.State, Reason: b.Reason,
	}
}

// release takes a binding down in order: host first, then box. Without grace
// both sides are told at once, and the guest sees a surprise removal.
func (t *tx) release(id string, reason dxpuv1.Reason, grace bool) {
	b := t.bindings.get(id)
	if s := t.successorOf(b); s != nil && (s.State != switching || !grace) {
		t.failMigration(s, "the lease gives up GPU "+b.gpuID())
		b = t.bindings.get(id)
	}
	if b.State == detaching && !grace {
		t.setBindingState(t.bindings.edit(id), resetting)
		return
	}
	if !b.serving() {
		return
	}
	b = t.bindings.edit(id)
	b.Reason, b.Detail = reason, ""
	if b.State == preparing || !grace {
		t.setBindingState(b, resetting) // the host has nothing, or is not waited for
		return
	}
	t.setBindingState(b, detaching)
}

// failBinding takes down a binding that broke.
func (t *tx) failBinding(id string, to dxpuv1.BindingState, reason dxpuv1.Reason, detail string) {
	b := t.bindings.edit(id)
	b.Reason, b.Detail = reason, truncateText(detail)
	t.setBindingState(b, to)
}

// advance moves a binding as far as the reports and the clock allow, and
// reports whether it changed anything.
func (t *tx) advance(id string) bool {
	b := t.bindings.get(id)
	if b.serving() && t.leases.get(b.LeaseID) == nil { // the store had to drop the lease, which was too large
		t.release(id, dxpuv1.Reason_REASON_LEASE_DELETED, false)
		return true
	}
	if b.moving() {
		return t.advanceMigration(b)
	}
	switch b.State {
	case preparing:
		if b.AwaitsGPUOf != "" {
			return t.advanceWaiting(b)
		}
		return t.advancePreparing(b)
	case ready:
		return t.advanceReady(b)
	case attached:
		if t.switches(b) {
			return false
		}
		return t.dropIfBroken(b) || t.followGuest(b) || t.followPart(b)
	case detaching:
		return t.advanceDetaching(b)
	case resetting, lost, failed:
		return t.advanceClearing(b)
	default:
		return false
	}
}

func (t *tx) advancePreparing(b *bindingRecord) bool {
	o := t.observed(b.BoxID, b)
	switch {
	case o != nil && (o.State == failed || o.State == lost):
		t.failBinding(b.ID, failed, dxpuv1.Reason_REASON_ATTACH_FAILED, o.Detail)
	case t.gpuHealth(b) == dxpuv1.Health_HEALTH_FAILED:
		t.failBinding(b.ID, failed, dxpuv1.Reason_REASON_GPU_FAILED, "")
	case o != nil && (o.State == ready || o.State == attached) && t.hostSlotClear(b):
		b = t.bindings.edit(b.ID)
		t.addSteps(b, b.BoxID, o)
		t.setBindingState(b, ready)
	case t.overdueOrSchedule(b, t.cfg.AttachTimeout) && t.hostSlotClear(b):
		t.failBinding(b.ID, failed, dxpuv1.Reason_REASON_ATTACH_FAILED, "box "+b.BoxID+" was not ready in time")
	default:
		return false
	}
	return true
}

// hostSlotClear reports whether the host has removed all other bindings from the slot.
func (t *tx) hostSlotClear(b *bindingRecord) bool {
	return !slices.ContainsFunc(t.bindingsIn(hostSlotRef{b.HostID, b.HostSlot}), func(id string) bool {
		return id != b.ID && !t.bindings.get(id).HostClear
	})
}

func (t *tx) advanceReady(b *bindingRecord) bool {
	o := t.observed(b.HostID, b)
	switch {
	case t.dropIfBroken(b):
	case o != nil && o.State == attached:
		b = t.bindings.edit(b.ID)
		b.Waiting, b.Detail = false, ""
		t.addSteps(b, b.HostID, o)
		t.setBindingState(b, attached)
	case t.followAttach(b):
	case t.hostOverdue(b):
		t.failBinding(b.ID, failed, dxpuv1.Reason_REASON_HOST_FAILED, "host "+b.HostID+" did not attach the device in time")
	default:
		return false
	}
	return true
}

// dropIfBroken takes down a READY or ATTACHED binding whose GPU or link has failed. A
// box that does not report is no failure by itself: its data path may be intact.
func (t *tx) dropIfBroken(b *bindingRecord) bool {
	box, host := t.observed(b.BoxID, b), t.observed(b.HostID, b)
	boxHere := t.connected(b.BoxID)
	switch {
	case boxHere && t.gpuHealth(b) == dxpuv1.Health_HEALTH_FAILED:
		t.failBinding(b.ID, lost, dxpuv1.Reason_REASON_GPU_FAILED, t.gpuDetail(b))
	case host != nil && host.State == failed:
		t.failBinding(b.ID, failed, hostReason(host), host.Detail)
	case b.State == attached && t.connected(b.HostID) && (restarted(host) || host == nil && t.applied(b.HostID, b.HostTold)):
		t.failBinding(b.ID, lost, dxpuv1.Reason_REASON_BINDING_FORGOTTEN, "host "+b.HostID+" came back without the binding")
	case boxHere && box != nil && box.State == failed:
		t.failBinding(b.ID, lost, dxpuv1.Reason_REASON_LINK_LOST, box.Detail)
	case boxHere && box != nil && box.State == lost:
		return t.boxLostLink(b, box, host)
	case boxHere && (restarted(box) || box == nil && t.applied(b.BoxID, b.BoxTold)):
		t.failBinding(b.ID, lost, dxpuv1.Reason_REASON_BINDING_FORGOTTEN, "box "+b.BoxID+" came back without the binding")
	case host != nil && host.State == lost:
		return t.linkLost(b, boxHere, host.Detail)
	case !b.LinkLostAt.IsZero() && host != nil:
		t.bindings.edit(b.ID).LinkLostAt = time.Time{} // the link is up again
	default:
		return false
	}
	return true
}

func (t *tx) linkLost(b *bindingRecord, boxHere bool, detail string) bool {
	switch {
	case !boxHere && t.awayOrSchedule(b.BoxID):
		t.failBinding(b.ID, lost, dxpuv1.Reason_REASON_BOX_LOST, "box "+b.BoxID+" does not report and its link is down")
	case b.LinkLostAt.IsZero():
		t.bindings.edit(b.ID).LinkLostAt = t.now
	case t.dueOrSchedule(subject{bindingSubject, b.ID}, b.LinkLostAt.Add(t.cfg.LinkGrace)) && boxHere:
		t.failBinding(b.ID, lost, dxpuv1.Reason_REASON_LINK_LOST, detail)
	default:
		return false
	}
	return true
}

func (t *tx) advanceDetaching(b *bindingRecord) bool {
	switch {
	case t.confirmedGone(b.HostID, b, b.HostDropped):
		b = t.clearHost(b.ID)
	case t.overdueOrSchedule(b, t.cfg.UnplugTimeout+unplugSlack):
		// The box fences the host off: it stops serving the epoch. The host slot
		// stays occupied until the host reports that it is empty.
		t.event(b.event(dxpuv1.EventType_EVENT_TYPE_OVERDUE),
			"host %s did not release GPU %s in time: the box fences it off", b.HostID, b.gpuID())
		b = t.bindings.edit(b.ID)
	default:
		return t.recordInUse(b)
	}
	t.setBindingState(b, resetting)
	return true
}

func (t *tx) advanceClearing(b *bindingRecord) bool {
	changed := false
	if !b.HostClear && t.confirmedGone(b.HostID, b, b.HostDropped) {
		b, changed = t.clearHost(b.ID), true
	}
	if !b.BoxClear && t.confirmedGone(b.BoxID, b, b.BoxDropped) {
		b = t.bindings.edit(b.ID)
		b.BoxClear, changed = true, true
		t.passGPUOn(b)
	}
	switch {
	case b.HostClear && b.BoxClear:
		t.setBindingState(t.bindings.edit(b.ID), released)
		return true
	case !b.Overdue && t.overdueOrSchedule(b, t.cfg.AttachTimeout):
		t.bindings.edit(b.ID).Overdue = true
		var whom []string
		if !b.HostClear {
			whom = append(whom, "host "+b.HostID)
		}
		if !b.BoxClear {
			whom = append(whom, "box "+b.BoxID)
		}
		t.event(b.event(dxpuv1.EventType_EVENT_TYPE_OVERDUE),
			"binding %s still waits for %s to confirm its removal", b.ID, strings.Join(whom, " and "))
		return true
	}
	return changed
}

// overdueOrSchedule reports whether a binding has been in its state for longer
// than limit. If not, it schedules the binding for that time.
func (t *tx) overdueOrSchedule(b *bindingRecord, limit time.Duration) bool {
	return t.dueOrSchedule(subject{bindingSubject, b.ID}, b.since().Add(limit))
}

// addSteps adds a node's inner steps to the timeline.
func (t *tx) addSteps(b *bindingRecord, node string, o *dxpuv1.ObservedBinding) {
	at := b.since()
	for _, s := range o.Steps[:min(len(o.Steps), maxSteps)] {
		when := s.Time.AsTime()
		if s.Time == nil || s.Time.CheckValid() != nil { // no record could hold it
			when = at
		}
		b.Steps = append(b.Steps, stepRecord{Name: truncateText(s.Name), Time: when, Duration: s.Duration.AsDuration(), NodeID: node})
	}
}

// maxSteps bounds the number of inner steps that are recorded from one report.
const maxSteps = 32

func (t *tx) boxSlot(r placement.Ref) *slotRecord {
	if n := t.nodes.get(r.Box); n != nil {
		return n.slot(r.Slot)
	}
	return nil
}

func (t *tx) gpuHealth(b *bindingRecord) dxpuv1.Health {
	if b.Part != nil && t.slotHealth(b.gpu()) == dxpuv1.Health_HEALTH_FAILED {
		return dxpuv1.Health_HEALTH_FAILED
	}
	return t.slotHealth(b.ref())
}

func (t *tx) slotHealth(r placement.Ref) dxpuv1.Health {
	s := t.boxSlot(r)
	if s == nil || s.Device == nil {
		return dxpuv1.Health_HEALTH_FAILED // the slot is empty
	}
	if s.Fault != nil && !s.Fault.QuarantinedUntil.IsZero() {
		return dxpuv1.Health_HEALTH_FAILED // even if its box reports it healthy
	}
	return s.Health
}

func (t *tx) gpuDetail(b *bindingRecord) string {
	if s := t.boxSlot(b.ref()); s != nil && s.Device != nil {
		return cmp.Or(s.HealthDetail, s.Fault.outOfService())
	}
	return "the slot is empty"
}
