package manager

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// A gang is several leases of a tenant, each on a host of its own or not, that are of use
// only together. They wait in the queue until all of them exist, get their GPUs in one
// transaction or not at all, and share their fate from then on: when one of them is
// preempted or loses its host all of them return to the queue, and when one of them ends
// all of them end. So a job never begins, or waits, with a part of its leases. The user alone
// can end one by itself, for jobs whose programs do not end at the same time.

// maxGang bounds the leases of a gang, and maxGangGPUs the GPUs of all of them, which one
// transaction binds.
const (
	maxGang     = 64
	maxGangGPUs = 1024
)

// gangKey names a gang. The zero value is that of leases without one.
type gangKey struct{ tenant, name string }

func (l *leaseRecord) gang() gangKey {
	if l.spec.Gang == nil || l.LeftGang {
		return gangKey{}
	}
	return gangKey{l.spec.Tenant, l.spec.Gang.Name}
}

// checkGang checks the gang of a spec, by itself.
func checkGang(s *dxpuv1.LeaseSpec) error {
	g := s.Gang
	switch {
	case g == nil:
		return nil
	case !tenantPattern.MatchString(g.Name):
		return invalid("spec.gang.name: %q is not 1 to 63 of a-z, 0-9, '.', '_' and '-'", g.Name)
	case g.Size < 2 || g.Size > maxGang:
		return invalid("spec.gang.size: %d is not 2 to %d", g.Size, maxGang)
	case !s.Wait:
		return invalid("spec.wait: leases of a gang wait for each other; it must be set")
	}
	return nil
}

// admitToGang returns an error if a new lease cannot be one of its gang.
func (t *tx) admitToGang(s *dxpuv1.LeaseSpec) error {
	if s.Gang == nil {
		return nil
	}
	if !t.alike {
		return errorf(connect.CodeFailedPrecondition, "spec.gang: managers of several versions run, and the older ones do not know gangs; upgrade them first")
	}
	q := t.quota(s.Tenant)
	if q.MaxLeases > 0 && s.Gang.Size > q.MaxLeases {
		return invalid("spec.gang.size: %d leases exceed the quota of %d of tenant %s", s.Gang.Size, q.MaxLeases, s.Tenant)
	}
	t.reindex()
	name, others := s.Gang.Name, t.gangs[gangKey{s.Tenant, s.Gang.Name}]
	if len(others) == 0 {
		return nil
	}
	first := t.leases.get(others[0])
	switch o := first.spec; {
	case first.State != leasePending || len(others) >= int(o.Gang.Size):
		return errorf(connect.CodeFailedPrecondition, "spec.gang.name: gang %s has its %d leases, such as %s, which is %s; choose another name, or wait until they have ended",
			name, o.Gang.Size, first.ID, leaseWord(first.State))
	case o.Gang.Size != s.Gang.Size:
		return invalid("spec.gang.size: %d, but lease %s says that gang %s has %d leases", s.Gang.Size, first.ID, name, o.Gang.Size)
	case o.Priority != s.Priority:
		return invalid("spec.priority: %d, but lease %s of gang %s has %d; they must be equal", s.Priority, first.ID, name, o.Priority)
	case o.Preemptible != s.Preemptible:
		return invalid("spec.preemptible: %t, but not for lease %s of gang %s; they must be equal", s.Preemptible, first.ID, name)
	}
	gpus := s.Count + t.gpusOfGang(first)
	if gpus > maxGangGPUs {
		return invalid("spec.count: gang %s would have %d GPUs, at most %d", name, gpus, maxGangGPUs)
	}
	return cmp.Or(q.allows(s.Tenant, "spec.count", wholeGPUs(gpus), anyModel), t.guarantees(s, "spec.count", wholeGPUs(gpus)))
}

// gpusOfGang returns the number of GPUs that a lease and those of its gang request.
func (t *tx) gpusOfGang(l *leaseRecord) uint32 { return requestedGPUs(t.membersOf(t.gangOf(l.ID))) }

// sizeOfGang returns what a lease and those of its gang request.
func (t *tx) sizeOfGang(l *leaseRecord) milliGPU { return requestedSize(t.membersOf(t.gangOf(l.ID))) }

// requestedGPUs returns the number of GPUs that some leases request.
func requestedGPUs(leases []*leaseRecord) (n uint32) {
	for _, l := range leases {
		n += l.spec.Count
	}
	return n
}

// completeGang marks the leases of a gang as ready for their GPUs when the last of them
// has been created.
func (t *tx) completeGang(l *leaseRecord) {
	if l.spec.Gang == nil {
		return
	}
	t.reindex()
	ids := t.gangs[l.gang()]
	if len(ids) < int(l.spec.Gang.Size) {
		return
	}
	for _, id := range ids {
		t.editLease(id).GangComplete = t.now
	}
}

// leaveGang takes a lease that is about to end out of its gang. The others keep what they
// have; in the queue they wait for a lease in its place.
func (t *tx) leaveGang(l *leaseRecord) {
	if l.spec.Gang == nil {
		return
	}
	gang, waits := slices.Clone(t.gangOf(l.ID)), l.State == leasePending
	t.editLease(l.ID).LeftGang = true
	for _, id := range gang {
		if waits && id != l.ID {
			o := t.editLease(id)
			o.GangComplete, o.StateReason = time.Time{}, "in the queue: "+t.lacksMembersWhy(o)
		}
	}
}

// lacksMembers reports whether leases of the gang of a pending lease do not exist yet.
func (l *leaseRecord) lacksMembers() bool { return l.spec.Gang != nil && l.GangComplete.IsZero() }

