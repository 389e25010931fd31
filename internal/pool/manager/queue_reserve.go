package manager

import (
	"fmt"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// A large lease would wait for ever if small ones took each GPU that comes back. So the
// first lease of the queue that does not fit holds the free GPUs and host slots which
// it needs, and gathers more as leases end. The others go ahead with what is left
// (backfill): in the same pass of the queue, and when they are created.
//
// What a lease holds is kept from leases of lower priority, and once it has aged from
// those of its own priority. Replacements of broken GPUs are not bound by it. It is not
// stored, because each pass of the queue makes it again.

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
		if b.shape != "" && t.compareQueued(b.queueKey, t.shareOf(b.tenant), a.queueKey, t.shareOf(a.tenant)) < 0 {
			return
		}
	}
	t.reserve(id)
}

// reserve makes a reservation for a lease that did not fit, unless its quota keeps it
// waiting or the pool could never satisfy it.
func (t *tx) reserve(id string) {
	l := t.leases.get(id)
	if t.quotaReached(l.spec) != "" {
		return
	}
	r := &reservation{lease: id}
	d, h := t.decide(id, l.spec)
	if d.OK() {
		r.gpus = d.Picks
	} else {
		gpus, possible := t.gpuPool.Gather(t.cfg.Reserve, requestOf(l.spec))
		if !possible {
			return
		}
		r.gpus = gpus
	}
	if h.OK() {
		for _, s := range h.Slots {
			r.slots = append(r.slots, placement.HostSlotRef{Host: h.Host, Slot: s})
		}
	} else {
		slots, possible := t.hostPool.Gather(hostRequestOf(l.spec))
		if !possible {
			return
		}
		r.slots = slots
	}
	t.reserved = r
}

// reservedFrom returns the reservation that a lease must leave alone, nil for none. The
// ID is empty if the lease does not exist yet.
func (t *tx) reservedFrom(id string, s *dxpuv1.LeaseSpec) *reservation {
	r := t.reserved
	if r == nil || r.lease == id {
		return nil
	}
	holder := t.leases.get(r.lease)
	if holder == nil || holder.State != leasePending {
		return nil
	}
	old := queueKey{created: holder.CreateTime.UnixNano()}.aged(t.now)
	if s.Priority < holder.spec.Priority || s.Priority == holder.spec.Priority && old {
		return r
	}
	return nil
}

// why returns the sentence for a lease that did not fit because of the reservation.
func (r *reservation) why(t *tx) string {
	l := t.leases.get(r.lease)
	return fmt.Sprintf("%d free GPUs and %d host slots are held for a lease of priority %d that is first in the queue and needs %d.",
		len(r.gpus), len(r.slots), l.spec.Priority, l.spec.Count)
}
