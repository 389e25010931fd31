package manager

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strconv"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// plainPool is a pool at rest, for a search that does not use the index or package placement.
type plainPool struct {
	gpus    []plainGPU
	hosts   []plainHost
	leases  []*plainLease // those that have GPUs, oldest first
	tenants map[string]*plainTenant
}

type plainGPU struct {
	ref    placement.Ref
	model  string
	memory uint64
	labels map[string]string
	usable bool
	parts  int // slots for parts
}

type plainHost struct {
	id    string
	slots []uint32 // that can be used
}

type plainTenant struct {
	has, firm milliGPU
	byModel   map[string]milliGPU
	quota     quotaRecord
}

// plainLease is a lease, or all leases of a gang under the ID of the first one.
type plainLease struct {
	id, tenant  string
	priority    int32
	preemptible bool
	size        milliGPU
	share       float64 // of the tenant, above its guarantee
	has         []plainBinding
}

type plainBinding struct {
	gpu     placement.Ref
	part    bool
	memory  uint64
	compute uint32
	host    string
	slot    uint32
}

// choiceOf says which leases of a tenant count as borrowed: the youngest, or first those that
// are on the host, or have GPUs, that the request is for.
type choiceOf int

const (
	firstChoice choiceOf = iota
	secondChoice
	noRules // any lease may be preempted
)

// plainPoolOf copies the pool; nil if a binding is under way.
func plainPoolOf(tx *tx) *plainPool {
	p := &plainPool{tenants: map[string]*plainTenant{}}
	for _, id := range tx.tenants.ids() {
		p.tenants[id] = &plainTenant{byModel: map[string]milliGPU{}, quota: tx.quota(id)}
	}
	for _, id := range tx.nodes.ids() {
		p.addNode(tx.nodes.get(id))
	}
	leases := map[string]*plainLease{}
	for _, id := range tx.leases.ids() {
		if l := tx.leases.get(id); l.holds() && tx.firstOfGang(id) == id {
			leases[id] = &plainLease{id: id, tenant: l.spec.Tenant, priority: l.spec.Priority, preemptible: l.spec.Preemptible}
			p.leases = append(p.leases, leases[id])
		}
	}
	slices.SortFunc(p.leases, func(a, b *plainLease) int { return compareLeaseIDs(a.id, b.id) })
	for _, id := range tx.bindings.ids() {
		b := tx.bindings.get(id)
		if b.State == released {
			continue
		}
		l := leases[tx.firstOfGang(b.LeaseID)]
		if b.State != attached || l == nil {
			return nil
		}
		h := plainBinding{gpu: b.gpu(), host: b.HostID, slot: b.HostSlot}
		if b.Part != nil {
			h.part, h.memory, h.compute = true, b.Part.Memory, b.Part.Compute
		}
		l.has = append(l.has, h)
		l.size += p.sizeOn(h)
	}
	p.count()
	return p
}

func (p *plainPool) addNode(n *nodeRecord) {
	if n.Kind == dxpuv1.NodeKind_NODE_KIND_HOST {
		h := plainHost{id: n.ID}
		for _, s := range n.Slots {
			if s.Health == dxpuv1.Health_HEALTH_OK {
				h.slots = append(h.slots, s.Slot)
			}
		}
		p.hosts = append(p.hosts, h)
		return
	}
	for _, s := range n.Slots {
		if s.PartOf == nil {
			p.gpus = append(p.gpus, plainGPU{
				ref: placement.Ref{Box: n.ID, Slot: s.Slot}, model: s.Device.Model, memory: s.Device.MemoryBytes, labels: n.Labels, usable: s.Health == dxpuv1.Health_HEALTH_OK,
			})
		}
	}
	for _, s := range n.Slots {
		if s.PartOf != nil {
			p.gpu(placement.Ref{Box: n.ID, Slot: *s.PartOf}).parts++
		}
	}
}

// count counts what the tenants have.
func (p *plainPool) count() {
	for _, l := range p.leases {
		u := p.tenants[l.tenant]
		u.has += l.size
		for _, b := range l.has {
			u.byModel[p.gpu(b.gpu).model] += p.sizeOn(b)
		}
		if !l.preemptible {
			u.firm += l.size
		}
	}
	usable := map[string]float64{}
	for _, g := range p.gpus {
		if g.usable {
			usable[g.model]++
			usable[anyModel]++
		}
	}
	for _, l := range p.leases {
		u := p.tenants[l.tenant]
		weight := float64(max(1, u.quota.Weight))
		if g := u.quota.GuaranteedGPUs; g != nil {
			l.share = float64(max(0, u.has-wholeGPUs(*g))) / 1000 / max(1, usable[anyModel]) / weight
			continue
		}
		l.share = float64(u.has) / 1000 / max(1, usable[anyModel]) / weight
		for model, n := range u.byModel {
			l.share = max(l.share, float64(n)/1000/max(1, usable[model])/weight)
		}
	}
}

