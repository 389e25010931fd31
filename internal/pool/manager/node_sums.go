package manager

import (
	"maps"
	"slices"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// nodeEntry is the index's entry of a node. Its sums are valid while the node reports.
type nodeEntry struct {
	credential    string         // the hash under which nodeByCredential has it
	placementBox  placement.Box  // as gpuPool has it, if it is a box
	placementHost placement.Host // as hostPool has it, if it is a host

	box    bool
	rack   string
	gpus   uint32
	bound  uint32 // GPUs with a binding that serves
	shared uint32 // of these, GPUs whose parts are bound
	free   uint32 // GPUs that can be allocated
	models []modelSum
	sick   []sickGPU // GPUs that are not healthy and in service
	claims []deviceClaim
}

// sickGPU is a GPU that its errors or its box's report keep from new bindings.
type sickGPU struct {
	slot uint32
	how  string // "failed", "degraded" or "out_of_service", a value of the metrics' label health
}

// modelSum counts the usable GPUs of a model: those that any host may have, and the local
// ones, which only the host on their machine may have.
type modelSum struct {
	model        string
	usable, free uint32
	local        uint32
}

func (m *modelSum) add(o modelSum) {
	m.usable, m.free, m.local = m.usable+o.usable, m.free+o.free, m.local+o.local
}

func (t *tx) nodeEntry(n *nodeRecord) nodeEntry {
	e := nodeEntry{box: n.Kind == dxpuv1.NodeKind_NODE_KIND_BOX, rack: n.Rack, credential: string(n.CredentialHash)}
	if !e.box {
		e.placementHost = t.placementHost(n)
		return e
	}
	e.placementBox = t.placementBox(n)
	occupants, local := newOccupants(t.occupantsOf(n.ID)), n.LocalPeer != ""
	for i := range n.Slots {
		s := &n.Slots[i]
		if s.Device == nil || s.PartOf != nil {
			continue
		}
		e.gpus++
		at := slices.IndexFunc(e.models, func(m modelSum) bool { return m.model == s.Device.Model })
		if at < 0 {
			at = len(e.models)
			e.models = append(e.models, modelSum{model: s.Device.Model})
		}
		if how := s.sickness(); how != "" {
			e.sick = append(e.sick, sickGPU{s.Slot, how})
		}
		usable := s.Health == dxpuv1.Health_HEALTH_OK && s.Fault.outOfService() == "" && n.Cordon == nil && s.Cordon == nil && !t.isDuplicate(n.ID, s)
		switch {
		case usable && local:
			e.models[at].local++
		case usable:
			e.models[at].usable++
		}
		parts := occupants.partsOn(s.Slot)
		switch b := t.holder(n.ID, s.Slot); {
		case b != nil && b.occupied():
			e.bound++
		case slices.ContainsFunc(parts, (*bindingRecord).serving):
			e.bound++
			e.shared++
		case b == nil && len(parts) == 0 && usable:
			if e.free++; !local {
				e.models[at].free++
			}
		}
	}
	return e
}

// sickness returns how a GPU is not healthy or not in service, "" for a good one.
func (s *slotRecord) sickness() string {
	switch {
	case s.Health == dxpuv1.Health_HEALTH_FAILED:
		return "failed"
	case s.Health != dxpuv1.Health_HEALTH_OK: // whatever number the box reports
		return "degraded"
	case s.Fault.outOfService() != "":
		return "out_of_service"
	}
	return ""
}

// addTotals adds up the index's entries of nodes and tenants. It does not scan the
// GPUs, of which there may be very many.
func (t *tx) addTotals(p *dxpuv1.Pool) {
	t.reindex()
	p.ClusterId, p.Version, p.Revision = t.meta.ClusterID, t.cfg.Version, t.meta.Revision
	models := map[string]modelSum{}
	for id, e := range t.indexedNodes {
		here := t.connected(id)
		if here {
			t.live[id].uses.add(p)
		}
		nodes, connected := &p.Hosts, &p.HostsConnected
		if e.box {
			nodes, connected = &p.Boxes, &p.BoxesConnected
		}
		*nodes++
		if here {
			*connected++
		}
		p.Gpus += e.gpus
		p.GpusBound += e.bound
		p.GpusShared += e.shared
		if !here {
			p.GpusUnavailable += e.gpus - e.bound
			continue
		}
		p.GpusFree += e.free
		p.GpusUnavailable += e.gpus - e.bound - e.free
		for _, m := range e.models {
			sum := models[m.model]
			sum.add(m)
			models[m.model] = sum
		}
	}
	for _, model := range slices.Sorted(maps.Keys(models)) {
		if m := models[model]; m.usable+m.local > 0 {
			p.Spares = append(p.Spares, t.sparesOf(model, m))
			p.SparesHeld += p.Spares[len(p.Spares)-1].Held
		}
	}
	for _, u := range t.usageByTenant {
		p.LeasesPending += u.pending
		p.LeasesActive += u.active
		p.LeasesDegraded += u.degraded
	}
}

// sparesOf returns the spares of a model. Local GPUs can replace no GPU of another host, so
// they are no spares.
func (t *tx) sparesOf(model string, m modelSum) *dxpuv1.SpareStatus {
	s := &dxpuv1.SpareStatus{Model: model, Usable: m.usable, Free: m.free, Local: m.local}
	if m.usable > 0 {
		s.Wanted, s.Explanation = uint32(t.cfg.Reserve.Held(int(m.usable))), t.cfg.Reserve.Explain(model, int(m.usable))
	}
	s.Held = min(s.Wanted, m.free)
	return s
}

// uses counts the devices of a host by how its guests use them.
type uses struct{ idle, held, busy uint32 }

// usesOf counts the devices in a report that the node has. Those of boxes have no use.
func (t *tx) usesOf(o *dxpuv1.ObservedState) (u uses) {
	for _, s := range o.Slots {
		use := s.GetBinding().GetUse()
		if use == dxpuv1.Use_USE_UNSPECIFIED || !t.has(o.NodeId, s.Binding.BindingId) {
			continue
		}
		switch use {
		case dxpuv1.Use_USE_IDLE:
			u.idle++
		case dxpuv1.Use_USE_HELD:
			u.held++
		case dxpuv1.Use_USE_BUSY:
			u.busy++
		case dxpuv1.Use_USE_UNSPECIFIED:
		}
	}
	return u
}

func (u uses) add(p *dxpuv1.Pool) {
	p.GpusIdle += u.idle
	p.GpusHeld += u.held
	p.GpusBusy += u.busy
}

// totals reduces the totals to the scope: a tenant learns how much it has, not
// how much there is.
func (s scope) totals(t *tx, p *dxpuv1.Pool) *dxpuv1.Pool {
	if s.all {
		return p
	}
	out := &dxpuv1.Pool{ClusterId: p.ClusterId, Version: p.Version, Revision: p.Revision, NodesSettled: p.NodesSettled}
	for _, id := range s.openLeases(t) {
		l := t.leases.get(id)
		switch {
		case !s.lease(l):
		case l.State == leasePending:
			out.LeasesPending++
		case l.holds():
			out.LeasesActive++
			if l.State == leaseDegraded {
				out.LeasesDegraded++
			}
			for _, b := range t.bindingsOf(id) {
				if t.bindings.get(b).serving() {
					out.Gpus++
					out.GpusBound++
				}
			}
		}
	}
	return out
}

// openLeases returns the leases of a scope that have not ended, and maybe
// others, in order.
func (s scope) openLeases(t *tx) []string {
	t.reindex()
	if s.tenant == "" {
		return slices.Collect(t.openLeaseIDs.from(""))
	}
	return slices.SortedFunc(maps.Keys(t.openLeasesOf(s.tenant)), compareLeaseIDs)
}
