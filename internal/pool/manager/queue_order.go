package manager

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// The queue is ordered by priority. Within a priority come first the leases that have
// waited for long, then the tenant with the smallest share of the pool (queue_share.go),
// so that a tenant with many
// requests cannot starve the others; the oldest lease of each tenant comes first. A lease that does not fit yet, or whose
// tenant has reached its quota, does not hold up those behind it.

// firstPending returns the first lease of the queue whose shape was not tried
// in this pass.
func (t *tx) firstPending() (id, shape string) {
	t.reindex()
	var first queueKey
	var has float64
	shares := map[string]float64{}
	for s, keys := range t.pendingByShape {
		if t.pass.tried[s] {
			continue
		}
		p := keys[0]
		tenant := t.indexedLeases[p.id].tenant
		share, known := shares[tenant]
		if !known {
			share = t.turnOf(tenant)
			shares[tenant] = share
		}
		if id == "" || t.compareQueued(p, share, first, has) < 0 {
			first, has, id, shape = p, share, p.id, s
		}
	}
	return id, shape
}

func (t *tx) gpusOf(tenant string) milliGPU {
	if u := t.usageByTenant[tenant]; u != nil {
		return u.gpus
	}
	return 0
}

// grant gives a pending lease, and those of its gang, GPUs: free ones or, if there are
// none, those of leases that it preempts. It returns the number of leases that got theirs.
func (t *tx) grant(id string) int {
	leases := t.membersOf(t.gangOf(id))
	if t.quotaReached(leases) != "" {
		return 0
	}
	var d placement.GangDecision
	var held map[placement.Ref][]string
	var why string
	t.briefly(func() { // 64 leases in a transaction
		if d = t.decideTogether(leases); !d.OK() {
			d, held, why = t.preempt(leases)
		}
	})
	if !d.OK() {
		return 0
	}
	for i, l := range leases {
		t.bindAssignment(l.ID, &d.Members[i], held)
		if why != "" {
			t.noteVictims(l.ID, why)
		}
	}
	return len(leases)
}

// bindAssignment creates the bindings of a lease. held maps GPUs that other
// bindings still hold, or parts of them, to those bindings; the new ones wait for them.
func (t *tx) bindAssignment(id string, a *placement.Assignment, held map[placement.Ref][]string) {
	l := t.editLease(id)
	l.Explanation = nil
	l.explain(slices.Concat(a.Host.Why, a.Why)...)
	l.HostID, l.Promise = a.Host.Host, nil
	l.Granted = t.now
	l.Model, l.Share, l.Size = t.modelAt(a.Picks[0]), shareMode(a.Share), uint32(t.sizeAt(l.spec, a.Picks))
	for i, gpu := range a.Picks {
		t.bindAfter(l, a.Host.Host, a.Host.Slots[i], gpu, held[t.gpuAt(gpu)])
	}
	t.setLeaseState(id, leaseBinding, "GPUs are being attached")
	t.tookMore(l.spec.Tenant)
}

// whyPending returns why a lease is pending now.
func (t *tx) whyPending(l *leaseRecord) []string {
	if l.sleeps() {
		return []string{l.whyPromised()}
	}
	place := fmt.Sprintf("It is number %d of %d in the queue: its priority is %d, and %s.",
		t.queuePosition(l.ID), t.waiting.len(), l.spec.Priority, t.shareText(l.spec.Tenant))
	return append([]string{place}, t.whyNotNow(l)...)
}

// whyNotNow returns why a lease cannot be granted now.
func (t *tx) whyNotNow(l *leaseRecord) []string {
	if why := t.whyNotOffered(l); why != "" {
		return []string{why}
	}
	leases := t.membersOf(t.gangOf(l.ID))
	d := t.decideTogether(leases)
	if d.OK() {
		a := d.Members[slices.Index(leases, l)]
		return decisionWhy(a.Decision, a.Host)
	}
	return append(decisionWhy(d.Why.Decision, d.Why.Host), t.whyNotPreempt(leases))
}

// whyNotOffered returns why a pending lease is offered no GPUs, whatever is free; "" if it is.
func (t *tx) whyNotOffered(l *leaseRecord) string {
	switch {
	case l.lacksMembers():
		return t.lacksMembersWhy(l)
	case l.sleeps():
		return l.whyPromised()
	}
	return t.quotaReached(t.membersOf(t.gangOf(l.ID)))
}

// lackOf returns what a pending lease lacks: leases of its gang, quota, slots of a host,
// or GPUs.
func (t *tx) lackOf(l *leaseRecord) string {
	if why := t.whyNotOffered(l); why != "" {
		return why
	}
	d := t.decideTogether(t.membersOf(t.gangOf(l.ID)))
	why := d.Why.Why
	if !d.Why.Host.OK() {
		why = d.Why.Host.Why
	}
	if d.OK() || len(why) == 0 {
		return "its turn did not come"
	}
	return strings.Join(why, " ")
}

const (
	// maxAttemptsPerPass and maxGrants bound the part of the queue that one
	// transaction serves. A gang counts as its leases.
	maxAttemptsPerPass = 64
	maxGrants          = 64
)

// serve offers capacity that has come back to the leases that need it: first
// those that need a replacement, then the queue. A small lease may pass a large
// one that does not fit, with what the first of these leaves (queue_reserve.go). It
// reports whether anything changed.
func (t *tx) serve() bool {
	p := &t.pass
	if t.capacityGrew && !p.active {
		t.capacityGrew = false
		t.reserved = nil
		*p = pass{active: true, replacements: sorted(slices.Collect(maps.Keys(t.unreplaced))), tried: map[string]bool{}}
	}
	if !p.active {
		return false
	}
	for len(p.replacements) > 0 {
		if t.attempts >= maxAttemptsPerPass {
			return false
		}
		id := p.replacements[0]
		p.replacements = p.replacements[1:]
		t.attempts++
		t.examined[subject{leaseSubject, id}] = true
		if l := t.leases.get(id); l != nil && l.holds() && t.advanceLease(id) {
			return true
		}
	}
	for t.attempts < maxAttemptsPerPass && t.grants < maxGrants {
		id, shape := t.firstPending()
		if id == "" {
			p.active = false
			return t.capacityGrew // another pass
		}
		if n := t.grant(id); n > 0 {
			t.grants += n
			return true
		}
		t.attempts += len(t.gangOf(id))
		p.tried[shape] = true
		if t.reserved == nil {
			t.reserve(id)
		}
	}
	return false
}