func (p *plainPool) gpu(r placement.Ref) *plainGPU {
	return &p.gpus[slices.IndexFunc(p.gpus, func(g plainGPU) bool { return g.ref == r })]
}

func (p *plainPool) sizeOn(b plainBinding) milliGPU {
	if !b.part {
		return 1000
	}
	all := p.gpu(b.gpu).memory
	return max(milliGPU(b.compute), milliGPU((b.memory*1000+all-1)/all))
}

func (p *plainPool) lease(id string) *plainLease {
	return p.leases[slices.IndexFunc(p.leases, func(l *plainLease) bool { return l.id == id })]
}

func (p *plainPool) victims(ids []string) (out []placement.Victim) {
	for _, id := range ids {
		l := p.lease(id)
		digits, _ := leaseNumber(id)
		order, _ := strconv.ParseUint(digits, 10, 64)
		out = append(out, placement.Victim{ID: id, Priority: l.priority, Size: int(l.size), Share: l.share, Order: order})
	}
	return out
}

// borrowing returns the leases of a tenant that count as borrowed.
func (p *plainPool) borrowing(tenant string, s *dxpuv1.LeaseSpec, c choiceOf) (out []*plainLease) {
	u := p.tenants[tenant]
	excess := u.has - wholeGPUs(*u.quota.GuaranteedGPUs)
	helps := func(l *plainLease) int {
		if c == secondChoice && slices.ContainsFunc(l.has, func(b plainBinding) bool {
			return s.HostId != "" && b.host == s.HostId || p.gpu(b.gpu).isAsked(s) && slices.ContainsFunc(p.gpus, func(g plainGPU) bool { return !g.isAsked(s) })
		}) {
			return 0
		}
		return 1
	}
	var all []*plainLease
	for _, l := range slices.Backward(p.leases) {
		if l.tenant == tenant && l.preemptible {
			all = append(all, l)
		}
	}
	slices.SortStableFunc(all, func(a, b *plainLease) int { return cmp.Or(helps(a)-helps(b), cmp.Compare(a.priority, b.priority)) })
	for _, l := range all {
		if excess <= 0 {
			break
		}
		out = append(out, l)
		excess -= l.size
	}
	return out
}

// permitted returns the leases that may be preempted for a request, which takes back borrowed
// GPUs if its tenant is within its guarantee.
func (p *plainPool) permitted(s *dxpuv1.LeaseSpec, c choiceOf, reclaims bool) (out []string) {
	for _, l := range p.leases {
		lower := l.priority < s.Priority
		may := lower
		if l.tenant != s.Tenant && p.tenants[l.tenant].quota.GuaranteedGPUs != nil {
			may = (lower || reclaims) && slices.Contains(p.borrowing(l.tenant, s, c), l)
		}
		if l.preemptible && may && p.helps(l, s) {
			out = append(out, l.id)
		}
	}
	return out
}

// helps reports whether a request can use the GPUs or the slots of a lease.
func (p *plainPool) helps(l *plainLease, s *dxpuv1.LeaseSpec) bool {
	return slices.ContainsFunc(l.has, func(b plainBinding) bool {
		if s.Model == "" || p.gpu(b.gpu).model == s.Model || b.host == s.HostId {
			return true
		}
		there := proto.CloneOf(s)
		there.HostId = b.host
		return s.HostId == "" && !p.hostFits(there, nil)
	})
}

// search returns a set of leases whose end makes room for a request; nil for none.
func (p *plainPool) search(s *dxpuv1.LeaseSpec, permitted []string, c choiceOf) []string {
	for set := range subsets(permitted) {
		if p.fits(s, set, c) {
			return set
		}
	}
	return nil
}

// fits reports whether a request has a place once some leases are gone, within the quotas and
// by the rules for what it may preempt.
func (p *plainPool) fits(s *dxpuv1.LeaseSpec, gone []string, c choiceOf) bool {
	if !p.hostFits(s, gone) {
		return false
	}
	var usable []*plainGPU
	for i := range p.gpus {
		if g := &p.gpus[i]; p.gpuFits(s, g, gone) {
			usable = append(usable, g)
		}
	}
	for set := range subsets(usable) {
		if len(set) == int(s.Count) && p.together(s, set) && p.mayHave(s, set) && (c == noRules || p.mayTake(s, set, gone, c)) {
			return true
		}
	}
	return false
}

func (p *plainPool) hostFits(s *dxpuv1.LeaseSpec, gone []string) bool {
	for _, h := range p.hosts {
		free := slices.Clone(h.slots)
		for _, l := range p.leases {
			for _, b := range l.has {
				free = slices.DeleteFunc(free, func(s uint32) bool { return b.host == h.id && s == b.slot && !slices.Contains(gone, l.id) })
			}
		}
		if (s.HostId == "" || s.HostId == h.id) && len(free) >= int(s.Count) {
			return true
		}
	}
	return false
}

