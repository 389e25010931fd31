package manager

import (
	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// maxPaths bounds the paths of a binding that are compared: the maximum of a
// link.
const maxPaths = 8

// pathEvents makes events of paths that failed while other paths carry the
// binding, and of paths that work again. was is the previous report, nil for
// none.
func (t *tx) pathEvents(was, o *dxpuv1.ObservedState) {
	before := map[string]*dxpuv1.ObservedBinding{}
	for _, s := range was.GetSlots() {
		if s.Binding != nil {
			before[s.Binding.BindingId] = s.Binding
		}
	}
	for _, s := range o.Slots {
		b := s.Binding
		if b == nil || t.bindings.get(b.BindingId) == nil {
			continue
		}
		old := before[b.BindingId]
		if old == nil || old.Epoch != b.Epoch {
			continue
		}
		for i, p := range b.Paths[:min(len(b.Paths), len(old.Paths), maxPaths)] {
			t.pathEvent(o.NodeId, b, old.Paths[i].GetHealth(), p)
		}
	}
}

func (t *tx) pathEvent(node string, o *dxpuv1.ObservedBinding, was dxpuv1.Health, p *dxpuv1.PathStatus) {
	const ok, failed = dxpuv1.Health_HEALTH_OK, dxpuv1.Health_HEALTH_FAILED
	b := t.bindings.get(o.BindingId)
	word := "failed"
	switch {
	case was == ok && p.GetHealth() == failed && othersWork(o, p):
	case was == failed && p.GetHealth() == ok:
		word = "works again"
	default:
		return
	}
	t.event(b.event(dxpuv1.EventType_EVENT_TYPE_PATH_HEALTH), "path %d of binding %s (GPU %s to %s) %s, as reported by %s",
		p.Path, b.ID, b.gpuID(), b.HostID, word, node)
}

// othersWork reports whether a binding has another path that works.
func othersWork(o *dxpuv1.ObservedBinding, p *dxpuv1.PathStatus) bool {
	for _, other := range o.Paths {
		if other != p && other.GetHealth() == dxpuv1.Health_HEALTH_OK {
			return true
		}
	}
	return false
}
