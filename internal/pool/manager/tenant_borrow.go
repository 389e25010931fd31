package manager

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// A tenant may have a guarantee: GPUs that it gets back whenever it requests them. Others
// borrow the GPUs that it does not use, with preemptible leases alone, so that it can take
// them back.
//
//   - The leases of a tenant below its guarantee go first within their priority.
//   - If they do not fit, they preempt leases of tenants above their own guarantees, of any
//     priority, as long as those tenants are above it.
//   - A promise to a preemptible lease that begins later is borrowed too, as far as the
//     guarantee does not cover it then: leases within their guarantees get its GPUs.
//   - No tenant preempts leases of another one that is not above its guarantee, or its own
//     leases to borrow more. So two tenants never take the same GPUs from each other in turns.
//
// Compare the cohorts of Kueue: the guarantee is the nominal quota, max_gpus minus the
// guarantee the borrowing limit, and reclaiming within the cohort is always on. The pool is
// one cohort; tenants without a guarantee are outside of it.

// guaranteeOf returns the guarantee of a tenant; false: it has none.
func (t *tx) guaranteeOf(tenant string) (gpus milliGPU, ok bool) {
	if g := t.quota(tenant).GuaranteedGPUs; g != nil {
		return wholeGPUs(*g), true
	}
	return 0, false
}

// borrowed returns the GPUs that a tenant has above its guarantee. Those that are being
// released do not count.
func (t *tx) borrowed(tenant string) milliGPU {
	g, ok := t.guaranteeOf(tenant)
	if !ok {
		return 0
	}
	u := t.usageOf(tenant)
	return u.holding - min(g, u.holding)
}

// withinGuarantee reports whether a tenant has a guarantee that covers some more GPUs.
func (t *tx) withinGuarantee(tenant string, more milliGPU) bool {
	g, ok := t.guaranteeOf(tenant)
	u := t.usageOf(tenant)
	return ok && u.holding+more <= g
}

// overGuarantee returns why a tenant may not have more GPUs in leases that are not
// preemptible, "" if it may.
func (t *tx) overGuarantee(s *dxpuv1.LeaseSpec, more milliGPU) string {
	g, ok := t.guaranteeOf(s.Tenant)
	u := t.usageOf(s.Tenant)
	if !ok || s.Preemptible || u.firm+more <= g {
		return ""
	}
	return fmt.Sprintf("Tenant %s has %v of its %v guaranteed GPUs in leases that are not preemptible, and requests %v more; only preemptible leases borrow GPUs.",
		s.Tenant, u.firm, g, more)
}

// guarantees returns an error if a lease with that many GPUs would have to borrow some and
// is not preemptible.
func (t *tx) guarantees(s *dxpuv1.LeaseSpec, field string, count milliGPU) error {
	if g, ok := t.guaranteeOf(s.Tenant); ok && !s.Preemptible && count > g {
		return invalid("%s: %s the %v guaranteed to tenant %s; a lease that borrows GPUs needs spec.preemptible", field, count.counted("GPU exceeds", "GPUs exceed"), g, s.Tenant)
	}
	return nil
}

// borrowing returns the preemptible leases of a tenant that hold borrowed GPUs: those of
// the lowest priority, then the youngest, until the rest is within its guarantee. The
// first lease of a gang stands for all of them.
func (t *tx) borrowing(tenant string) map[string]bool { return t.borrowingFor(tenant, nil) }

// borrowingFor is borrowing for a request, if it is not nil: leases on the hosts, or with the
// GPUs, that it asks for count first. No GPU tells whether it is borrowed, so those that help are.
func (t *tx) borrowingFor(tenant string, s *dxpuv1.LeaseSpec) map[string]bool {
	excess := t.borrowed(tenant)
	if excess == 0 {
		return nil
	}
	var leases []*leaseRecord
	helps := map[*leaseRecord]int{}
	for id := range t.openLeasesOf(tenant) {
		if t.preemptibleLeases[id] && t.firstOfGang(id) == id {
			l := t.leases.get(id)
			leases = append(leases, l)
			if s != nil && slices.ContainsFunc(t.membersOf(t.gangOf(id)), func(o *leaseRecord) bool { return t.hasAsked(o, s) }) {
				helps[l] = 1
			}
		}
	}
	slices.SortFunc(leases, func(a, b *leaseRecord) int {
		return cmp.Or(cmp.Compare(helps[b], helps[a]), cmp.Compare(a.spec.Priority, b.spec.Priority), compareLeaseIDs(b.ID, a.ID))
	})
	out := map[string]bool{}
	for _, l := range leases {
		if excess == 0 {
			break
		}
		out[l.ID] = true
		excess -= min(excess, t.sizeOfGang(l))
	}
	return out
}

