package manager

import (
	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// reportIndex finds slots and bindings in a report. The rules look for each binding of a node in its
// report, and a scan each time would take longer than all else if the node has a thousand.
type reportIndex struct {
	of       *dxpuv1.ObservedState // the report; it is not changed
	slots    map[uint32]*dxpuv1.ObservedSlot
	bindings map[observedKey]*dxpuv1.ObservedBinding
}

type observedKey struct {
	id    string
	epoch uint64
}

// fewSlots is the number up to which a scan of a report is as fast as a map.
const fewSlots = 16

// report returns the last report, nil for none.
func (l *liveNode) report() *dxpuv1.ObservedState {
	if l == nil {
		return nil
	}
	return l.observed
}

// indexed returns the index of the last report, nil if a scan does.
func (l *liveNode) indexed() *reportIndex {
	o := l.report()
	if len(o.GetSlots()) <= fewSlots {
		return nil
	}
	if l.index == nil || l.index.of != o {
		l.index = newReportIndex(o)
	}
	return l.index
}

// newReportIndex indexes a report. Of several slots that report one binding the first counts.
func newReportIndex(o *dxpuv1.ObservedState) *reportIndex {
	x := &reportIndex{
		of: o, slots: make(map[uint32]*dxpuv1.ObservedSlot, len(o.Slots)), bindings: map[observedKey]*dxpuv1.ObservedBinding{},
	}
	for _, s := range o.Slots {
		x.slots[s.Slot] = s
		if b := s.Binding; b != nil && x.bindings[observedKey{b.BindingId, b.Epoch}] == nil {
			x.bindings[observedKey{b.BindingId, b.Epoch}] = b
		}
	}
	return x
}

// observedSlot returns a node's report of one of its slots, nil for none.
func (t *tx) observedSlot(node string, slot uint32) *dxpuv1.ObservedSlot {
	l := t.live[node]
	if x := l.indexed(); x != nil {
		return x.slots[slot]
	}
	for _, s := range l.report().GetSlots() {
		if s.Slot == slot {
			return s
		}
	}
	return nil
}

// observed returns a node's report of a binding, nil if the node has nothing of it.
func (t *tx) observed(node string, b *bindingRecord) *dxpuv1.ObservedBinding {
	l := t.live[node]
	if x := l.indexed(); x != nil {
		return x.bindings[observedKey{b.ID, b.Epoch}]
	}
	for _, s := range l.report().GetSlots() {
		if o := s.Binding; o != nil && o.BindingId == b.ID && o.Epoch == b.Epoch {
			return o
		}
	}
	return nil
}
