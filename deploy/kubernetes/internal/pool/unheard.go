package pool

import (
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// reconnectTime is how long nodes may take to report to a manager that has just begun to lead.
const reconnectTime = 10 * time.Second

// keepUnheardLocked shows the nodes as the snapshot before did that have not reported since the
// manager leads, for reconnectTime: a new leader knows none until it reports, and the cluster would
// see an empty pool. A node that was silent before stays silent. Without a snapshot before, such a
// node may be alive, too: the snapshots are incomplete until it has reported, or had the time to. A manager
// that has led for long enough says so.
func (w *Watcher) keepUnheardLocked(s *Snapshot) {
	before, unheard := w.snapshot, map[string]time.Time{}
	now := time.Now()
	keeps := func(node string) bool {
		if s.Settled {
			return false
		}
		since, known := w.unheard[node]
		if !known {
			since = now
		}
		if !w.away && !now.Before(w.reconnectedBy(since)) {
			return false
		}
		unheard[node] = since
		return true
	}
	for id, h := range s.Hosts {
		if n := h.Node; !n.GetConnected() && n.GetLastReportTime() == nil {
			if was := before.connected(id); (was || !w.complete) && keeps(id) && was {
				n.Connected = true
			}
		}
	}
	for _, g := range s.GPUs {
		if g.Health != dxpuv1.Health_HEALTH_UNREACHABLE || s.LostBoxes[g.BoxId] {
			continue
		}
		was := before.GPU(g.Id)
		switch {
		case before == nil && keeps(g.BoxId):
			g.Health, g.HealthDetail = dxpuv1.Health_HEALTH_UNSPECIFIED, ""
		case was != nil && was.Health != g.Health && keeps(g.BoxId):
			keepReachable(g, was)
			s.Spares = before.Spares // those of the manager are of the boxes that have reported
		}
	}
	w.unheard, w.complete = unheard, w.complete || len(unheard) == 0
}

// Complete reports whether the pool has been known once: each of its nodes has reported to the
// manager that leads, or has had the time to.
func (w *Watcher) Complete() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.complete
}

// keepReachable shows a GPU as if its box had reported what it had before.
func keepReachable(g, was *dxpuv1.GPU) {
	g.Health, g.HealthDetail = was.Health, was.HealthDetail
	if g.State == dxpuv1.GPUState_GPU_STATE_UNAVAILABLE && !g.Cordoned && was.State != g.State && g.Health == dxpuv1.Health_HEALTH_OK {
		g.State = dxpuv1.GPUState_GPU_STATE_FREE
	}
	if parts := len(was.Parts) + int(was.FreeParts) - len(g.Parts); g.LeaseId == "" && parts > 0 {
		g.FreeParts = uint32(parts)
	}
}

// reconnectedBy returns when a node must have reported that has not since a time.
func (w *Watcher) reconnectedBy(since time.Time) time.Time {
	if since.Before(w.returned) {
		since = w.returned
	}
	return since.Add(reconnectTime)
}

// refreshIn returns the time after which the GPUs are listed without an event.
func (w *Watcher) refreshIn() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := refreshEvery
	for _, since := range w.unheard {
		in = min(in, reconnectTime)
		if !w.away {
			in = min(in, time.Until(w.reconnectedBy(since)))
		}
	}
	return in
}
