package manager

import (
	"time"

	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// promiseWatch remembers what the last check of a world saw, to know which bindings are new.
type promiseWatch struct {
	at       time.Time
	bindings map[string]bool
	promises map[string]*promiseRecord
}

// check checks that promises are complete and apart from each other, and that no other
// lease got what they hold since the last check, unless it ends in time. Tenants have no
// guarantees here: see TestGuaranteesHold.
func (p *promiseWatch) check(t *rapid.T, w *world, tx *tx) {
	promises, promised := map[string]*promiseRecord{}, map[string]int{}
	for _, id := range tx.leases.ids() {
		l := tx.leases.get(id)
		if l.Promise == nil {
			continue
		}
		if l.State != leasePending || len(l.Promise.GPUs) != int(l.spec.Count) || len(l.Promise.Slots) != int(l.spec.Count) {
			t.Fatalf("lease %s is %s, and has a promise of %d GPUs: %+v\n%s", id, leaseWord(l.State), l.spec.Count, l.Promise, w.events())
		}
		if tx.now.Sub(l.expires()) > time.Minute {
			t.Fatalf("the time of lease %s is over since %v, and it has a promise\n%s", id, l.expires(), w.events())
		}
		for other, o := range promises {
			if l.Promise.shares(o) && tx.leases.get(other).promisedDuring(startTime(l.spec), l.expires()) {
				t.Fatalf("leases %s and %s have promises of the same\n%s", id, other, w.events())
			}
		}
		promises[id] = l.Promise
		promised[l.spec.Tenant] += len(l.Promise.GPUs)
	}
	for tenant, n := range promised {
		if q := tx.quota(tenant); q.MaxGPUs > 0 && n > int(q.MaxGPUs) {
			t.Fatalf("tenant %s has promises of %d GPUs, its quota is %d\n%s", tenant, n, q.MaxGPUs, w.events())
		}
	}
	bindings := map[string]bool{}
	for _, id := range tx.bindings.ids() {
		bindings[id] = true
		if !p.bindings[id] {
			p.checkNew(t, w, tx, tx.bindings.get(id), promises)
		}
	}
	p.at, p.bindings, p.promises = tx.now, bindings, promises
}

// checkNew checks a binding that began since the last check.
func (p *promiseWatch) checkNew(t *rapid.T, w *world, tx *tx, b *bindingRecord, promises map[string]*promiseRecord) {
	o := tx.leases.get(b.LeaseID)
	for id, promise := range promises {
		before := p.promises[id]
		if id == b.LeaseID || before == nil || o == nil {
			continue
		}
		// A promise that has moved in the meantime was another one.
		one := &promiseRecord{Host: b.HostID, Slots: []uint32{b.HostSlot}, GPUs: []placement.Ref{b.gpu()}}
		if !one.shares(promise) || !one.shares(before) {
			continue
		}
		ends, began := o.expires(), b.Steps[0].Time
		if o.spec.ExpiresAfter != nil && o.spec.StartTime == nil && (o.Running.IsZero() || began.Before(o.Running)) {
			ends = began.Add(o.spec.ExpiresAfter.AsDuration()) // its time counts from when it is active
		}
		if ends.IsZero() || ends.After(startTime(tx.leases.get(id).spec).Add(-promiseLead)) {
			t.Fatalf("lease %s got GPU %s and slot %d of host %s, which lease %s has promised\n%s", o.ID, b.gpuID(), b.HostSlot, b.HostID, id, w.events())
		}
	}
}

// checkBegun checks a lease in the queue of a pool at rest: if it has begun and could have
// what is promised to it, it does not wait.
func (w *world) checkBegun(t *rapid.T, id string) {
	_ = w.m.view(func(tx *tx) error {
		l := tx.leases.get(id)
		if l == nil || l.Promise == nil || !l.Promise.Begun || tx.obstacleOf(l) != "" {
			return nil
		}
		why := tx.quotaReached([]*leaseRecord{l}) + tx.overQuota(l.spec.Tenant, l.size(), tx.modelAt(l.Promise.GPUs[0]))
		if why == "" {
			t.Fatalf("lease %s has begun and waits, with a promise of %v: %s\n%s", id, l.Promise, tx.whyPending(l), w.events())
		}
		return nil
	})
}

// timeComes reports whether a lease begins or ends within seconds, or its promise ends.
func (w *world) timeComes() (soon bool) {
	_ = w.m.view(func(tx *tx) error {
		for _, id := range tx.leases.ids() {
			l := tx.leases.get(id)
			for _, at := range []time.Time{startTime(l.spec), startTime(l.spec).Add(promiseGrace), l.expires()} {
				in := at.Sub(tx.now)
				soon = soon || !l.ended() && in > 0 && in < 3*time.Second
			}
		}
		return nil
	})
	return soon
}