// lacksMembersWhy returns why a lease waits whose gang is not complete.
func (t *tx) lacksMembersWhy(l *leaseRecord) string {
	t.reindex()
	return fmt.Sprintf("Gang %s has %d of its %d leases, and waits for the others.", l.spec.Gang.Name, len(t.gangs[l.gang()]), l.spec.Gang.Size)
}

// gangOf returns the leases of the gang of a lease that have not ended, in the order of
// their creation; without a gang, the lease itself.
func (t *tx) gangOf(id string) []string {
	t.reindex()
	if l := t.leases.get(id); l != nil && !l.ended() && l.gang() != (gangKey{}) {
		return t.gangs[l.gang()]
	}
	return []string{id} // a later gang may have the name
}

// firstOfGang returns the lease that stands for a gang in the queue.
func (t *tx) firstOfGang(id string) string { return t.gangOf(id)[0] }

// membersOf returns the records of leases.
func (t *tx) membersOf(ids []string) []*leaseRecord {
	out := make([]*leaseRecord, len(ids))
	for i, id := range ids {
		out[i] = t.leases.get(id)
	}
	return out
}

// decideTogether returns where leases that belong together would be placed now, within
// the quotas of their tenant.
func (t *tx) decideTogether(leases []*leaseRecord) placement.GangDecision {
	return t.decideUpTo(leases, anySize)
}

// decideUpTo is decideTogether for at most some GPUs, which parts may turn out to be more than.
func (t *tx) decideUpTo(leases []*leaseRecord, most milliGPU) placement.GangDecision {
	if len(leases) == 1 {
		l := leases[0]
		var a placement.Assignment
		if a.Decision, a.Host = t.decideWithin(l.ID, l.spec, most); a.OK() {
			return placement.GangDecision{Members: []placement.Assignment{a}}
		}
		return placement.GangDecision{Why: a}
	}
	d := t.decideGang(leases, nil)
	why := t.overQuotaByModel(leases, &d)
	if why == "" {
		return d
	}
	if within := t.decideGang(leases, t.roomByModel(leases[0].spec.Tenant)); within.OK() {
		return within
	}
	return placement.GangDecision{Why: placement.Assignment{Decision: placement.Decision{Why: []string{why}}}}
}

// decideGang returns where the leases of a gang would be placed now. room is how many GPUs of
// a model they may have, of the models that it lists.
func (t *tx) decideGang(leases []*leaseRecord, room map[string]int) placement.GangDecision {
	members := make([]placement.Member, len(leases))
	r := t.reservedFrom(leases[0].ID, leases[0].spec, requestedSize(leases))
	t.reindex()
	for i, l := range leases {
		m := placement.Member{GPUs: t.requestOf(l.ID, l.spec, t.endsBy(l.spec)), Host: t.hostRequestOf(l.ID, l.spec, t.endsBy(l.spec))}
		if r != nil {
			m.GPUs.Exclude, m.Host.Exclude = append(m.GPUs.Exclude, r.gpus...), append(m.Host.Exclude, r.slots...)
		}
		m.GPUs.Uplinks, m.GPUs.Room = t.fullUplinks, room
		m.GPUs.Brief, m.Host.Brief = t.isBrief(), t.isBrief()
		members[i] = m
	}
	d := t.gpuPool.PlaceGang(t.hostPool, t.cfg.Reserve, members)
	t.noteDecision(d.OK(), t.isBrief())
	if d.OK() {
		return d
	}
	t.noteKept(leases[d.Lacking].ID, leases[d.Lacking].spec, r, &d.Why.Decision, &d.Why.Host)
	why := &d.Why.Why
	if d.Why.Decision.OK() {
		why = &d.Why.Host.Why // decisionWhy shows only these
	}
	lease := "the new lease"
	if id := leases[d.Lacking].ID; id != "" {
		lease = "lease " + id
	}
	*why = append(*why, fmt.Sprintf("This is about %s: %d of the %d leases of gang %s found a place before it.",
		lease, d.Placed, len(leases), leases[0].spec.Gang.Name))
	return d
}

// overQuotaByModel returns why a quota by model does not admit the decision on a gang, ""
// if it does.
func (t *tx) overQuotaByModel(leases []*leaseRecord, d *placement.GangDecision) string {
	more := map[string]milliGPU{}
	for i := range d.Members {
		at := d.Members[i].Picks
		more[t.modelAt(at[0])] += t.sizeAt(leases[i].spec, at)
	}
	for _, model := range slices.Sorted(maps.Keys(more)) {
		if why := t.overQuota(leases[0].spec.Tenant, more[model], model); why != "" {
			return why
		}
	}
	return ""
}

// endWait ends a lease that waits for GPUs, and those of its gang.
func (t *tx) endWait(l *leaseRecord, why string) {
	for _, id := range t.gangOf(l.ID) {
		text := why
		if id != l.ID {
			text = l.withGang(why)
		}
		t.setLeaseState(id, leaseFailed, text)
	}
}

// forceOff takes the GPUs of leases that end without asking their guests.
func (t *tx) forceOff(ids []string) {
	for _, id := range ids {
		for _, b := range t.bindingsOf(id) {
			t.release(b, dxpuv1.Reason_REASON_LEASE_DELETED, false)
		}
	}
}

// shareReason gives the leases of a gang the reason of one of them.
func (t *tx) shareReason(id string) {
	for _, o := range t.gangOf(id) {
		if o != id {
			t.editLease(o).StateReason = t.leases.get(id).StateReason
		}
	}
}

// withGang returns a reason for the other leases of a gang.
func (l *leaseRecord) withGang(why string) string {
	return fmt.Sprintf("together with lease %s of gang %s: %s", l.ID, l.spec.Gang.Name, why)
}
