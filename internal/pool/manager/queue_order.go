package manager

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// The queue is ordered by priority. Within a priority the tenant with the fewest GPUs
// comes first, so that a tenant with many requests cannot starve the others; the
// oldest lease of each tenant comes first. A lease that does not fit yet, or whose
// tenant has reached its quota, does not hold up those behind it.

// firstPending returns the first lease of the queue whose shape was not tried
// in this pass.
func (t *tx) firstPending() (id, shape string) {
	t.reindex()
	var first queueKey
	var has uint32
	for s, keys := range t.pendingByShape {
		if t.pass.tried[s] {
			continue
		}
		p := keys[0]
		gpus := t.gpusOf(t.leases.get(p.id).spec.Tenant)
		if id == "" || compareQueued(p, gpus, first, has) < 0 {
			first, has, id, shape = p, gpus, p.id, s
		}
	}
	return id, shape
}

func (t *tx) gpusOf(tenant string) uint32 {
	if u := t.usageByTenant[tenant]; u != nil {
		return u.gpus
	}
	return 0
}

// compareQueued compares two pending leases whose tenants have gpusA and gpusB GPUs.
func compareQueued(a queueKey, gpusA uint32, b queueKey, gpusB uint32) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(gpusA, gpusB), a.compare(b))
}

// grant gives a pending lease GPUs: free ones or, if there are none, those of
// leases that it preempts. It reports whether it did.
func (t *tx) grant(id string) bool {
	l := t.leases.get(id)
	if t.quotaReached(l.spec) != "" {
		return false
	}
	d, h := t.decideWithin(l.spec)
	if !d.OK() || !h.OK() {
		return t.preempt(l)
	}
	t.bindDecision(id, d, h, nil)
	return true
}

// bindDecision creates the bindings of a decision. held maps GPUs that other
// bindings still hold to those bindings; the new ones wait for them.
func (t *tx) bindDecision(id string, d placement.Decision, h placement.HostDecision, held map[placement.Ref]string) {
	l := t.editLease(id)
	l.Explanation = nil
	l.explain(slices.Concat(h.Why, d.Why)...)
	l.HostID = h.Host
	l.Model = t.modelAt(d.Picks[0])
	for i, gpu := range d.Picks {
		t.bindAfter(l, h.Host, h.Slots[i], gpu, held[gpu])
	}
	t.setLeaseState(id, leaseBinding, "GPUs are being attached")
}

// whyPending returns why a lease is pending now.
func (t *tx) whyPending(l *leaseRecord) []string {
	place := fmt.Sprintf("It is number %d of %d in the queue: its priority is %d, and tenant %s has %d GPUs.",
		t.queuePosition(l.ID), len(t.queuePositions), l.spec.Priority, l.spec.Tenant, t.gpusOf(l.spec.Tenant))
	return append([]string{place}, t.whyNotNow(l)...)
}

// whyNotNow returns why a lease cannot be granted now.
func (t *tx) whyNotNow(l *leaseRecord) []string {
	if q := t.quotaReached(l.spec); q != "" {
		return []string{q}
	}
	d, h := t.decideWithin(l.spec)
	why := slices.Concat(h.Why, d.Why)
	if !d.OK() || !h.OK() {
		why = append(why, t.whyNotPreempt(l))
	}
	return why
}

// queuePosition returns the position of a lease in the queue, from 1: the order in
// which the leases would get GPUs if each of them fitted. 0: the lease is not pending.
func (t *tx) queuePosition(id string) uint32 {
	if t.queuePositions == nil {
		t.queuePositions = map[string]uint32{}
		for i, p := range t.queueOrder() {
			t.queuePositions[p.id] = uint32(i + 1)
		}
	}
	return t.queuePositions[id]
}

// tenantQueue holds the pending leases of a tenant with one priority, oldest first.
type tenantQueue struct {
	tenant string
	keys   []queueKey
}

// queueOrder returns all pending leases in order.
func (t *tx) queueOrder() []queueKey {
	t.reindex()
	type key struct {
		priority int32
		tenant   string
	}
	lines := map[key]*tenantQueue{}
	gpus := map[string]uint32{}
	for _, keys := range t.pendingByShape {
		for _, p := range keys {
			k := key{p.priority, t.leases.get(p.id).spec.Tenant}
			if lines[k] == nil {
				lines[k] = &tenantQueue{tenant: k.tenant}
			}
			lines[k].keys = append(lines[k].keys, p)
			gpus[k.tenant] = t.gpusOf(k.tenant)
		}
	}
	var out []queueKey
	waiting := slices.Collect(maps.Values(lines))
	for _, l := range waiting {
		slices.SortFunc(l.keys, queueKey.compare)
	}
	for len(waiting) > 0 {
		first := slices.MinFunc(waiting, func(a, b *tenantQueue) int {
			return compareQueued(a.keys[0], gpus[a.tenant], b.keys[0], gpus[b.tenant])
		})
		p := first.keys[0]
		out = append(out, p)
		gpus[first.tenant] += t.leases.get(p.id).spec.Count
		if first.keys = first.keys[1:]; len(first.keys) == 0 {
			waiting = slices.DeleteFunc(waiting, func(l *tenantQueue) bool { return l == first })
		}
	}
	return out
}

const (
	// maxAttemptsPerPass and maxGrants bound the part of the queue that one
	// transaction serves.
	maxAttemptsPerPass = 64
	maxGrants          = 64
)

// serve offers capacity that has come back to the leases that need it: first
// those that need a replacement, then the queue. A small lease may pass a large
// one that does not fit. It reports whether anything changed.
func (t *tx) serve() bool {
	p := &t.pass
	if t.capacityGrew && !p.active {
		t.capacityGrew = false
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
		if t.grant(id) {
			t.grants++
			return true
		}
		t.attempts++
		p.tried[shape] = true
	}
	return false
}
