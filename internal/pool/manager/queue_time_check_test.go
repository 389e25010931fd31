package manager

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/plural"
)

// checkStarts checks the reservations that have begun.
func (w *timedWorld) checkStarts() {
	for id, at := range w.promised {
		if at.After(w.clock.now().Add(-2 * time.Second)) {
			continue
		}
		delete(w.promised, id)
		l := w.lease(id)
		over := false
		_ = w.m.view(func(tx *tx) error {
			o := tx.leases.get(id)
			over = o.Promise != nil && tx.quotaReached([]*leaseRecord{o})+tx.overQuota(o.spec.Tenant, o.size(), tx.modelAt(o.Promise.GPUs[0])) != ""
			return nil
		})
		if w.n.begun++; !w.troubled[id] && !over && l.State != leaseActive {
			w.Errorf("reservation %s begins, and is %s: %s; %s", id, leaseWord(l.State), l.StateReason, w.explain(id))
		}
	}
}

// check checks a pool at rest.
func (w *timedWorld) check() {
	_ = w.m.view(func(tx *tx) error {
		p := plainTimesOf(tx)
		w.checkApart(tx, p)
		for _, id := range tx.leases.ids() {
			l := tx.leases.get(id)
			switch {
			case l.State != leasePending:
			case l.sleeps():
				w.checkObstacle(tx, p, l)
			default:
				w.checkWaits(tx, p, l)
			}
		}
		w.checkHolder(tx, p)
		return nil
	})
}

// checkApart checks that what is promised is not used, or promised to others, at that time.
func (w *timedWorld) checkApart(tx *tx, p *plainTimes) {
	for i, q := range p.promises {
		l := tx.leases.get(q.lease)
		for _, o := range p.promises[:i] {
			if l.Promise.shares(tx.leases.get(o.lease).Promise) && q.from.Before(o.until.Add(time.Minute)) && o.from.Before(q.until.Add(time.Minute)) {
				w.Errorf("%s and %s have the same promise", q.lease, o.lease)
			}
		}
		if l.Promise.Obstacle != "" || l.Promise.Begun {
			continue
		}
		for _, o := range slices.Concat(p.gpus, p.slots) {
			if !o.busy || o.stuck || !slices.Contains(slices.Concat(q.gpus, q.slots), o.ref) {
				continue
			}
			if tx.now.Before(q.from.Add(-time.Minute)) && (o.until.IsZero() || o.until.After(q.from.Add(5*time.Second-time.Minute))) {
				w.Errorf("%s is promised to %s from %v, and busy until %v", o.ref, q.lease, q.from, o.until)
			}
		}
	}
}

// checkObstacle checks whether a promise can be kept.
func (w *timedWorld) checkObstacle(tx *tx, p *plainTimes, l *leaseRecord) {
	c := claimOf(tx, l.ID, l.spec)
	if tx.now.After(c.freeBy) {
		return
	}
	bad := ""
	for _, o := range slices.Concat(p.gpus, p.slots) {
		if slices.Contains(l.Promise.GPUs, o.ref) || o.ref.Box == l.Promise.Host && slices.Contains(l.Promise.Slots, o.ref.Slot) {
			o.busy = o.busy && !o.stuck
			if !p.free(&o, &c) {
				bad = o.ref.String()
			}
		}
	}
	justLost := slices.ContainsFunc(tx.nodes.ids(), func(id string) bool {
		at := tx.live[id].lostAt(tx.now)
		return at.After(tx.now.Add(-promiseCheck)) && !at.After(tx.now) // the manager has not looked since
	})
	if (bad != "") != (l.Promise.Obstacle != "") && !justLost {
		w.Errorf("%s cannot be had by %s, and its obstacle is %q", bad, l.ID, l.Promise.Obstacle)
	}
	if why := l.Promise.Obstacle; why != "" && tx.reserved == nil && p.fits(&c) && len(tx.quota(l.spec.Tenant).MaxGPUsByModel) == 0 {
		w.Errorf("other GPUs can be promised to %s: %s", l.ID, why)
	}
}

// checkHolder checks that what is held is held for the first lease of the queue that it could
// ever help. With maintenance ahead that changes as time passes, and is seen in the next pass of
// the queue.
func (w *timedWorld) checkHolder(tx *tx, p *plainTimes) {
	if len(tx.plans.rows) > 0 {
		return
	}
	var first *leaseRecord
	for _, id := range tx.leases.ids() {
		l := tx.leases.get(id)
		if l.State != leasePending || l.sleeps() || tx.quotaReached([]*leaseRecord{l}) != "" {
			continue
		}
		c := claimOf(tx, id, l.spec)
		if !p.emptied().fits(&c) {
			continue
		}
		a, b := tx.indexedLeases[id], leaseEntry{}
		if first != nil {
			b = tx.indexedLeases[first.ID]
		}
		if first == nil || tx.compareQueued(a.queueKey, tx.turnOf(a.tenant), b.queueKey, tx.turnOf(b.tenant)) < 0 {
			first = l
		}
	}
	aged := first != nil && tx.indexedLeases[first.ID].queueKey.aged(tx.now)
	switch r := tx.reserved; {
	case first == nil && r != nil:
		w.Errorf("%v is held for lease %s, which does not need it", r.places(), r.lease)
	case first != nil && r != nil && !aged && tx.leases.get(r.lease).spec.Priority == first.spec.Priority && tx.quotaReached([]*leaseRecord{tx.leases.get(r.lease)}) == "":
		// The next pass of the queue sees which of them is first: their tenants have more.
	case first != nil && (r == nil || r.lease != first.ID):
		w.Errorf("lease %s is the first of the queue, and what is held is %+v: %s", first.ID, r, strings.Join(tx.whyPending(first), " "))
	}
}

