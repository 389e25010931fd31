package manager

import (
	"cmp"
	"crypto/rand"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// A live migration is a binding of its own, the successor, which is to follow the source
// (docs/migration.md). It holds its GPU and does not serve its lease before the switch.
//
//	PREPARING  the box of the target resets its device
//	READY      the host and both boxes open the links of the migration
//	COPYING    the box of the source copies the memory
//	SWITCHING  the host decides; the manager waits for it
//
// From PREPARING to COPYING the manager ends a migration whose parts fail. While it is
// SWITCHING, only the host's word counts, or the end of the source. After the switch the
// successor is an ordinary binding. A successor that has failed keeps Follows.

const (
	copying   = dxpuv1.BindingState_BINDING_STATE_COPYING
	switching = dxpuv1.BindingState_BINDING_STATE_SWITCHING

	migrationCopying = dxpuv1.MigrationState_MIGRATION_STATE_COPYING
	migrationReady   = dxpuv1.MigrationState_MIGRATION_STATE_READY
	migrationFailed  = dxpuv1.MigrationState_MIGRATION_STATE_FAILED

	// copyTimeout bounds COPYING: 30 rounds over the memory of the largest GPUs at 1 GB/s.
	copyTimeout = time.Hour
)

// moving reports whether the binding is a successor whose migration is not over.
func (b *bindingRecord) moving() bool {
	return b.Follows != "" && (b.State == preparing || b.State == ready || b.State == copying || b.State == switching)
}

// occupied reports whether the GPU of a binding is in use: it serves a lease or is about to.
func (b *bindingRecord) occupied() bool { return b.serving() || b.moving() }

// successorOf returns the successor in the migration of a binding, nil for none.
func (t *tx) successorOf(b *bindingRecord) *bindingRecord {
	for _, id := range t.bindingsIn(hostSlotRef{b.HostID, b.HostSlot}) {
		if s := t.bindings.get(id); s.Follows == b.ID && s.moving() {
			return s
		}
	}
	return nil
}

// switches reports whether the host decides on a binding, or has done so before a backup was
// restored, so that no other news of it counts.
func (t *tx) switches(b *bindingRecord) bool {
	// The index is that of the last round: a change since then marks the binding again.
	if len(t.bindingsByHostSlot[hostSlotRef{b.HostID, b.HostSlot}]) < 2 {
		return false
	}
	s := t.successorOf(b)
	return s != nil && (s.State == switching || t.switched(s))
}

// switched reports whether the host has the successor in place of the binding before it.
func (t *tx) switched(s *bindingRecord) bool {
	return t.connected(s.HostID) && t.observed(s.HostID, s) != nil
}

// isMigrating reports whether a GPU of a lease is moving.
func (t *tx) isMigrating(l *leaseRecord) bool {
	for _, id := range t.bindingsOf(l.ID) {
		if t.bindings.get(id).moving() {
			return true
		}
	}
	return false
}

// beginMigration creates the successor of a binding and tells the box of the target.
func (t *tx) beginMigration(l *leaseRecord, b *bindingRecord, to placement.Ref) *bindingRecord {
	s := t.newBinding(l, b.HostID, b.HostSlot, to)
	s.Follows, s.Replugs = b.ID, b.Replugs
	s.TransferSecret = make([]byte, 32)
	_, _ = rand.Read(s.TransferSecret) // never fails, see newBinding
	t.bindings.put(s.ID, s)
	s.BoxTold = t.touch(s.BoxID)
	t.event(s.event(dxpuv1.EventType_EVENT_TYPE_GPU_MIGRATING), "GPU %s of lease %s moves to %s, while %s slot %d uses it", b.gpuID(), l.ID, to, b.HostID, b.HostSlot)
	t.setBindingState(s, preparing)
	return s
}

// advanceMigration moves a successor as far as the reports and the clock allow.
func (t *tx) advanceMigration(s *bindingRecord) bool {
	b := t.bindings.get(s.Follows)
	switch {
	case b == nil || b.State != attached && (b.State != detaching || s.State != switching):
		t.failMigration(s, "GPU "+t.sourceOf(s)+" does not serve the lease any more")
		return true
	case b.State == detaching:
		return false // whichever device the host has, it releases it first
	case s.State != switching && t.switched(s):
		t.switchOver(b, s) // the records are from before the switch: a backup was restored
		return true
	case s.State == switching:
		return t.awaitSwitch(b, s)
	}
	if why := t.whyMigrationFails(b, s); why != "" {
		t.failMigration(s, why)
		return true
	}
	source, target, host := t.migrationAt(b.BoxID, s).GetState(), t.migrationAt(s.BoxID, s).GetState(), t.migrationAt(s.HostID, s).GetState()
	switch o := t.observed(s.BoxID, s); {
	case s.State == preparing && o != nil && (o.State == ready || o.State == attached):
		s = t.bindings.edit(s.ID)
		t.addSteps(s, s.BoxID, o)
		s.HostClear, s.HostTold = false, t.touch(s.HostID)
		t.touch(b.BoxID)
		t.setBindingState(s, ready)
	case s.State == ready && target == migrationCopying && host == migrationCopying && (source == migrationCopying || source == migrationReady):
		t.setBindingState(t.bindings.edit(s.ID), copying)
	case s.State == copying && source == migrationReady:
		s = t.bindings.edit(s.ID)
		s.HostTold = t.touch(s.HostID)
		t.setBindingState(s, switching)
	default:
		return false
	}
	return true
}

// whyMigrationFails returns why a migration before its switch cannot go on; "": it can.
func (t *tx) whyMigrationFails(b, s *bindingRecord) string {
	for _, node := range []string{s.BoxID, b.BoxID, s.HostID} {
		if m := t.migrationAt(node, s); m.GetState() == migrationFailed {
			return fmt.Sprintf("%s reports: %s", node, m.Detail)
		}
	}
	o, here := t.observed(s.BoxID, s), t.connected(s.BoxID)
	n, slot := t.nodes.get(s.BoxID), t.boxSlot(s.ref())
	switch {
	case n == nil || !t.takesBindings(n) || slot != nil && slot.Cordon != nil:
		return "GPU " + s.gpuID() + " takes no new bindings any more"
	case t.gpuHealth(s) == dxpuv1.Health_HEALTH_FAILED:
		return "GPU " + s.gpuID() + " has failed: " + t.gpuDetail(s)
	case o != nil && (o.State == failed || o.State == lost):
		return "box " + s.BoxID + " reports: " + cmp.Or(o.Detail, stateWord(o.State))
	case s.State != preparing && here && (restarted(o) || o == nil):
		return "box " + s.BoxID + " came back without the binding"
	case !here && t.awayOrSchedule(s.BoxID):
		return "box " + s.BoxID + " does not report"
	case s.State == copying && t.connected(s.HostID) && t.migrationAt(s.HostID, s) == nil:
		return "host " + s.HostID + " has ended it"
	case s.State == copying && t.overdueOrSchedule(s, copyTimeout):
		return fmt.Sprintf("the memory was not copied within %s", period(copyTimeout))
	case s.State != copying && t.overdueOrSchedule(s, t.cfg.AttachTimeout):
		return fmt.Sprintf("its links were not up within %s", period(t.cfg.AttachTimeout))
	}
	return ""
}

// awaitSwitch follows the host, which goes on with one of the two devices. A host that does
// not report may have switched or not, so the manager waits for it, and gives the lease up
// where it gives up those of other hosts (lease_host.go).
func (t *tx) awaitSwitch(b, s *bindingRecord) bool {
	source, m := t.observed(b.HostID, b), t.migrationAt(b.HostID, s)
	switch {
	case !t.connected(b.HostID):
		return false
	case t.observed(s.HostID, s) != nil:
		t.switchOver(b, s)
	case m.GetState() == migrationFailed:
		t.failMigration(s, m.Detail)
	case source != nil && source.State != attached && source.State != detaching:
		t.failMigration(s, "host "+b.HostID+" lost the device: "+cmp.Or(source.Detail, stateWord(source.State)))
	case m == nil && t.applied(b.HostID, s.HostTold):
		t.failMigration(s, "host "+b.HostID+" has ended it")
	default:
		return false
	}
	return true
}

// switchOver makes the successor the binding of its lease.
func (t *tx) switchOver(b, s *bindingRecord) {
	o := t.observed(s.HostID, s)
	pause := o.GetMigration().GetPause().AsDuration()
	b, s = t.bindings.edit(b.ID), t.bindings.edit(s.ID)
	b.Successor, b.Reason, b.Detail = s.ID, dxpuv1.Reason_REASON_MIGRATED, ""
	s.Follows, s.Replaces, s.TransferSecret, s.Replugs = "", b.ID, nil, b.Replugs
	t.setBindingState(b, resetting) // the host has left it
	t.setBindingState(s, attached)
	s.Steps = append(s.Steps, stepRecord{Name: "standstill", Time: t.now, Duration: pause, NodeID: s.HostID})
	t.touch(s.BoxID) // without the transfer
	l := t.editLease(s.LeaseID)
	l.explain(fmt.Sprintf("GPU %s moved to %s while it was in use.", b.gpuID(), s.gpuID()))
	e := s.event(dxpuv1.EventType_EVENT_TYPE_GPU_MIGRATED)
	e.Duration = durationpb.New(pause)
	t.event(e, "lease %s goes on with GPU %s in place of %s in %s slot %d; the device stood still for %s",
		l.ID, s.gpuID(), b.gpuID(), s.HostID, s.HostSlot, pause.Round(time.Microsecond))
}

// failMigration ends a migration. The source goes on, if nothing else ends it.
func (t *tx) failMigration(s *bindingRecord, why string) {
	s = t.bindings.edit(s.ID)
	s.Reason, s.Detail, s.TransferSecret = dxpuv1.Reason_REASON_MIGRATION_FAILED, truncateText(why), nil
	if !s.HostClear {
		s.HostDropped = t.touch(s.HostID)
	}
	e := s.event(dxpuv1.EventType_EVENT_TYPE_MIGRATION_FAILED)
	from := t.sourceOf(s)
	if b := t.bindings.get(s.Follows); b != nil {
		t.touch(b.BoxID)
		b = t.bindings.edit(b.ID)
		b.MoveTries, b.MoveFailed = b.MoveTries+1, t.now
	}
	t.event(e, "GPU %s of lease %s did not move to %s: %s", from, s.LeaseID, s.gpuID(), s.Detail)
	t.setBindingState(s, failed)
}

// maxMoveTries bounds the live migrations of a binding that fail during a drain.
const maxMoveTries = 3

// moveAllLive moves bindings away by live migration, one of each lease at a time, for a drain
// that began at a time.
func (t *tx) moveAllLive(ids []string, since time.Time) {
	if !t.alike {
		return // a manager of another version would not know what to do with a successor
	}
	for _, id := range ids {
		b := t.bindings.get(id)
		l := t.leases.get(b.LeaseID)
		if !b.serving() || l == nil || l.State != leaseActive || t.isAttaching(l) || t.isMigrating(l) {
			continue
		}
		if b.MoveTries > 0 && b.MoveFailed.Before(since) {
			b = t.bindings.edit(id)
			b.MoveTries, b.NoSpare = 0, false // they do not count against this drain
		}
		why := t.immovable(b)
		switch {
		case why != "":
		case b.MoveTries >= maxMoveTries:
			why = fmt.Sprintf("it has failed %d times; move it by \"dxpu lease migrate\"", b.MoveTries)
		case b.MoveTries > 0 && t.now.Sub(b.MoveFailed) < attachRetry:
			continue
		default:
			to, err := t.migrationTarget(l, b, "")
			if err == nil {
				t.beginMigration(l, b, to)
				continue
			}
			why = message(err)
		}
		t.reportStuck(l, []string{id}, "move live", []string{why})
	}
}

// sourceOf returns the ID of the GPU from which a successor's state comes.
func (t *tx) sourceOf(s *bindingRecord) string {
	if b := t.bindings.get(s.Follows); b != nil {
		return b.gpuID()
	}
	return "of binding " + s.Follows
}

// migrationAt returns what a node reports of a migration, nil for nothing.
func (t *tx) migrationAt(node string, s *bindingRecord) *dxpuv1.Migration {
	for _, o := range t.live[node].report().GetSlots() {
		if m := o.GetBinding().GetMigration(); m != nil && m.BindingId == s.ID {
			return m
		}
	}
	return nil
}

// migrationProgress returns how far the copy to a successor is, nil for none.
func (t *tx) migrationProgress(s *bindingRecord) *dxpuv1.MigrationProgress {
	if s.State != copying && s.State != switching {
		return nil
	}
	b := t.bindings.get(s.Follows)
	if b == nil {
		return nil
	}
	m := t.migrationAt(b.BoxID, s)
	if m == nil {
		return nil
	}
	return &dxpuv1.MigrationProgress{BytesSent: m.BytesSent, BytesLeft: m.BytesLeft, Rounds: m.Rounds}
}

// addTransfers adds what a migration wants of a node to the desired state of its binding:
// the successor at the host, the link between the boxes at both of them. Each gets only the
// secrets of its own links.
func (t *tx) addTransfers(node string, b *bindingRecord, out *dxpuv1.DesiredBinding) {
	s, source := t.successorOf(b), b
	if b.moving() {
		s, source = b, t.bindings.get(b.Follows)
	}
	if s == nil || source == nil {
		return
	}
	switch {
	case node == s.BoxID && b == s:
		out.Transfer = &dxpuv1.Transfer{Link: t.transferLink(s, s.ref(), source.ref()), Receive: true}
	case s.State == preparing: // the others learn of it when the target is ready
	case node == source.BoxID && b == source:
		out.Transfer = &dxpuv1.Transfer{Link: t.transferLink(s, source.ref(), s.ref())}
	case node == source.HostID && b == source:
		out.Successor = t.desiredBinding(s, s.HostSlot, s.BoxID, s.BoxSlot)
		out.Switch = s.State == switching
	}
}

// transferLink returns one side of the link between the boxes of a migration.
func (t *tx) transferLink(s *bindingRecord, self, peer placement.Ref) *dxpuv1.DesiredBinding {
	from, to := t.nodes.get(self.Box), t.nodes.get(peer.Box)
	out := &dxpuv1.DesiredBinding{
		BindingId: s.ID, Epoch: s.Epoch, LeaseId: s.LeaseID, Slot: self.Slot,
		Peer:   &dxpuv1.Peer{NodeId: to.ID, NodeNumber: to.Number, Slot: peer.Slot, Addresses: addresses(to)},
		Cipher: dxpuv1.Cipher_CIPHER_AES_256_GCM, Secret: s.TransferSecret, Mtu: t.mtu(from, to), Traceparent: s.Trace,
	}
	if common := commonPaths(from, to); len(common) > 0 {
		out.Path = common[int(s.BoxSlot)%len(common)]
	}
	return out
}