// isAsked reports whether a request is for such GPUs.
func (g *plainGPU) isAsked(s *dxpuv1.LeaseSpec) bool {
	return (s.Model == "" || g.model == s.Model) && g.memory >= s.MinMemoryBytes && hasLabels(g.labels, s.BoxLabels) &&
		(len(s.GpuIds) == 0 || slices.Contains(s.GpuIds, g.ref.String()))
}

func (p *plainPool) gpuFits(s *dxpuv1.LeaseSpec, g *plainGPU, gone []string) bool {
	if !g.usable || !g.isAsked(s) {
		return false
	}
	memory, compute, parts := g.memory, uint32(1000), g.parts
	for _, l := range p.leases {
		for _, b := range l.has {
			if b.gpu != g.ref || slices.Contains(gone, l.id) {
				continue
			}
			if !b.part || s.Part == nil {
				return false
			}
			memory, compute, parts = memory-b.memory, compute-b.compute, parts-1
		}
	}
	return s.Part == nil || parts > 0 && s.Part.MemoryBytes <= memory && s.Part.Compute <= compute
}

// together reports whether GPUs may be those of one lease.
func (p *plainPool) together(s *dxpuv1.LeaseSpec, set []*plainGPU) bool {
	for _, g := range set {
		if g.model != set[0].model || s.SameBox == dxpuv1.Preference_PREFERENCE_REQUIRED && g.ref.Box != set[0].ref.Box {
			return false
		}
	}
	return true
}

func (p *plainPool) sizeAt(s *dxpuv1.LeaseSpec, set []*plainGPU) (size milliGPU) {
	for _, g := range set {
		size += p.sizeOn(plainBinding{gpu: g.ref, part: s.Part != nil, memory: s.Part.GetMemoryBytes(), compute: s.Part.GetCompute()})
	}
	return size
}

// mayHave reports whether the quota of a tenant admits some more GPUs.
func (p *plainPool) mayHave(s *dxpuv1.LeaseSpec, set []*plainGPU) bool {
	u, size := p.tenants[s.Tenant], p.sizeAt(s, set)
	limit, limited := u.quota.MaxGPUsByModel[set[0].model]
	switch g := u.quota.GuaranteedGPUs; {
	case u.quota.MaxGPUs > 0 && u.has+size > wholeGPUs(u.quota.MaxGPUs), limited && u.byModel[set[0].model]+size > wholeGPUs(limit):
		return false
	case g != nil && !s.Preemptible && u.firm+size > wholeGPUs(*g):
		return false
	}
	return true
}

// mayTake reports whether a tenant may preempt the leases that are gone for some GPUs.
func (p *plainPool) mayTake(s *dxpuv1.LeaseSpec, set []*plainGPU, gone []string, c choiceOf) bool {
	u, size, own := p.tenants[s.Tenant], p.sizeAt(s, set), milliGPU(0)
	g := u.quota.GuaranteedGPUs
	may := p.permitted(s, c, g != nil && u.has+size <= wholeGPUs(*g))
	for _, id := range gone {
		if !slices.Contains(may, id) {
			return false
		}
		if l := p.lease(id); l.tenant == s.Tenant {
			own += l.size
		}
	}
	return g == nil || own == 0 || u.has-own+size <= max(wholeGPUs(*g), u.has)
}

// partsOfOneGPU reports whether some leases have parts of one GPU, and nothing else.
func (p *plainPool) partsOfOneGPU(ids []string) bool {
	var gpu placement.Ref
	for _, id := range ids {
		for _, b := range p.lease(id).has {
			if !b.part || gpu.Box != "" && b.gpu != gpu {
				return false
			}
			gpu = b.gpu
		}
	}
	return true
}

// subsets returns the subsets of a few values, small and large ones, but for the empty one.
func subsets[T any](of []T) iter.Seq[[]T] {
	return func(yield func([]T) bool) {
		for set := 1; set < 1<<len(of); set++ {
			var out []T
			for i, v := range of {
				if set>>i&1 == 1 {
					out = append(out, v)
				}
			}
			if !yield(out) {
				return
			}
		}
	}
}

func (p *plainPool) String() (s string) {
	for id, u := range p.tenants {
		s += fmt.Sprintf("tenant %s has %v, firm %v, %v, quota %+v", id, u.has, u.firm, u.byModel, u.quota)
		if g := u.quota.GuaranteedGPUs; g != nil {
			s += fmt.Sprintf(", guarantee %d", *g)
		}
		s += "\n"
	}
	for _, g := range p.gpus {
		s += fmt.Sprintf("GPU %+v\n", g)
	}
	for _, h := range p.hosts {
		s += fmt.Sprintf("host %+v\n", h)
	}
	for _, l := range p.leases {
		s += fmt.Sprintf("lease %+v\n", *l)
	}
	return s
}
