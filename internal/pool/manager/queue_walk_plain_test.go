package manager

import (
	"fmt"
	"slices"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// walkPool is a pool for a search that does not use the index or package placement.
type walkPool struct {
	tx    *tx
	now   time.Time
	gpus  []*walkGPU
	hosts []*walkHost
	used  map[string]usages
}

type walkGPU struct {
	ref     placement.Ref
	node    *nodeRecord
	slot    *slotRecord
	sound   bool
	whole   bool   // a lease has it
	memory  uint64 // that parts have
	compute uint32
	parts   int            // free slots for parts
	held    placement.Part // what the box has given parts
}

type walkHost struct {
	node  *nodeRecord
	sound bool
	free  []uint32
}

// usages is what a tenant has, in thousandths of GPUs.
type usages struct {
	all, firm, holding milliGPU
	byModel            map[string]milliGPU
}

// member is a lease that needs a place, for a time.
type member struct {
	id          string
	spec        *dxpuv1.LeaseSpec
	from, until time.Time
	host        string          // where it must be; "": anywhere
	without     []placement.Ref // GPUs, and slots of hosts, that are kept from it
	boxes       []string        // where its other GPUs are, if they must be together
	has         []placement.Ref // its other GPUs
}

func walkPoolOf(tx *tx) *walkPool {
	p := &walkPool{tx: tx, now: tx.now, used: map[string]usages{}}
	for _, id := range tx.nodes.ids() {
		p.addNode(tx, tx.nodes.get(id))
	}
	for _, id := range tx.bindings.ids() {
		b := tx.bindings.get(id)
		if b.State != released && !b.BoxClear || b.serving() && b.AwaitsGPUOf != "" {
			p.occupy(b)
		}
		if b.State != released && (!b.HostClear || b.serving()) || b.needsReplacement() && tx.leases.get(b.LeaseID).holds() {
			if h := p.host(b.HostID); h != nil {
				h.free = slices.DeleteFunc(h.free, func(s uint32) bool { return s == b.HostSlot })
			}
		}
	}
	for _, id := range tx.leases.ids() {
		p.count(tx, tx.leases.get(id))
	}
	return p
}

func (p *walkPool) addNode(tx *tx, n *nodeRecord) {
	sound := tx.connected(n.ID) && n.Cordon == nil && !n.Deleting && (n.Stability == nil || !n.Stability.Unstable)
	for _, m := range p.plans(n) {
		sound = sound && m.Start.Add(-m.DrainBefore).After(p.now)
	}
	if n.Kind == dxpuv1.NodeKind_NODE_KIND_HOST {
		h := &walkHost{node: n, sound: sound}
		for _, s := range n.Slots {
			if s.Cordon == nil && s.Health != dxpuv1.Health_HEALTH_FAILED {
				h.free = append(h.free, s.Slot)
			}
		}
		p.hosts = append(p.hosts, h)
		return
	}
	for i := range n.Slots {
		s := &n.Slots[i]
		if s.PartOf == nil && s.Device != nil {
			good := sound && s.Cordon == nil && s.Health == dxpuv1.Health_HEALTH_OK && (s.Fault == nil || !s.Fault.ResetDue && s.Fault.QuarantinedUntil.IsZero())
			p.gpus = append(p.gpus, &walkGPU{ref: placement.Ref{Box: n.ID, Slot: s.Slot}, node: n, slot: s, sound: good})
		}
	}
	for _, s := range n.Slots {
		if s.PartOf != nil && s.Cordon == nil && s.Health == dxpuv1.Health_HEALTH_OK {
			p.gpu(placement.Ref{Box: n.ID, Slot: *s.PartOf}).parts++
		}
	}
}

func (p *walkPool) plans(n *nodeRecord) (out []*planRecord) {
	for _, id := range p.tx.plans.ids() {
		if m := p.tx.plans.get(id); m.Box == n.ID || m.Host == n.ID || m.Rack != "" && m.Rack == n.Rack {
			out = append(out, m)
		}
	}
	return out
}

func (p *walkPool) gpu(r placement.Ref) *walkGPU {
	if i := slices.IndexFunc(p.gpus, func(g *walkGPU) bool { return g.ref == r }); i >= 0 {
		return p.gpus[i]
	}
	return nil
}

func (p *walkPool) host(id string) *walkHost {
	if i := slices.IndexFunc(p.hosts, func(h *walkHost) bool { return h.node.ID == id }); i >= 0 {
		return p.hosts[i]
	}
	return nil
}

func (p *walkPool) occupy(b *bindingRecord) {
	g := p.gpu(b.gpu())
	switch {
	case g == nil:
	case b.Part == nil:
		g.whole = true
	default:
		if !b.BoxClear {
			g.held.Memory, g.held.Compute = g.held.Memory+max(b.Part.Memory, b.Part.HeldMemory), g.held.Compute+max(b.Part.Compute, b.Part.HeldCompute)
		}
		g.memory, g.compute, g.parts = g.memory+max(b.Part.Memory, b.Part.HeldMemory), g.compute+max(b.Part.Compute, b.Part.HeldCompute), g.parts-1
	}
}

// count counts what a lease has: from when it gets its GPUs until it has given all of them back.
func (p *walkPool) count(tx *tx, l *leaseRecord) {
	if l.ended() || l.State == leasePending || l.HostID == "" {
		return
	}
	size, n := milliGPU(0), 0
	for _, id := range tx.bindings.ids() {
		b := tx.bindings.get(id)
		if b.LeaseID != l.ID || !b.serving() || n == int(l.spec.Count) {
			continue
		}
		size, n = size+p.sizeOn(l.spec, b.gpu()), n+1
	}
	switch {
	case l.spec.Part == nil:
		size = 1000 * milliGPU(l.spec.Count)
	case n < int(l.spec.Count):
		size = l.size() // as before some of its parts left
	}
	u := p.used[l.spec.Tenant]
	if u.byModel == nil {
		u.byModel = map[string]milliGPU{}
	}
	u.all += size
	u.byModel[l.Model] += size
	if l.holds() {
		u.holding += size
	}
	if l.holds() && !l.spec.Preemptible {
		u.firm += size
	}
	p.used[l.spec.Tenant] = u
}

// sizeOn returns what a lease has of a GPU.
func (p *walkPool) sizeOn(s *dxpuv1.LeaseSpec, r placement.Ref) milliGPU {
	g := p.gpu(r)
	switch {
	case s.Part == nil:
		return 1000
	case g == nil || g.slot.Device == nil:
		return milliGPU(s.Part.Compute)
	}
	all := g.slot.Device.MemoryBytes
	return max(milliGPU(s.Part.Compute), milliGPU((s.Part.MemoryBytes*1000+all-1)/all))
}

// tolerates reports whether a lease may use what has some taints; hard: only NO_EXECUTE counts.
func tolerates(s *dxpuv1.LeaseSpec, taints []taint, hard bool) bool {
	return !slices.ContainsFunc(taints, func(a taint) bool {
		return (!hard || a.Effect == dxpuv1.TaintEffect_TAINT_EFFECT_NO_EXECUTE) && len(s.Tolerations) == 0
	})
}

// apart reports whether a lease leaves alone the maintenance of a node.
func (p *walkPool) apart(m *member, n *nodeRecord) bool {
	for _, plan := range p.plans(n) {
		if m.from.Before(plan.End) && (m.until.IsZero() || m.until.After(plan.Start.Add(-plan.DrainBefore))) {
			return false
		}
	}
	return true
}

// promised reports whether a GPU, or a slot of a host, is promised to another lease meanwhile.
func (p *walkPool) promised(m *member, r placement.Ref) bool {
	for _, id := range p.tx.leases.ids() {
		l := p.tx.leases.get(id)
		if l.Promise == nil || id == m.id || !(slices.Contains(l.Promise.GPUs, r) || l.Promise.Host == r.Box && slices.Contains(l.Promise.Slots, r.Slot)) {
			continue
		}
		start, end := l.spec.StartTime.AsTime(), l.spec.StartTime.AsTime().Add(l.spec.ExpiresAfter.AsDuration())
		if m.from.Before(end.Add(time.Minute)) && (m.until.IsZero() || m.until.After(start.Add(-time.Minute))) && !p.tx.yields(l, m.id, m.spec) {
			return true
		}
	}
	return false
}

// allowed reports whether a lease may have a GPU, apart from those that have it.
func (p *walkPool) allowed(m *member, g *walkGPU) bool {
	s := m.spec
	return g.sound && g.slot.Device != nil && (s.Model == "" || s.Model == g.slot.Device.Model) && g.slot.Device.MemoryBytes >= s.MinMemoryBytes &&
		hasLabels(g.node.Labels, s.BoxLabels) && (len(s.GpuIds) == 0 || slices.Contains(s.GpuIds, g.ref.String())) &&
		tolerates(s, slices.Concat(g.node.Taints, g.slot.Taints), false) && p.apart(m, g.node) && !slices.Contains(m.without, g.ref) && !p.promised(m, g.ref)
}

// fitsOn reports whether a GPU has room for a lease that may have it.
func (g *walkGPU) fitsOn(s *dxpuv1.LeaseSpec) bool {
	if s.Part == nil {
		return !g.whole && g.compute == 0 && g.memory == 0
	}
	return !g.whole && g.parts > 0 && g.memory+s.Part.MemoryBytes <= g.slot.Device.MemoryBytes && g.compute+s.Part.Compute <= 1000
}

// hostAllowed reports whether a lease may have slots of a host.
func (p *walkPool) hostAllowed(m *member, h *walkHost) bool {
	return h.sound && (m.spec.HostId == "" || m.spec.HostId == h.node.ID) && (m.host == "" || m.host == h.node.ID) &&
		hasLabels(h.node.Labels, m.spec.HostLabels) && tolerates(m.spec, h.node.Taints, false) && p.apart(m, h.node)
}

// freeSlots returns the slots of a host that a lease may have.
func (p *walkPool) freeSlots(m *member, h *walkHost) (out []uint32) {
	for _, s := range h.free {
		r := placement.Ref{Box: h.node.ID, Slot: s}
		if !slices.Contains(m.without, r) && !p.promised(m, r) {
			out = append(out, s)
		}
	}
	return out
}

func reachesNode(a, b *nodeRecord) bool {
	if len(a.Addresses) == 0 || len(b.Addresses) == 0 {
		return true
	}
	return slices.ContainsFunc(a.Addresses, func(x pathAddress) bool {
		return slices.ContainsFunc(b.Addresses, func(y pathAddress) bool { return x.Path == y.Path })
	})
}

// fits reports whether leases that belong together have a place, within the quota of their
// tenant.
func (p *walkPool) fits(ms []*member) bool { return p.place(ms, nil) }

// place puts the first of some leases everywhere, and then the others. more is what those before
// have of each model.
func (p *walkPool) place(ms []*member, more map[string]milliGPU) bool {
	if len(ms) == 0 {
		return true
	}
	m := ms[0]
	for _, h := range p.hosts {
		free := p.freeSlots(m, h)
		if !p.hostAllowed(m, h) || len(free) < int(m.spec.Count) {
			continue
		}
		for _, set := range p.setsFor(m, h.node) {
			next := map[string]milliGPU{}
			for model, n := range more {
				next[model] = n
			}
			for _, g := range set {
				next[g.slot.Device.Model] += p.sizeOn(m.spec, g.ref)
			}
			if !p.mayHave(m.spec, next) {
				continue
			}
			was := h.free
			h.free = slices.DeleteFunc(slices.Clone(h.free), func(s uint32) bool { return slices.Contains(free[:m.spec.Count], s) })
			for _, g := range set {
				g.whole = true // those of a gang are whole
			}
			ok := p.place(ms[1:], next)
			for _, g := range set {
				g.whole = false
			}
			if h.free = was; ok {
				return true
			}
		}
	}
	return false
}

// setsFor returns the sets of GPUs that a lease on a host may have.
func (p *walkPool) setsFor(m *member, host *nodeRecord) (out [][]*walkGPU) {
	var all []*walkGPU
	for _, g := range p.gpus {
		if p.allowed(m, g) && g.fitsOn(m.spec) && reachesNode(host, g.node) && !slices.Contains(m.has, g.ref) {
			all = append(all, g)
		}
	}
	for set := range subsets(all) {
		if len(set) != int(m.spec.Count) {
			continue
		}
		alike := func(g *walkGPU) bool {
			box := set[0].ref.Box
			if len(m.boxes) > 0 {
				box = m.boxes[0]
			}
			return g.slot.Device.Model == set[0].slot.Device.Model && (m.spec.SameBox != dxpuv1.Preference_PREFERENCE_REQUIRED || g.ref.Box == box)
		}
		if !slices.ContainsFunc(set, func(g *walkGPU) bool { return !alike(g) }) {
			out = append(out, set)
		}
	}
	return out
}

// mayHave reports whether the quota of a tenant admits some more GPUs.
func (p *walkPool) mayHave(s *dxpuv1.LeaseSpec, more map[string]milliGPU) bool {
	q, u, all := p.tx.quota(s.Tenant), p.used[s.Tenant], milliGPU(0)
	for model, n := range more {
		all += n
		if limit, ok := q.MaxGPUsByModel[model]; ok && u.byModel[model]+n > wholeGPUs(limit) {
			return false
		}
	}
	if q.MaxGPUs > 0 && u.all+all > wholeGPUs(q.MaxGPUs) {
		return false
	}
	return q.GuaranteedGPUs == nil || s.Preemptible || u.firm+all <= wholeGPUs(*q.GuaranteedGPUs)
}

func (p *walkPool) String() (s string) {
	for _, g := range p.gpus {
		s += fmt.Sprintf("%s %s sound %t whole %t memory %d compute %d slots %d; rack %q, labels %v, taints %v %v\n",
			g.ref, g.slot.Device.Model, g.sound, g.whole, g.memory>>27, g.compute, g.parts, g.node.Rack, g.node.Labels, g.node.Taints, g.slot.Taints)
	}
	for _, h := range p.hosts {
		s += fmt.Sprintf("%s sound %t free %v; rack %q, labels %v, taints %v, addresses %v\n", h.node.ID, h.sound, h.free, h.node.Rack, h.node.Labels, h.node.Taints, h.node.Addresses)
	}
	for id, u := range p.used {
		s += fmt.Sprintf("tenant %s has %+v\n", id, u)
	}
	for _, id := range p.tx.plans.ids() {
		s += fmt.Sprintf("%+v\n", *p.tx.plans.get(id))
	}
	for _, id := range p.tx.leases.ids() {
		if l := p.tx.leases.get(id); !l.ended() {
			s += fmt.Sprintf("%s %s %v: %s\n", id, leaseWord(l.State), l.spec, l.StateReason)
			for _, b := range p.tx.bindingsOf(id) {
				if b := p.tx.bindings.get(b); b.State != released {
					s += fmt.Sprintf("  %s %s %s slot %d of %s\n", b.ID, stateWord(b.State), b.gpu(), b.HostSlot, b.HostID)
				}
			}
		}
	}
	return s
}