// asksForHost and asksForGPUs report whether a request is not for any host, or any GPU.
func asksForHost(s *dxpuv1.LeaseSpec) bool { return s.HostId != "" || len(s.HostLabels) > 0 }

func asksForGPUs(s *dxpuv1.LeaseSpec) bool {
	return s.Model != anyModel || s.MinMemoryBytes > 0 || s.BoxKind != 0 || len(s.BoxLabels) > 0 || len(s.GpuIds) > 0
}

// hasAsked reports whether a lease is on a host, or has a GPU, that a request asks for.
func (t *tx) hasAsked(l *leaseRecord, s *dxpuv1.LeaseSpec) bool {
	if n := t.nodes.get(l.HostID); asksForHost(s) && n != nil && (s.HostId == "" || s.HostId == n.ID) && hasLabels(n.Labels, s.HostLabels) {
		return true
	}
	return asksForGPUs(s) && slices.ContainsFunc(t.bindingsByLease[l.ID], func(id string) bool {
		b := t.bindings.get(id)
		gpu := b.gpu()
		n, slot := t.nodes.get(gpu.Box), t.boxSlot(gpu)
		return b.serving() && slot != nil && slot.Device != nil &&
			(s.Model == anyModel || slot.Device.Model == s.Model) && slot.Device.MemoryBytes >= s.MinMemoryBytes &&
			(s.BoxKind == 0 || n.BoxKind == s.BoxKind) && hasLabels(n.Labels, s.BoxLabels) &&
			(len(s.GpuIds) == 0 || slices.Contains(s.GpuIds, gpu.String()))
	})
}

// yields reports whether what is promised to a lease that begins later goes to another one,
// whose ID is empty if it does not exist yet: the promise is to borrow, and the guarantee of
// the other one's tenant covers it.
func (t *tx) yields(l *leaseRecord, id string, s *dxpuv1.LeaseSpec) bool {
	if _, ok := t.guaranteeOf(s.Tenant); !ok || !l.spec.Preemptible || l.spec.Tenant == s.Tenant {
		return false
	}
	return t.covered(id, s) && t.borrowsLater(l.ID, l.spec)
}

// promisesTo reports whether GPUs are promised to a tenant that it borrows, and that leases of
// the queue may have, once it has others beside them.
func (t *tx) promisesTo(tenant string) bool {
	for id := range t.promises {
		if l := t.leases.get(id); l != nil && l.spec.Tenant == tenant && l.spec.Preemptible && len(t.pendingByShape) > 0 {
			return true
		}
	}
	return false
}

// covered reports whether the guarantee of its tenant covers what a lease has or requests.
func (t *tx) covered(id string, s *dxpuv1.LeaseSpec) bool {
	o := t.leases.get(id)
	switch {
	case startTime(s).After(t.now):
		return !t.borrowsLater(id, s)
	case o == nil:
		return t.withinGuarantee(s.Tenant, sizeOf(s))
	case !o.holds():
		return t.withinGuarantee(s.Tenant, t.sizeOfGang(o))
	case s.Count > o.spec.Count: // it grows
		return t.withinGuarantee(s.Tenant, o.sizeOfMore(s.Count-o.spec.Count))
	}
	return !t.borrowing(s.Tenant)[t.firstOfGang(id)]
}

// borrowsLater reports whether its tenant has a guarantee that does not cover a lease that
// begins later, beside those that the tenant has then and that are taken back after it.
func (t *tx) borrowsLater(id string, s *dxpuv1.LeaseSpec) bool {
	g, ok := t.guaranteeOf(s.Tenant)
	if !ok {
		return false
	}
	has, from, until := sizeOf(s), startTime(s), expireTime(s)
	for other := range t.openLeasesOf(s.Tenant) {
		o := t.leases.get(other)
		ends := o.expires()
		switch {
		case other == id, !ends.IsZero() && !ends.After(from):
		case !o.holds() && (o.Promise == nil || !startTime(o.spec).Before(until)):
		case !o.spec.Preemptible, s.Preemptible && takenBackAfter(o, id, s.Priority):
			has += o.size()
		}
		if has > g {
			return true
		}
	}
	return has > g
}

// takenBackAfter reports whether a lease is taken back after another one of its tenant,
// which is preemptible too and has no ID if it does not exist yet; see borrowing.
func takenBackAfter(o *leaseRecord, id string, priority int32) bool {
	return cmp.Or(cmp.Compare(o.spec.Priority, priority), compareLeaseIDs(id, o.ID)) > 0 || id == "" && o.spec.Priority == priority
}

