package manager

import (
	"slices"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/plural"
)

const (
	// maxPaths bounds the paths of a binding that are compared: the maximum of a link.
	maxPaths = 8
	// A node's changes of paths have pathEventBurst events at once and one in pathEventPause. A
	// network that comes and goes would fill the ring of events otherwise.
	pathEventBurst = 32
	pathEventPause = 10 * time.Second
)

// pathBudget bounds the events about the paths of a node's bindings. It is a value, unlike a rate.Limiter: a
// report whose transaction is not stored leaves it as it was.
type pathBudget struct {
	left   int       // events that may follow now
	filled time.Time // up to when left has been refilled; zero: never
	// failed and repaired count the changes without an event.
	failed, repaired int
}

func (b *pathBudget) refill(now time.Time) {
	switch n := now.Sub(b.filled) / pathEventPause; {
	case b.filled.IsZero() || n >= pathEventBurst:
		b.left, b.filled = pathEventBurst, now
	case n < 0: // the clock was set back
		b.filled = now
	default:
		b.left, b.filled = min(pathEventBurst, b.left+int(n)), b.filled.Add(n*pathEventPause)
	}
}

// take uses one event, but keeps the last one for a summary.
func (b *pathBudget) take() bool {
	if b.left <= 1 {
		return false
	}
	b.left--
	return true
}

// pathEvents makes events of paths that failed while other paths carry the binding, and
// of paths that work again.
func (t *tx) pathEvents(told *told, o *dxpuv1.ObservedState) {
	budget := &told.budget
	budget.refill(t.now)
	before := map[string]*dxpuv1.ObservedBinding{}
	for _, s := range told.paths.GetSlots() {
		if s.Binding != nil {
			before[s.Binding.BindingId] = s.Binding
		}
	}
	for _, s := range o.Slots {
		b := s.Binding
		if b == nil || !t.has(o.NodeId, b.BindingId) {
			continue
		}
		old := before[b.BindingId]
		if old == nil || old.Epoch != b.Epoch {
			continue
		}
		for i, p := range b.Paths[:min(len(b.Paths), len(old.Paths), maxPaths)] {
			t.pathEvent(o.NodeId, b, old.Paths[i].GetHealth(), p, budget)
		}
	}
	told.paths = o
	t.pathSummary(t.nodes.get(o.NodeId), budget)
}

func (t *tx) pathEvent(node string, o *dxpuv1.ObservedBinding, was dxpuv1.Health, p *dxpuv1.PathStatus, budget *pathBudget) {
	const ok, failed = dxpuv1.Health_HEALTH_OK, dxpuv1.Health_HEALTH_FAILED
	b := t.bindings.get(o.BindingId)
	word, without := "failed", &budget.failed
	switch {
	case was == ok && p.GetHealth() == failed && othersWork(o, p):
	case was == failed && p.GetHealth() == ok:
		word, without = "works again", &budget.repaired
	default:
		return
	}
	if !budget.take() {
		*without++
		return
	}
	t.event(b.event(dxpuv1.EventType_EVENT_TYPE_PATH_HEALTH), "path %d of binding %s (GPU %s to %s) %s, as reported by %s",
		p.Path, b.ID, b.gpuID(), b.HostID, word, node)
}

// pathSummary makes one event of the changes without an event, if there may be one.
func (t *tx) pathSummary(n *nodeRecord, budget *pathBudget) {
	if budget.failed+budget.repaired == 0 || budget.left == 0 {
		return
	}
	t.event(nodeEvent(n, dxpuv1.EventType_EVENT_TYPE_PATH_HEALTH),
		"paths of bindings of %s %s: %s without an event of its own, %d failed and %d work again; look at the networks of the %s",
		kindWord(n.Kind), n.ID, plural.Count(budget.failed+budget.repaired, "change", "changes"), budget.failed, budget.repaired, kindWord(n.Kind))
	budget.left, budget.failed, budget.repaired = budget.left-1, 0, 0
}

func othersWork(o *dxpuv1.ObservedBinding, p *dxpuv1.PathStatus) bool {
	return slices.ContainsFunc(o.Paths, func(x *dxpuv1.PathStatus) bool { return x != p && x.GetHealth() == dxpuv1.Health_HEALTH_OK })
}
