package manager

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// A promise must not delay the first lease of the queue. So before GPUs are promised the
// manager looks when that lease will begin, as others end, and whether it could still begin
// then beside the promise.

// maxHeadTries bounds the times at which the first lease of the queue is tried. If more
// leases end before, some of the times are left out.
const maxHeadTries = 16

// head is the first lease of the queue as a lease finds it that begins later.
type head struct {
	held   *reservation // GPUs and slots that are held for it now
	begins time.Time    // zero: not before the other one
	needs  *reservation // its GPUs and slots when it begins, or else held
}

// headBefore returns the lease for which GPUs are held, as a lease finds it for which others
// must be gone by a time. It returns nil if there is none that the other one must leave alone, or
// it will be over by then.
func (t *tx) headBefore(l *leaseRecord, ends []ending, by time.Time) *head {
	r := t.reservedFrom(l.ID, l.spec, sizeOf(l.spec))
	if r == nil {
		return nil
	}
	h := &head{held: r, needs: r}
	for _, at := range t.headTimes(ends, by) {
		if needs, ok := t.headAt(h, ends, at, nil); ok {
			h.begins, h.needs = at, needs
			break
		}
	}
	if !h.begins.IsZero() && t.overBy(h, by) {
		return nil
	}
	return h
}

// headTimes returns the times until another one at which the first lease of the queue may find a
// place: something ends, of leases, promises or maintenance.
func (t *tx) headTimes(ends []ending, by time.Time) (at []time.Time) {
	for _, e := range ends {
		at = append(at, e.at)
	}
	for id := range t.promises {
		at = append(at, t.leases.get(id).expires().Add(promiseLead))
	}
	for _, p := range t.plans.rows {
		at = append(at, p.End)
	}
	at = slices.DeleteFunc(at, func(e time.Time) bool { return !e.After(t.now) || e.After(by) })
	slices.SortFunc(at, time.Time.Compare)
	at = slices.CompactFunc(at, time.Time.Equal)
	if len(at) <= maxHeadTries {
		return at
	}
	some := make([]time.Time, maxHeadTries)
	for i := range some {
		some[i] = at[(i+1)*len(at)/maxHeadTries-1]
	}
	return some
}

// headAt returns where the first lease of the queue would be placed at a time if others had
// some GPUs and slots then; nil: none.
func (t *tx) headAt(h *head, ends []ending, at time.Time, taken *reservation) (needs *reservation, ok bool) {
	t.tryWithout(endedBy(ends, at), at, func() {
		t.tried.begins, t.tried.taken = at, taken
		needs, ok = t.placeOf(h.held)
	})
	return needs, ok
}

// overBy reports whether the first lease of the queue, which begins before, is over by a time.
func (t *tx) overBy(h *head, by time.Time) bool {
	return !slices.ContainsFunc(t.membersOf(t.gangOf(h.held.lease)), func(l *leaseRecord) bool {
		return l.spec.ExpiresAfter == nil || h.begins.Add(l.spec.ExpiresAfter.AsDuration()).After(by)
	})
}

// leavesEnough reports whether the first lease of the queue begins in time although others are
// promised to a lease.
func (t *tx) leavesEnough(h *head, ends []ending, a *placement.Assignment) bool {
	if h.begins.IsZero() {
		return false
	}
	_, ok := t.headAt(h, ends, h.begins, &reservation{gpus: a.Picks, slots: hostSlotRefs(a.Host.Host, a.Host.Slots)})
	return ok
}
