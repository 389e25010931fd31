package manager

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/plural"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// A lease may begin at a time that is known in advance. When it is created, GPUs and slots of
// a host are promised to it that are free then, or whose leases end before. Other leases get
// them only if they end before the lease begins, so nothing has to be taken from anybody.
// The promise moves to others if what was promised fails.
//
//	promised  the lease is not in the queue; the promise is examined now and then
//	begun     the lease is in the queue, and what was promised waits for it
//
// The promise ends when the lease has GPUs, and at the latest when its time is over.

const (
	// maxPromises and maxPromisedGPUs bound what is promised: each decision on other
	// leases leaves it out.
	maxPromises     = 32
	maxPromisedGPUs = 512
	// maxPromiseAhead bounds how far ahead a lease begins.
	maxPromiseAhead = 92 * 24 * time.Hour
	// promiseLead is how long before a lease begins the others must end: a lease's time
	// counts from when its GPUs are attached, and it takes time to release them.
	promiseLead = time.Minute
	// promiseCheck is the pause between two looks at what is promised.
	promiseCheck = 30 * time.Second
	// promiseGrace is how long what was promised waits for a lease that has begun, and that its
	// tenant's quota does not admit.
	promiseGrace = 5 * time.Minute
	// maxPromiseWaits bounds the bindings, of leases that end in time, that a promise
	// builds on: the decision changes the index for each.
	maxPromiseWaits = 256
)

// promiseRecord is what is promised to a lease. It is not changed.
type promiseRecord struct {
	Host     string          `json:"host"`
	Slots    []uint32        `json:"slots"`
	GPUs     []placement.Ref `json:"gpus"`
	Begun    bool            `json:"begun,omitempty"`
	Obstacle string          `json:"obstacle,omitempty"` // why it cannot be kept at present
}

// startTime returns when a lease with a spec begins; zero: at once.
func startTime(s *dxpuv1.LeaseSpec) time.Time {
	if s.StartTime == nil {
		return time.Time{}
	}
	return s.StartTime.AsTime()
}

// beginsBy returns the time from which a lease with a spec needs GPUs.
func (t *tx) beginsBy(s *dxpuv1.LeaseSpec) time.Time {
	if at := startTime(s); at.After(t.now) {
		return at
	}
	if t.tried.begins.After(t.now) {
		return t.tried.begins
	}
	return t.now
}

// sleeps reports whether a lease begins later.
func (l *leaseRecord) sleeps() bool {
	return l.State == leasePending && l.Promise != nil && !l.Promise.Begun
}

// hasBegun reports whether the time of a lease has begun, and what is promised waits for it.
func (t *tx) hasBegun(id string) bool {
	l := t.leases.get(id)
	return l != nil && l.Promise != nil && l.Promise.Begun
}

// checkStart checks the time at which a lease begins, and sets what it implies.
func checkStart(s *dxpuv1.LeaseSpec) error {
	if s.StartTime == nil && s.StartAfter == nil {
		return nil
	}
	switch {
	case s.StartTime != nil && s.StartAfter != nil:
		return invalid("spec.start_after: start_time is set too; leave one of them out")
	case s.StartTime != nil && s.StartTime.CheckValid() != nil:
		return invalid("spec.start_time: %v", s.StartTime.CheckValid())
	case s.ExpiresAfter == nil:
		return invalid("spec.expires_after: must be set for a lease that begins at a time")
	case s.Gang != nil:
		return invalid("spec.start_time: a lease of a gang cannot begin at a time")
	case s.Part != nil:
		return invalid("spec.start_time: a part of a GPU cannot be reserved")
	case s.WaitTimeout != nil:
		return invalid("spec.wait_timeout: a lease that begins at a time waits until its end")
	}
	s.Wait = true
	return checkDuration("spec.start_after", s.StartAfter)
}

// setStart sets the time at which a lease begins that begins some time after its creation.
func (t *tx) setStart(s *dxpuv1.LeaseSpec) {
	if s.StartAfter != nil {
		s.StartTime = timestamppb.New(t.now.Add(s.StartAfter.AsDuration()))
	}
}

