package manager

import (
	"iter"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// A decision may suppose that leases have ended, or maintenance is over. The index shows it for
// as long as it is tried. A rack in maintenance has many boxes, and a lease that begins later is
// tried at many times, so the nodes of a plan stay shown as open from one try to the next.

// opened is the nodes that the index shows as if some maintenance were over.
type opened struct {
	plans        map[string]bool
	boxes, hosts map[string]bool
	among        []string // only these nodes count; nil: all
}

// tryWithout calls decide while the index is as if certain bindings were gone, and the
// maintenance that is over by a time; zero: none.
func (t *tx) tryWithout(gone map[string]bool, by time.Time, decide func()) {
	t.tryTogether(func() {
		t.indexFrozen, t.tried.by = true, by // the changes below only try something out
		t.open(by)
		boxes, hosts := map[string]bool{}, map[string]bool{}
		for id := range gone {
			b := t.bindings.get(id)
			if n := t.nodes.get(b.HostID); n != nil {
				hosts[b.HostID] = true
				if s := n.slot(b.HostSlot); s != nil {
					t.hostPool.SetSlot(b.HostID, placement.HostSlot{Slot: s.Slot, Domain: s.Domain, Free: t.hostSlotFree(b.HostID, s, gone), Unusable: !s.usableAtHost()})
				}
			}
			if t.nodes.get(b.BoxID) != nil && !boxes[b.BoxID] { // the box of a GPU that broke may be gone
				boxes[b.BoxID] = true
				t.gpuPool.SetBox(t.boxWithout(b.BoxID, t.triedBox(b.BoxID), gone))
			}
		}
		decide()
		for id := range boxes {
			t.gpuPool.SetBox(t.triedBox(id))
		}
		for id := range hosts {
			t.hostPool.SetHost(t.triedHost(id))
		}
		t.indexFrozen, t.tried = false, trial{}
	})
}

// tryTogether calls tries, which call tryWithout several times. The nodes that one of them shows
// as open need not be indexed for the next.
func (t *tx) tryTogether(tries func()) { t.tryAmong(nil, tries) }

// tryAmong is tryTogether for tries in which only some nodes count.
func (t *tx) tryAmong(nodes []string, tries func()) {
	if t.opened != nil {
		tries()
		return
	}
	t.reindex()
	t.opened = &opened{plans: map[string]bool{}, boxes: map[string]bool{}, hosts: map[string]bool{}, among: nodes}
	tries()
	for id := range t.opened.boxes {
		t.gpuPool.SetBox(t.indexedNodes[id].placementBox)
	}
	for id := range t.opened.hosts {
		t.hostPool.SetHost(t.indexedNodes[id].placementHost)
	}
	t.opened = nil
}

// open makes the index show the nodes of closed plans as open that are over by a time, and the
// others as they are.
func (t *tx) open(by time.Time) {
	for id, p := range t.plans.rows {
		over := p.closed() && p.overBy(by)
		if over == t.opened.plans[id] {
			continue
		}
		t.opened.plans[id] = over
		for n := range t.nodesToOpen(p) {
			if n.Kind == dxpuv1.NodeKind_NODE_KIND_HOST {
				t.opened.hosts[n.ID] = true
				t.hostPool.SetHost(t.triedHost(n.ID))
				continue
			}
			t.opened.boxes[n.ID] = true
			t.gpuPool.SetBox(t.triedBox(n.ID))
		}
	}
}

// nodesToOpen returns the nodes of a plan that count in the tries.
func (t *tx) nodesToOpen(p *planRecord) iter.Seq[*nodeRecord] {
	if t.opened.among == nil {
		return t.nodesOf(p)
	}
	return func(yield func(*nodeRecord) bool) {
		for _, id := range t.opened.among {
			if n := t.nodes.get(id); n != nil && p.covers(n) && !yield(n) {
				return
			}
		}
	}
}

// triedBox returns a box as it is at the time that is tried, with all of its bindings.
func (t *tx) triedBox(id string) placement.Box {
	if !t.opened.boxes[id] {
		return t.indexedNodes[id].placementBox
	}
	return t.placementBox(t.nodes.get(id))
}

// triedHost returns a host as it is at the time that is tried, with all of its bindings.
func (t *tx) triedHost(id string) placement.Host {
	if !t.opened.hosts[id] {
		return t.indexedNodes[id].placementHost
	}
	return t.placementHost(t.nodes.get(id))
}
