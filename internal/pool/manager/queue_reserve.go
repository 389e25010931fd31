package manager

import (
	"fmt"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// A large lease would wait for ever if small ones took each GPU that comes back. So the
// first lease of the queue that does not fit holds the free GPUs and host slots which
// it needs, and gathers more as leases end. The others go ahead with what is left
// (backfill): in the same pass of the queue, and when they are created.
//
// What a lease holds is kept from leases of lower priority, and once it has aged from
// those of its own priority; but not from a tenant that is below its guarantee, if its own
// is not. Promises to leases that begin later leave it alone by the same rules, and leave
// enough of what will be free by then. Replacements of broken GPUs are not bound by it. It is
// not stored, because each pass of the queue makes it again.

// reservation is what the first lease of the queue holds.
type reservation struct {
	lease string
	gpus  []placement.Ref
	slots []placement.HostSlotRef
}

// reserveIfFirst makes a reservation for a lease that has entered the queue, if it comes
// before the one that has a reservation.
func (t *tx) reserveIfFirst(id string) {
	if r := t.reserved; r != nil {
		t.reindex()
		a, b := t.indexedLeases[id], t.indexedLeases[r.lease]
		if b.shape != "" && t.compareQueued(b.queueKey, t.turnOf(b.tenant), a.queueKey, t.turnOf(a.tenant)) < 0 {
			return
		}
	}
	t.reserve(id)
}

// reserve makes a reservation for a lease that did not fit, unless its quota keeps it
// waiting or the pool could never satisfy it. A part holds nothing: it would keep a whole
// GPU from others.
func (t *tx) reserve(id string) {
	leases := t.membersOf(t.gangOf(id))
	if leases[0].spec.Part != nil || t.quotaReached(leases) != "" {
		return
	}
	t.reindex()
	members := make([]placement.Member, len(leases))
	for i, l := range leases {
		members[i] = placement.Member{GPUs: t.requestOf(l.ID, l.spec, t.endsBy(l.spec)), Host: t.hostRequestOf(l.ID, l.spec, t.endsBy(l.spec))}
		members[i].GPUs.Uplinks = t.fullUplinks
	}
	gpus, slots, possible := t.gpuPool.Gather(t.hostPool, t.cfg.Reserve, members)
	if possible {
		t.reserved = &reservation{lease: id, gpus: gpus, slots: slots}
	}
}

// reservedFrom returns the reservation that a lease must leave alone when it gets some
// GPUs, with those of its gang; nil for none. The ID is empty if the lease does not exist
// yet.
func (t *tx) reservedFrom(id string, s *dxpuv1.LeaseSpec, gpus milliGPU) *reservation {
	r := t.reserved
	if r == nil || id != "" && t.firstOfGang(id) == r.lease {
		return nil
	}
	holder := t.leases.get(r.lease)
	if holder == nil || holder.State != leasePending {
		return nil
	}
	if t.withinGuarantee(s.Tenant, gpus) && !t.withinGuarantee(holder.spec.Tenant, t.sizeOfGang(holder)) {
		return nil
	}
	old := t.indexedLeases[r.lease].queueKey.aged(t.now)
	if s.Priority < holder.spec.Priority || s.Priority == holder.spec.Priority && old {
		return r
	}
	return nil
}

// neededAt returns what the lease of a reservation needs when another one begins later: where
// it fits, or else what it has gathered; nil if it would be over by then. The caller has
// taken the leases that end before out of the index, so a promise leaves enough of them.
func (t *tx) neededAt(r *reservation, start time.Time) *reservation {
	leases := t.membersOf(t.gangOf(r.lease))
	if ends := t.endsBy(leases[0].spec); !ends.IsZero() && !ends.After(start.Add(-promiseLead)) {
		return nil
	}
	var d placement.GangDecision
	if len(leases) > 1 {
		d = t.decideGang(leases, anyModel)
	} else {
		d.Members = make([]placement.Assignment, 1)
		d.Members[0].Decision, d.Members[0].Host = t.decide(r.lease, leases[0].spec, 0)
	}
	needs := &reservation{lease: r.lease}
	for _, a := range d.Members {
		if !a.OK() {
			return r
		}
		needs.gpus = append(needs.gpus, a.Picks...)
		for _, slot := range a.Host.Slots {
			needs.slots = append(needs.slots, placement.HostSlotRef{Host: a.Host.Host, Slot: slot})
		}
	}
	if len(d.Members) == 0 {
		return r
	}
	return needs
}

// why returns the sentence for a lease that did not fit because of the reservation.
func (r *reservation) why(t *tx) string {
	l, what := t.leases.get(r.lease), "lease"
	if l.spec.Gang != nil {
		what = "gang"
	}
	return fmt.Sprintf("%d free GPUs and %d host slots are held for a %s of priority %d that is first in the queue and needs %d.",
		len(r.gpus), len(r.slots), what, l.spec.Priority, t.gpusOfGang(l))
}
