package manager

import (
	"fmt"
	"slices"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/plural"
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
		t.capacityGrew = true // others may have what it held
	}
	t.reserve(id)
}

// holdIfAged makes the reservation for a lease that waits once it has aged, if it comes before the
// one that has the reservation by that. It schedules the lease for that time.
func (t *tx) holdIfAged(id string) {
	t.reindex()
	k, r := t.indexedLeases[id], t.reserved
	if k.shape == "" || k.incomplete || t.firstOfGang(id) != id || !t.dueOrSchedule(subject{leaseSubject, id}, time.Unix(0, k.queueKey.created).Add(agingTime)) ||
		r == nil || r.lease == id {
		return
	}
	holder := t.indexedLeases[r.lease]
	if holder.shape != "" && t.compareQueued(holder.queueKey, t.turnOf(holder.tenant), k.queueKey, t.turnOf(k.tenant)) < 0 {
		return
	}
	if t.reserve(id); t.reserved != r {
		t.capacityGrew = true // others may have what it held
	}
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
		members[i].GPUs.Uplinks, members[i].GPUs.Room = t.fullUplinks, t.roomByModel(l.spec.Tenant)
	}
	if gpus, slots, possible := t.gpuPool.Gather(t.hostPool, t.cfg.Reserve, members); possible {
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

// placeOf returns where the lease of a reservation would be placed.
func (t *tx) placeOf(r *reservation) (*reservation, bool) {
	var d placement.GangDecision
	t.briefly(func() { d = t.decideTogether(t.membersOf(t.gangOf(r.lease))) })
	needs := &reservation{lease: r.lease}
	for _, a := range d.Members {
		if !a.OK() {
			return nil, false
		}
		needs.gpus = append(needs.gpus, a.Picks...)
		needs.slots = append(needs.slots, hostSlotRefs(a.Host.Host, a.Host.Slots)...)
	}
	return needs, len(d.Members) > 0
}

func hostSlotRefs(host string, slots []uint32) (out []placement.HostSlotRef) {
	for _, s := range slots {
		out = append(out, placement.HostSlotRef{Host: host, Slot: s})
	}
	return out
}

// gatherAgain makes the reservation again if a lease that it does not keep away has got
// something that it holds.
func (t *tx) gatherAgain(lease string, gpu placement.Ref, slot placement.HostSlotRef) {
	r := t.reserved
	if r == nil || t.firstOfGang(lease) == r.lease || !slices.Contains(r.gpus, gpu) && !slices.Contains(r.slots, slot) {
		return
	}
	if l := t.leases.get(r.lease); l != nil && l.State == leasePending {
		t.reserved = nil
		t.reserve(r.lease)
		t.capacityGrew = t.capacityGrew || t.reserved == nil
	}
}

// tookMore begins another pass of the queue if a tenant that has got GPUs, or a promise, leaves
// some to others by that: it would borrow what is promised to it, others may take back what it
// borrows now, or its quota does not admit the lease for which GPUs are held.
func (t *tx) tookMore(tenant string) {
	if t.capacityGrew = t.capacityGrew || t.promisesTo(tenant) || t.lendsTo(tenant); t.reserved == nil || t.capacityGrew {
		return
	}
	l := t.leases.get(t.reserved.lease)
	if l != nil && l.State == leasePending && l.spec.Tenant == tenant {
		// The models that a quota leaves are known when the lease is placed.
		t.capacityGrew = len(t.quota(tenant).MaxGPUsByModel) > 0 || t.quotaReached(t.membersOf(t.gangOf(l.ID))) != ""
	}
}

// why returns the sentence for a lease that did not fit because of the reservation.
func (r *reservation) why(t *tx) string {
	l, what := t.leases.get(r.lease), "lease"
	if l.spec.Gang != nil {
		what = "gang"
	}
	return fmt.Sprintf("%s and %s are held for a %s of priority %d that is first in the queue and needs %d.",
		plural.Count(len(r.gpus), "free GPU", "free GPUs"), plural.Count(len(r.slots), "host slot", "host slots"), what, l.spec.Priority, t.gpusOfGang(l))
}
