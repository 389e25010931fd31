package manager

import (
	"fmt"
	"slices"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// A host that does not report may be dead, or only cut off from the manager while its
// guests work. Leases on it wait for it. Those that have certainly not worked for
// Config.HostTimeout go elsewhere: back into the queue if they may wait and use another
// host, otherwise they end. The boxes fence the old host off by its epochs.

// hostGaveUp gives up a lease whose host has not reported for long enough, and reports
// whether it did.
func (t *tx) hostGaveUp(l *leaseRecord) bool {
	at := t.hostDeadline(l)
	if at.IsZero() || !t.dueOrSchedule(subject{leaseSubject, l.ID}, at) {
		return false
	}
	why := fmt.Sprintf("host %s has not reported for %s", l.HostID, period(t.cfg.HostTimeout))
	if l.mayMove() {
		t.requeue(l.ID, dxpuv1.Reason_REASON_HOST_LOST, "back in the queue: "+why, false)
	} else {
		t.endLease(l.ID, dxpuv1.Reason_REASON_HOST_LOST, why, false)
	}
	return true
}

// mayMove reports whether a lease may wait for GPUs at another host.
func (l *leaseRecord) mayMove() bool { return l.spec.Wait && l.spec.HostId == "" }

// hostDeadline returns when a lease no longer waits for its host; zero: it does not wait,
// or for as long as it takes, because a GPU may work.
func (t *tx) hostDeadline(l *leaseRecord) time.Time {
	if t.cfg.HostTimeout < 0 || !l.holds() || t.connected(l.HostID) {
		return time.Time{}
	}
	since := t.began // a new manager does not know for how long it has been away
	if n := t.live[l.HostID]; n != nil && !n.last.IsZero() {
		since = n.silentSince
	}
	for _, id := range t.bindingsOf(l.ID) {
		b := t.bindings.get(id)
		if t.mayWork(b) {
			return time.Time{}
		}
		if at := b.stoppedAt(); at.After(since) {
			since = at // the host may have worked until then
		}
	}
	return since.Add(t.cfg.HostTimeout)
}

// mayWork reports whether the data path of a binding may work although its host does not
// report: its box says so, or does not report either.
func (t *tx) mayWork(b *bindingRecord) bool {
	if b.State != ready && b.State != attached && b.State != switching {
		return false
	}
	o := t.observed(b.BoxID, b)
	return !t.connected(b.BoxID) || o != nil && o.State == attached
}

// stoppedAt returns when the binding ceased to be attached; zero: it never was, or is.
func (b *bindingRecord) stoppedAt() (at time.Time) {
	was := false
	for _, s := range b.Steps {
		if s.NodeID != "" {
			continue
		}
		if was {
			at = s.Time
		}
		if was = s.Name == stateWord(attached); was {
			at = time.Time{}
		}
	}
	return at
}

// hostAbsence returns what a lease does about its host, which does not report.
func (t *tx) hostAbsence(l *leaseRecord) string {
	why := fmt.Sprintf("waiting for host %s, which does not report", l.HostID)
	at := t.hostDeadline(l)
	if at.IsZero() {
		return why
	}
	then := "it ends"
	if l.mayMove() {
		then = "it returns to the queue"
	}
	return fmt.Sprintf("%s; %s at %s if the host stays away", why, then, at.UTC().Format("15:04:05 UTC"))
}

// absences returns a sentence for each node of a lease's GPUs that does not report. The
// state of the lease is then that of the last reports.
func (t *tx) absences(l *leaseRecord) (out []string) {
	for _, id := range t.bindingsOf(l.ID) {
		b := t.bindings.get(id)
		for _, n := range []struct{ kind, id string }{{"Host", b.HostID}, {"Box", b.ref().Box}} {
			s := fmt.Sprintf("%s %s does not report: its state is that of its last report.", n.kind, n.id)
			if b.State != released && !t.connected(n.id) && !slices.Contains(out, s) {
				out = append(out, s)
			}
		}
	}
	return out
}

// silence says that an active lease has its state from the last report of a node; "": all
// report. It names no box: a tenant reads it.
func (t *tx) silence(l *leaseRecord) string {
	boxes := slices.ContainsFunc(t.bindingsOf(l.ID), func(id string) bool {
		b := t.bindings.get(id)
		return b.serving() && !t.connected(b.ref().Box)
	})
	switch host := !t.connected(l.HostID); {
	case host && boxes:
		return fmt.Sprintf(", by the last report: host %s and a box do not report", l.HostID)
	case host:
		return fmt.Sprintf(", by the last report: host %s does not report", l.HostID)
	case boxes:
		return ", by the last report: a box of the GPUs does not report"
	}
	return ""
}