// mayPromise checks whether a new lease may begin at its time.
func (t *tx) mayPromise(s *dxpuv1.LeaseSpec) error {
	switch at := startTime(s); {
	case !at.After(t.now):
		return invalid("spec.start_time: %s is over; leave it out for a lease that begins at once", rfc3339(at))
	case at.After(t.now.Add(maxPromiseAhead)):
		return invalid("spec.start_time: %s is more than %d days ahead", rfc3339(at), maxPromiseAhead/(24*time.Hour))
	case !t.alike:
		return errorf(connect.CodeFailedPrecondition, "managers of several versions run, and the older ones do not know reservations; upgrade them first")
	}
	t.reindex()
	own, gpus, ownGPUs, firm := 0, int(s.Count), s.Count, s.Count // firm: not preemptible
	for id := range t.promises {
		l := t.leases.get(id)
		if gpus += int(l.spec.Count); l.spec.Tenant != s.Tenant {
			continue
		}
		own, ownGPUs = own+1, ownGPUs+l.spec.Count
		if !l.spec.Preemptible {
			firm += l.spec.Count
		}
	}
	free := maxPromises - len(t.promises)
	g, guaranteed := t.guaranteeOf(s.Tenant)
	switch q := t.quota(s.Tenant); {
	case free <= 0 || gpus > maxPromisedGPUs:
		return errorf(connect.CodeResourceExhausted, "the pool promises at most %d GPUs to %d leases; try again when some of them have begun", maxPromisedGPUs, maxPromises)
	case own >= free:
		return errorf(connect.CodeResourceExhausted, "tenant %s has %s, and those that are still free, %d, are kept for other tenants", s.Tenant, plural.Count(own, "reservation", "reservations"), free)
	case q.MaxGPUs > 0 && ownGPUs > q.MaxGPUs:
		return errorf(connect.CodeResourceExhausted, "spec.count: with this lease %d GPUs would be promised to tenant %s, whose quota is %d", ownGPUs, s.Tenant, q.MaxGPUs)
	case guaranteed && !s.Preemptible && wholeGPUs(firm) > g:
		return errorf(connect.CodeResourceExhausted, "spec.count: with this lease %d GPUs would be promised to leases of tenant %s that are not preemptible, and %v are guaranteed to it", firm, s.Tenant, g)
	}
	return nil
}

// promised returns the GPUs and slots that are promised to other leases at some time from
// one moment until another one; zero: for ever. The ID and the spec are those of the lease
// that asks.
func (t *tx) promised(id string, s *dxpuv1.LeaseSpec, from, until time.Time) (gpus []placement.Ref, slots []placement.HostSlotRef) {
	t.reindex()
	if r := t.tried.taken; r != nil {
		gpus, slots = slices.Clone(r.gpus), slices.Clone(r.slots)
	}
	for other := range t.promises {
		l := t.leases.get(other)
		if other == id || l == nil || l.Promise == nil {
			continue
		}
		if !l.promisedDuring(from, until) || t.yields(l, id, s) {
			continue
		}
		gpus = append(gpus, l.Promise.GPUs...)
		slots = append(slots, hostSlotRefs(l.Promise.Host, l.Promise.Slots)...)
	}
	return gpus, slots
}

// promisedDuring reports whether others must leave alone what is promised to a lease, at
// some time from one moment until another one; zero: for ever. The time between two promises
// of the same is promiseLead, whichever was made first.
func (l *leaseRecord) promisedDuring(from, until time.Time) bool {
	return from.Before(l.expires().Add(promiseLead)) && (until.IsZero() || until.After(startTime(l.spec).Add(-promiseLead)))
}

// noteKept adds to a decision that found no place what is kept from the lease: for the first one
// of the queue, or for leases that begin later. It says so only if some of that would help.
func (t *tx) noteKept(id string, s *dxpuv1.LeaseSpec, r *reservation, d *placement.Decision, h *placement.HostDecision) {
	if d.OK() && h.OK() || len(d.Kept)+len(h.Kept) == 0 {
		return
	}
	keeps := func(gpus []placement.Ref, slots []placement.HostSlotRef) bool {
		return slices.ContainsFunc(d.Kept, func(r placement.Ref) bool { return slices.Contains(gpus, r) }) ||
			slices.ContainsFunc(h.Kept, func(r placement.HostSlotRef) bool { return slices.Contains(slots, r) })
	}
	why := &d.Why
	if d.OK() {
		why = &h.Why // decisionWhy shows only these
	}
	if r != nil && keeps(r.gpus, r.slots) {
		*why = append(*why, r.why(t))
	}
	if gpus, slots := t.promised(id, s, t.beginsBy(s), t.endsBy(s)); keeps(gpus, slots) {
		*why = append(*why, fmt.Sprintf("%s and %s are promised to leases that begin later; a lease that ends before may have them.",
			plural.Count(len(gpus), "GPU", "GPUs"), plural.Count(len(slots), "host slot", "host slots")))
	}
}