// checkWaits checks that a lease in the queue does not fit.
func (w *timedWorld) checkWaits(tx *tx, p *plainTimes, l *leaseRecord) {
	w.n.queued++
	tx.explained = 0 // each is as in a call of its own
	why := strings.Join(tx.whyPending(l), " ")
	w.checkWhy(tx, p, l, why)
	if tx.quotaReached([]*leaseRecord{l}) != "" {
		return
	}
	c := claimOf(tx, l.ID, l.spec)
	if !p.fits(&c) {
		return
	}
	r := tx.reservedFrom(l.ID, l.spec, l.size())
	if r == nil {
		w.Errorf("lease %s waits, and fits: %s", l.ID, why)
		return
	}
	c.without = r.places()
	if p.fits(&c) {
		w.Errorf("lease %s waits, and fits beside what is held for %s, %v: %s", l.ID, r.lease, c.without, why)
	}
	w.n.held++
	if all := p.emptied(); !all.fits(&claim{lease: r.lease, spec: tx.leases.get(r.lease).spec, from: tx.now, until: tx.endsBy(tx.leases.get(r.lease).spec), mayHave: func(string) bool { return true }}) {
		w.Errorf("%s is held for lease %s, which would not fit if nothing else were there", r.places(), r.lease)
	}
	holder := tx.leases.get(r.lease)
	a, b := tx.indexedLeases[r.lease], tx.indexedLeases[l.ID]
	if q := tx.quotaReached([]*leaseRecord{holder}); q != "" || tx.compareQueued(b.queueKey, tx.turnOf(b.tenant), a.queueKey, tx.turnOf(a.tenant)) < 0 {
		w.Errorf("lease %s waits for %s, which is not before it in the queue, or waits for its quota: %s", l.ID, r.lease, q)
	}
	for _, o := range slices.Concat(p.gpus, p.slots) {
		if slices.Contains(c.without, o.ref) && o.busy {
			w.Errorf("%s is held for %s, and busy", o.ref, r.lease)
		}
	}
}

// checkWhy checks what a lease that waits is told about what others hold.
func (w *timedWorld) checkWhy(tx *tx, p *plainTimes, l *leaseRecord, why string) {
	c := claimOf(tx, l.ID, l.spec)
	gpus, slots := 0, 0
	for _, q := range p.promises {
		if q.lease != l.ID && c.from.Before(q.until.Add(time.Minute)) && (c.until.IsZero() || c.until.After(q.from.Add(-time.Minute))) {
			gpus, slots = gpus+len(q.gpus), slots+len(q.slots)
		}
	}
	said := fmt.Sprintf("%s and %s are promised to leases", plural.Count(gpus, "GPU", "GPUs"), plural.Count(slots, "host slot", "host slots"))
	if strings.Contains(why, "promised to leases") && !strings.Contains(why, said) {
		w.Errorf("lease %s is told %q, and %s", l.ID, why, said)
	}
	if !strings.Contains(why, "first in the queue and needs") {
		return
	}
	r := tx.reservedFrom(l.ID, l.spec, l.size())
	free := func(places []timedPlace) (n int) {
		for _, o := range places {
			if slices.Contains(r.places(), o.ref) && o.sound && !o.busy {
				n++
			}
		}
		return n
	}
	said = fmt.Sprintf("%s and %s are held", plural.Count(free(p.gpus), "free GPU", "free GPUs"), plural.Count(free(p.slots), "host slot", "host slots"))
	if !strings.Contains(why, said) {
		w.Errorf("lease %s is told %q, and %s", l.ID, why, said)
	}
}

// deleteServed deletes the leases that do not wait, and reports whether there were any.
func (w *world) deleteServed() (some bool) {
	for _, l := range w.leases() {
		if l.EndTime == nil && l.State != leasePending {
			w.delete(l.Id, true)
			some = true
		}
	}
	return some
}

// empty repairs the pool, and ends all leases: each that waits gets its turn.
func (w *timedWorld) empty() {
	for _, id := range w.order {
		n := w.nodes[id]
		n.down = false
		clear(n.dead)
		if n.box() {
			w.uncordon(atBox(id))
		} else {
			w.uncordon(atHost(id))
		}
	}
	for _, id := range []string{"a", "b"} {
		w.putTenant(id, &dxpuv1.Quota{MaxPriority: proto.Int32(2)})
	}
	w.advance(40 * time.Minute)
	for range 30 {
		ended := w.deleteServed()
		if w.settle(); !ended {
			break
		}
	}
	_ = w.m.view(func(tx *tx) error {
		p := plainTimesOf(tx)
		for _, id := range tx.leases.ids() {
			if l := tx.leases.get(id); !l.ended() {
				if c := claimOf(tx, id, l.spec); l.holds() || p.fits(&c) {
					w.Errorf("lease %s is %s at last: %s", id, leaseWord(l.State), tx.whyPending(l))
				}
			}
		}
		return nil
	})
}
