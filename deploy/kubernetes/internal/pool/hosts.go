package pool

import (
	"cmp"
	"fmt"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/inventory"
)

// hostShut returns why a host takes no GPU now, nor soon, "" if it takes one or is not known.
// taken is the number of its slots that leases have taken since.
func (s *Snapshot) hostShut(id string, taken int) string {
	if s == nil || s.Hosts[id] == nil {
		return ""
	}
	if why := inventory.Shut(s.Hosts[id], s.leaving[id]-taken); why != "" {
		return "host " + id + " " + why
	}
	return ""
}

// shutLocked is hostShut of a snapshot, except that a host may take its time to report after a
// manager has returned: one that has been started again knows no host that is connected. One that has
// reported to this manager, and does no more, is lost.
func (w *Watcher) shutLocked(s *Snapshot, id string, taken int) string {
	returns := w.away || time.Since(w.returned) < reconnectTime
	if returns && s != nil && !s.Hosts[id].GetNode().GetConnected() && !w.lostLocked(s, id) {
		return ""
	}
	return s.hostShut(id, taken)
}

// lostLocked reports whether a host is known to be off by a snapshot: it has reported to the manager that
// leads, and does no more, or it has not although it had the time to.
func (w *Watcher) lostLocked(s *Snapshot, id string) bool {
	n := s.Hosts[id].GetNode()
	return !w.away && s.began.After(w.gone) && !n.GetConnected() && (n.GetLastReportTime() != nil || s.Settled)
}

// HostLost returns why a host attaches nothing now: it has reported to the manager, and does no more. It
// is "" for a host that may, or is not known.
func (w *Watcher) HostLost(id string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := w.snapshot; s == nil || s.Hosts[id] == nil || !w.lostLocked(s, id) {
		return ""
	}
	return "host " + id + " does not report"
}

// room returns the number of slots of a host that are free, or soon will be.
func (s *Snapshot) room(id string, taken int) int {
	if s == nil || s.Hosts[id] == nil {
		return 0
	}
	return inventory.FreeSlots(s.Hosts[id]) + s.leaving[id] - taken
}

// Queued returns the number of slots for which the cluster's leases wait in the queue of the pool,
// or that they have and of which the snapshot does not know yet, by host.
func (w *Watcher) Queued() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	pending, taken := w.waitingLocked()
	for host, n := range taken {
		pending[host] += n
	}
	return pending
}

// Need is what a claim wants of a host.
type Need struct {
	Claim string // UID
	Slots int    // for all of its devices
	Gang  string // whose leases get their slots together; "" for none
}

// HostShut returns why a host does not take all devices of a claim now, nor soon, "" if it takes
// them or is not known. The leases of the cluster count before the snapshot has them: it is seconds
// old in a large pool.
func (w *Watcher) HostShut(id string, n Need) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, taken := w.waitingLocked()
	if why := w.shutLocked(w.snapshot, id, taken[id]); why != "" || w.snapshot == nil || w.snapshot.Hosts[id] == nil {
		return why
	}
	want, earlier := w.waitsLocked(id, n)
	room := w.snapshot.room(id, taken[id])
	switch {
	case want <= 0 || want <= room-earlier:
		return ""
	case earlier > 0:
		return fmt.Sprintf("host %s has room for %d of the %d GPUs that the gang wants there", id, room, want+earlier)
	}
	return fmt.Sprintf("host %s has room for %d of the claim's %d GPUs", id, room, want)
}

// waitsLocked returns the number of slots of a host that a claim has not got yet, and the number of
// those for which leases of its gang wait that other claims have made before.
func (w *Watcher) waitsLocked(host string, n Need) (want, earlier int) {
	want = n.Slots
	var first *dxpuv1.Lease
	for id := range w.byClaim[n.Claim] {
		switch l := w.leases[id]; {
		case l.GetSpec().GetHostId() != host:
		case has(l):
			want -= slots(l)
		case l.State == dxpuv1.LeaseState_LEASE_STATE_PENDING && (first == nil || before(l, first)):
			first = l
		}
	}
	if n.Gang == "" {
		return want, 0
	}
	for _, l := range w.leases {
		if l.State == dxpuv1.LeaseState_LEASE_STATE_PENDING && l.GetSpec().GetHostId() == host && l.Spec.GetGang().GetName() == n.Gang &&
			l.Spec.Labels[claims.LabelClaim] != n.Claim && (first == nil || before(l, first)) {
			earlier += slots(l)
		}
	}
	return want, earlier
}

// has reports whether a lease has a GPU, or gets it now.
func has(l *dxpuv1.Lease) bool {
	return l.State == dxpuv1.LeaseState_LEASE_STATE_BINDING || l.State == dxpuv1.LeaseState_LEASE_STATE_ACTIVE
}

// before reports whether a lease is older than another one.
func before(l, o *dxpuv1.Lease) bool {
	return cmp.Or(l.GetCreateTime().AsTime().Compare(o.GetCreateTime().AsTime()), cmp.Compare(l.Id, o.Id)) < 0
}

// slots returns the number of slots that a lease takes: several for GPUs of the host's own machine.
func slots(l *dxpuv1.Lease) int { return int(max(l.GetSpec().GetCount(), 1)) }

// waitingLocked returns the numbers of slots by host for which leases wait in the queue, and that
// they have and of which the snapshot does not know yet.
func (w *Watcher) waitingLocked() (pending, taken map[string]int) {
	pending, taken = map[string]int{}, map[string]int{}
	for _, l := range w.leases {
		host := l.GetSpec().GetHostId()
		switch {
		case l.State == dxpuv1.LeaseState_LEASE_STATE_PENDING:
			pending[host] += slots(l)
		case has(l) && w.snapshot != nil && !w.snapshot.inSlots[l.Id]:
			taken[host] += slots(l)
		}
	}
	return pending, taken
}