// advancePromise lets a lease begin when its time comes, and until then keeps what is
// promised to it. It reports whether it changed the lease.
func (t *tx) advancePromise(l *leaseRecord) bool {
	at, start := subject{leaseSubject, l.ID}, startTime(l.spec)
	switch {
	case l.Promise == nil:
		return false
	case l.Promise.Begun:
		return t.advanceBegun(l)
	case t.dueOrSchedule(at, start):
		begun := *l.Promise
		begun.Begun = true
		t.editLease(l.ID).Promise = &begun
		t.setLeaseState(l.ID, leasePending, "in the queue: its time has begun")
		t.advanceBegun(t.leases.get(l.ID))
		t.capacityGrew = true
		return true
	case t.dueOrSchedule(at, start.Add(-promiseLead)) && t.clearPromised(l, false):
		t.alarms.set(at, t.clock()+evictInterval)
	}
	if !t.dueOrSchedule(at, t.reconnected()) {
		return false // a host or box that is still looking for a new leader cannot be judged
	}
	t.alarms.set(at, t.clock()+promiseCheck)
	return t.keepPromise(l)
}

// advanceBegun clears what is promised to a lease whose time has begun. If the quota of its
// tenant does not admit the lease, the promise ends after a while, because no lease could use
// what it holds. It reports whether it did.
func (t *tx) advanceBegun(l *leaseRecord) bool {
	at := subject{leaseSubject, l.ID}
	t.alarms.set(at, t.clock()+promiseCheck)
	why := cmp.Or(t.quotaReached([]*leaseRecord{l}), t.overQuota(l.spec.Tenant, l.size(), t.modelAt(l.Promise.GPUs[0])))
	if why == "" {
		if t.clearPromised(l, true) {
			t.alarms.set(at, t.clock()+evictInterval)
		}
		return false
	}
	if !t.dueOrSchedule(at, startTime(l.spec).Add(promiseGrace)) {
		return false
	}
	t.editLease(l.ID).Promise = nil
	t.event(leaseEvent(l, dxpuv1.EventType_EVENT_TYPE_LEASE_QUEUED), "nothing is promised to lease %s any more, because it could not use it: %s", l.ID, why)
	return true
}

// keepPromise moves the promise to other GPUs if it cannot be kept with those that it has, once
// in a transaction: two that take each other's GPUs would not settle.
func (t *tx) keepPromise(l *leaseRecord) bool {
	why := t.obstacleOf(l)
	if why != "" {
		if !t.movedPromises[l.ID] && t.makePromise(l.ID) == "" {
			t.movedPromises[l.ID] = true
			t.capacityGrew = true // others may have what it leaves
			return true
		}
		why += ", and no others are free at that time"
	}
	if why == l.Promise.Obstacle {
		return false
	}
	p := *l.Promise
	p.Obstacle = truncate(why, maxReason)
	t.editLease(l.ID).Promise = &p
	if why == "" {
		why = "all of it can be had again"
	}
	t.event(leaseEvent(l, dxpuv1.EventType_EVENT_TYPE_LEASE_QUEUED), "lease %s begins at %s, and what is promised to it: %s", l.ID, rfc3339(startTime(l.spec)), why)
	return true
}

// obstacleOf returns why a promise could not be kept now, "" if it could. What other leases
// have until then is none, unless the promise yields to them.
func (t *tx) obstacleOf(l *leaseRecord) string {
	t.reindex()
	usable := func(id string) bool {
		n := t.nodes.get(id)
		return n != nil && t.connected(id) && n.takesBindings() && !slices.ContainsFunc(t.plansOf(n), func(p *planRecord) bool {
			return startTime(l.spec).Before(p.End) && l.expires().After(p.closes())
		})
	}
	if !usable(l.Promise.Host) {
		return fmt.Sprintf("host %s cannot be used", l.Promise.Host)
	}
	for _, r := range l.Promise.GPUs {
		if s := t.boxSlot(r); s == nil || s.Device == nil || !s.takesBindings() || !usable(r.Box) {
			return fmt.Sprintf("GPU %s cannot be used", r)
		}
	}
	for _, slot := range l.Promise.Slots {
		if s := t.nodes.get(l.Promise.Host).slot(slot); s == nil || !s.usableAtHost() {
			return fmt.Sprintf("slot %d of host %s cannot be used", slot, l.Promise.Host)
		}
	}
	return cmp.Or(t.misfitOf(l), t.takenBack(l))
}