// lendsTo reports whether a tenant borrows GPUs in leases that some of other tenants in the queue
// may preempt: it is above its guarantee, and they are within theirs or of higher priority.
func (t *tx) lendsTo(tenant string) bool {
	if t.borrowed(tenant) == 0 || len(t.pendingByShape) == 0 {
		return false
	}
	highest := int32(math.MinInt32) // of those that may preempt: above a priority, or any
	for priority, class := range t.waiting {
		for other := range class.lines {
			switch {
			case other == tenant:
			case t.turnOf(other) == firstShare:
				highest = math.MaxInt32
			default:
				highest = max(highest, priority)
			}
		}
	}
	for id := range t.openLeasesOf(tenant) { // those of the lowest priority are borrowed first
		if t.preemptibleLeases[id] && t.leases.get(id).spec.Priority < highest {
			return true
		}
	}
	return false
}

// preemptible is what some leases may preempt.
type preemptible struct {
	tenant    string
	priority  int32
	reclaims  bool                       // also borrowed GPUs, whatever the priority
	most      milliGPU                   // what the leases may have by it; parts may be larger than they ask for
	request   *dxpuv1.LeaseSpec          // see tx.borrowingFor
	borrowing map[string]map[string]bool // by tenant
}

func (t *tx) preemptibleFor(leases []*leaseRecord) *preemptible {
	s := leases[0].spec
	p := &preemptible{
		tenant: s.Tenant, priority: s.Priority, reclaims: t.withinGuarantee(s.Tenant, requestedSize(leases)), most: anySize, borrowing: map[string]map[string]bool{},
	}
	if p.reclaims {
		g, _ := t.guaranteeOf(s.Tenant)
		p.most = g - t.usageOf(s.Tenant).holding
	}
	return p
}

// next returns what else the leases may preempt if that makes no room: with the borrowed GPUs
// that help most, and then without those that only a guarantee takes back. Parts may be larger
// than the guarantee covers, which shows where they are placed. nil: nothing else. p was asked
// about all leases before.
func (p *preemptible) next(s *dxpuv1.LeaseSpec) *preemptible {
	borrow := false
	for _, ids := range p.borrowing {
		borrow = borrow || len(ids) > 0
	}
	next := &preemptible{tenant: p.tenant, priority: p.priority, reclaims: p.reclaims, most: p.most, request: s, borrowing: map[string]map[string]bool{}}
	switch {
	case p.request == nil && borrow && (asksForHost(s) || asksForGPUs(s)):
		return next
	case p.reclaims && s.Part != nil:
		next.reclaims, next.most, next.request = false, anySize, nil
		return next
	}
	return nil
}

// allows reports whether a preemptible lease may be preempted.
func (p *preemptible) allows(t *tx, o *leaseRecord) bool {
	tenant, lower := o.spec.Tenant, o.spec.Priority < p.priority
	if _, ok := t.guaranteeOf(tenant); !ok || tenant == p.tenant {
		return lower
	}
	if !lower && !p.reclaims {
		return false
	}
	if _, known := p.borrowing[tenant]; !known {
		p.borrowing[tenant] = t.borrowingFor(tenant, p.request)
	}
	return p.borrowing[tenant][o.ID]
}

// borrowsForOwn reports whether a tenant would preempt leases of its own for some more GPUs, and
// borrow more than it does. Two tenants that did so would take the borrowed GPUs from each other
// in turns, each with its small leases, and lose them to its large ones.
func (t *tx) borrowsForOwn(tenant string, more milliGPU, gone []placement.Victim) bool {
	g, ok := t.guaranteeOf(tenant)
	own := milliGPU(0)
	for _, v := range gone {
		if t.leases.get(v.ID).spec.Tenant == tenant {
			own += milliGPU(v.Size)
		}
	}
	has := t.usageOf(tenant).holding
	return ok && own > 0 && has-own+more > max(g, has)
}

// excessShare returns the weighted share of the pool that a tenant has above its
// guarantee; without one, the share that it has. Of equal leases those of the tenant with
// the largest one are preempted first.
func (t *tx) excessShare(tenant string) float64 {
	if _, ok := t.guaranteeOf(tenant); ok {
		return t.poolSizes().share(anyModel, t.borrowed(tenant), t.weight(tenant))
	}
	return t.shareOf(tenant)
}

// firstShare orders the tenants below their guarantees before all others.
const firstShare = -1

// turn returns the share by which a tenant with some GPUs is ordered in the queue.
func (t *tx) turn(tenant string, has milliGPU, share float64) float64 {
	if g, ok := t.guaranteeOf(tenant); ok && has < g {
		return firstShare
	}
	return share
}