// takenBack returns which GPU or slot a promise yields to another lease, "" for none: it
// has it and does not end before, or it begins later too.
func (t *tx) takenBack(l *leaseRecord) string {
	to := func(bindings []string) string {
		for _, id := range bindings {
			o := t.leases.get(t.bindings.get(id).LeaseID)
			if o == nil || !o.holds() || !t.yields(l, o.ID, o.spec) {
				continue
			}
			if e := o.expires(); e.IsZero() || e.After(startTime(l.spec)) {
				return o.spec.Tenant
			}
		}
		return ""
	}
	for _, r := range l.Promise.GPUs {
		if tenant := to(t.bindingsOn(r)); tenant != "" {
			return fmt.Sprintf("GPU %s went to tenant %s within its guarantee", r, tenant)
		}
	}
	for _, s := range l.Promise.Slots {
		if tenant := to(t.bindingsByHostSlot[hostSlotRef{l.Promise.Host, s}]); tenant != "" {
			return fmt.Sprintf("slot %d of host %s went to tenant %s within its guarantee", s, l.Promise.Host, tenant)
		}
	}
	for _, id := range slices.SortedFunc(maps.Keys(t.promises), compareLeaseIDs) {
		o := t.leases.get(id)
		if id != l.ID && o.Promise != nil && o.Promise.shares(l.Promise) && o.promisedDuring(startTime(l.spec), l.expires()) && t.yields(l, id, o.spec) {
			return fmt.Sprintf("lease %s of tenant %s has the same promise within its guarantee", id, o.spec.Tenant)
		}
	}
	return ""
}

// shares reports whether two promises have a GPU or a slot of a host in common.
func (p *promiseRecord) shares(o *promiseRecord) bool {
	return slices.ContainsFunc(p.GPUs, func(r placement.Ref) bool { return slices.Contains(o.GPUs, r) }) ||
		p.Host == o.Host && slices.ContainsFunc(p.Slots, func(s uint32) bool { return slices.Contains(o.Slots, s) })
}

// clearPromised moves leases away from what is promised to one that begins. If it is late,
// it ends the bindings that cannot move. Before, it leaves alone those that end in time. It
// reports whether something is in the way.
func (t *tx) clearPromised(l *leaseRecord, late bool) bool {
	t.reindex()
	byLease, atHost, busy := map[string][]string{}, map[string]bool{}, false
	inTheWay := func(id string) bool {
		b := t.bindings.get(id)
		if b == nil || b.LeaseID == l.ID {
			return false
		}
		o := t.leases.get(b.LeaseID)
		holds := b.serving() && o != nil && o.holds()
		if holds && t.yields(l, o.ID, o.spec) {
			return false
		}
		if busy = true; !holds {
			return false
		}
		e := o.expires()
		return late || e.IsZero() || e.After(startTime(l.spec))
	}
	for _, r := range l.Promise.GPUs {
		for _, id := range t.bindingsOn(r) {
			if inTheWay(id) {
				lease := t.bindings.get(id).LeaseID
				byLease[lease] = append(byLease[lease], id)
			}
		}
	}
	for _, s := range l.Promise.Slots {
		for _, id := range t.bindingsByHostSlot[hostSlotRef{l.Promise.Host, s}] {
			if inTheWay(id) {
				atHost[t.bindings.get(id).LeaseID] = true
			}
		}
	}
	why := fmt.Sprintf("its GPUs are promised to lease %s, which begins", l.ID)
	for _, lease := range slices.Sorted(maps.Keys(byLease)) {
		if o := t.leases.get(lease); !t.moveAway(o, byLease[lease], dxpuv1.Reason_REASON_DRAINED) && late {
			for _, id := range byLease[lease] {
				t.release(id, dxpuv1.Reason_REASON_DRAINED, true)
			}
		}
	}
	if late {
		for _, lease := range slices.Sorted(maps.Keys(atHost)) {
			if o := t.leases.get(lease); o.holds() {
				t.evictFromHost(o, dxpuv1.Reason_REASON_DRAINED, why)
			}
		}
	}
	return busy
}

// whyPromised returns what is promised to a lease that begins later.
func (l *leaseRecord) whyPromised() string {
	n, are := len(l.Promise.GPUs), "are"
	if n == 1 {
		are = "is"
	}
	why := fmt.Sprintf("It begins at %s: %s with %s of host %s %s promised to it.",
		rfc3339(startTime(l.spec)), plural.Count(n, "GPU", "GPUs"), plural.Count(n, "slot", "slots"), l.Promise.Host, are)
	if l.Promise.Obstacle != "" {
		why += " The promise cannot be kept now: " + l.Promise.Obstacle + "."
	}
	return why
}

// reservationMessage returns what is promised as the API has it, nil for nothing.
func reservationMessage(p *promiseRecord) *dxpuv1.Reservation {
	if p == nil {
		return nil
	}
	out := &dxpuv1.Reservation{HostId: p.Host, Obstacle: p.Obstacle}
	for _, r := range p.GPUs {
		out.GpuIds = append(out.GpuIds, r.String())
	}
	return out
}

// expireTime returns when a lease with a spec that begins at a time is over.
func expireTime(s *dxpuv1.LeaseSpec) time.Time { return startTime(s).Add(s.ExpiresAfter.AsDuration()) }
