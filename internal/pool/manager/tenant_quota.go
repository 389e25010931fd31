package manager

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/plural"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

func (t *tx) quota(tenant string) quotaRecord {
	if r := t.tenants.get(tenant); r != nil {
		return r.Quota
	}
	return quotaRecord{}
}

// defaultMaxPriority is the highest priority of the leases of a tenant without a limit of
// its own. It is the priority of leases that ask for none, so tenants can go behind
// others, and only an operator lets them go ahead.
const defaultMaxPriority = 0

// admit refuses a request that can never be granted: its tenant must exist and
// its quota must allow the count. Tenants need not be defined; once one is, the default
// one too, only defined tenants may request GPUs: programs would get around the quota of
// the default tenant with a name of their own. operator is set if the caller is not a tenant.
func (t *tx) admit(s *dxpuv1.LeaseSpec, operator bool) error {
	if t.tenants.get(s.Tenant) == nil && s.Tenant != defaultTenant && t.tenants.len() > 0 {
		return errorf(connect.CodeNotFound, "spec.tenant: tenant %q does not exist; an operator makes it (dxpu tenant set %s)", s.Tenant, s.Tenant)
	}
	q := t.quota(s.Tenant)
	switch {
	case q.MaxPriority != nil && s.Priority > *q.MaxPriority:
		return invalid("spec.priority: %d is above %d, the highest that tenant %s may request", s.Priority, *q.MaxPriority, s.Tenant)
	case q.MaxPriority == nil && s.Priority > defaultMaxPriority && !operator:
		return invalid("spec.priority: %d is above %d, the highest that tenant %s may request: it has no limit of its own, which an operator can set",
			s.Priority, defaultMaxPriority, s.Tenant)
	}
	if err := cmp.Or(q.allows(s.Tenant, "spec.count", sizeOf(s), s.Model), t.guarantees(s, "spec.count", sizeOf(s))); err != nil {
		return err
	}
	if u := t.usageOf(s.Tenant); q.MaxLeases > 0 && u.leases() >= q.MaxLeases {
		return errorf(connect.CodeResourceExhausted, "spec.tenant: %s has %s, which is its quota; delete one first", s.Tenant, plural.Count(u.leases(), "lease", "leases"))
	}
	return nil
}

// allows returns an error if a quota never allows count GPUs in one lease.
func (q *quotaRecord) allows(tenant, field string, count milliGPU, model string) error {
	if q.MaxGPUs > 0 && count > wholeGPUs(q.MaxGPUs) {
		return invalid("%s: %s the quota of %d of tenant %s; request fewer, or a larger quota", field, count.counted("GPU exceeds", "GPUs exceed"), q.MaxGPUs, tenant)
	}
	if limit, ok := q.MaxGPUsByModel[model]; ok && count > wholeGPUs(limit) {
		return invalid("%s: %s the quota of %d of tenant %s; request fewer, or another model",
			field, count.counted("GPU of model "+model+" exceeds", "GPUs of model "+model+" exceed"), limit, tenant)
	}
	return nil
}

// quotaReached returns why a tenant's quota does not admit leases that belong together
// now, "" if it does.
func (t *tx) quotaReached(leases []*leaseRecord) string {
	more := map[string]milliGPU{anyModel: 0}
	for _, l := range leases {
		more[anyModel] += l.size()
		if l.spec.Model != anyModel {
			more[l.spec.Model] += l.size()
		}
	}
	for _, model := range slices.Sorted(maps.Keys(more)) {
		if why := t.overQuota(leases[0].spec.Tenant, more[model], model); why != "" {
			return why + " It waits until leases of the tenant end."
		}
	}
	return t.overGuarantee(leases[0].spec, more[anyModel])
}

// overQuota returns why a tenant may not have more GPUs of a model now, "" if
// it may. Without a model only the total counts.
func (t *tx) overQuota(tenant string, more milliGPU, model string) string {
	q := t.quota(tenant)
	if q.MaxGPUs == 0 && len(q.MaxGPUsByModel) == 0 {
		return ""
	}
	u := t.usageOf(tenant)
	if q.MaxGPUs > 0 && u.gpus+more > wholeGPUs(q.MaxGPUs) {
		return fmt.Sprintf("Tenant %s has %v of the %d GPUs that its quota allows, and requests %v more.", tenant, u.gpus, q.MaxGPUs, more)
	}
	if limit, ok := q.MaxGPUsByModel[model]; ok && u.byModel[model]+more > wholeGPUs(limit) {
		return fmt.Sprintf("Tenant %s has %v of the %d GPUs of model %s that its quota allows, and requests %v more.",
			tenant, u.byModel[model], limit, model, more)
	}
	return ""
}

// roomByModel returns how many more whole GPUs of a model a tenant may have, of those that its
// quota lists.
func (t *tx) roomByModel(tenant string) map[string]int {
	u, room := t.usageOf(tenant), map[string]int{}
	for model, limit := range t.quota(tenant).MaxGPUsByModel {
		room[model] = int(max(0, wholeGPUs(limit)-u.byModel[model]) / wholeGPUs(1))
	}
	return room
}

// decideWithin returns where a lease would be placed now, within its tenant's
// quotas by model. A lease without a model gets one whose quota is not used up, and on which a
// part has most GPUs at most.
func (t *tx) decideWithin(id string, s *dxpuv1.LeaseSpec, most milliGPU) (placement.Decision, placement.HostDecision) {
	d, h := t.decide(id, s, 0)
	over := t.overQuotaAt(s, &d, most)
	if over == "" {
		return d, h
	}
	if s.Model != anyModel {
		return t.decideSmaller(id, s, most, d, h)
	}
	var why []string
	t.reindex()
	for _, model := range t.gpuPool.Models() {
		if w := t.overQuota(s.Tenant, sizeOf(s), model); w != "" {
			why = append(why, w)
			continue
		}
		s = proto.CloneOf(s)
		s.Model = model
		d, h = t.decide(id, s, 0)
		d, h = t.decideSmaller(id, s, most, d, h)
		d.Why = append(why, d.Why...)
		if d.OK() {
			return d, h
		}
		why = d.Why
	}
	return placement.Decision{Why: why}, h
}

// decideSmaller returns a decision on a lease of one model if its tenant may have it. Otherwise
// it looks for GPUs with more memory, on which parts count less.
func (t *tx) decideSmaller(id string, s *dxpuv1.LeaseSpec, most milliGPU, d placement.Decision, h placement.HostDecision) (placement.Decision, placement.HostDecision) {
	over := t.overQuotaAt(s, &d, most)
	if over == "" {
		return d, h
	}
	if size := min(most, t.mayStillHave(s, s.Model)); s.Part != nil && size > 0 {
		smaller, host := t.decide(id, s, size)
		if smaller.OK() && t.overQuotaAt(s, &smaller, most) == "" {
			return smaller, host
		}
	}
	return placement.Decision{Why: append(d.Why, over)}, h
}

// mayStillHave returns how many more GPUs of a model a tenant may have in a lease with a spec,
// by its quota and its guarantee.
func (t *tx) mayStillHave(s *dxpuv1.LeaseSpec, model string) milliGPU {
	q, u, more := t.quota(s.Tenant), t.usageOf(s.Tenant), anySize
	if q.MaxGPUs > 0 {
		more = wholeGPUs(q.MaxGPUs) - u.gpus
	}
	if limit, ok := q.MaxGPUsByModel[model]; ok {
		more = min(more, wholeGPUs(limit)-u.byModel[model])
	}
	if g, ok := t.guaranteeOf(s.Tenant); ok && !s.Preemptible {
		more = min(more, g-u.firm)
	}
	return more
}

// overQuotaAt returns why the tenant of a lease may not have the GPUs of a decision, which its
// request alone did not tell: the size of a part is known only now, and the model if the lease
// names none. It returns "" if the tenant may have them, or there are none.
func (t *tx) overQuotaAt(s *dxpuv1.LeaseSpec, d *placement.Decision, most milliGPU) string {
	switch {
	case !d.OK():
		return ""
	case s.Part != nil:
		size := t.sizeAt(s, d.Picks)
		if size > most {
			return fmt.Sprintf("The part counts as %s there, and the guarantee of tenant %s covers %v more.", size.counted("GPU", "GPUs"), s.Tenant, most)
		}
		return cmp.Or(t.overQuota(s.Tenant, size, t.modelAt(d.Picks[0])), t.overGuarantee(s, size))
	case s.Model == anyModel && len(t.quota(s.Tenant).MaxGPUsByModel) > 0:
		return t.overQuota(s.Tenant, sizeOf(s), t.modelAt(d.Picks[0]))
	}
	return ""
}

func (t *tx) modelAt(r placement.Ref) string {
	if s := t.boxSlot(t.gpuAt(r)); s != nil && s.Device != nil {
		return s.Device.Model
	}
	return ""
}

// tenantUsage is the use of a tenant, for its quota and for lists of its leases.
type tenantUsage struct {
	open            map[string]bool // leases that have not ended
	pending, active uint32          // leases in the queue; leases that have or get GPUs
	degraded        uint32          // of the active ones
	gpus            milliGPU
	holding, firm   milliGPU // of the GPUs: without those being released; of these in leases that are not preemptible
	byModel         map[string]milliGPU
	// Parts of GPUs: their number, memory in bytes and compute in thousandths.
	parts, partMemory, partCompute int64
}

func (u *tenantUsage) leases() uint32 { return uint32(len(u.open)) }

// minusOne subtracts one when it is added: unsigned numbers wrap around.
const minusOne = ^uint32(0)

// countLease adds a lease to its tenant's usage, or removes it. Its GPUs count
// from the decision on them until the last one has been released.
func (x *index) countLease(id string, k *leaseEntry, sign uint32) {
	if k.tenant == "" {
		return
	}
	u := x.usageByTenant[k.tenant]
	if u == nil {
		u = &tenantUsage{open: map[string]bool{}, byModel: map[string]milliGPU{}}
		x.usageByTenant[k.tenant] = u
	}
	if sign == 1 {
		u.open[id] = true
	} else if delete(u.open, id); len(u.open) == 0 {
		delete(x.usageByTenant, k.tenant)
		return
	}
	if k.shape != "" || k.sleeps {
		u.pending += sign
		return
	}
	if k.holding {
		u.active += sign
	}
	if k.degraded {
		u.degraded += sign
	}
	gpus, direction := k.gpus, int64(1)
	if sign != 1 {
		gpus, direction = -gpus, -1
	}
	u.countParts(k, direction)
	u.gpus += gpus
	if k.holding {
		u.holding += gpus
	}
	if k.holding && !k.preemptible {
		u.firm += gpus
	}
	if u.byModel[k.model] += gpus; u.byModel[k.model] == 0 {
		delete(u.byModel, k.model)
	}
}

// counts returns the GPUs of a lease that count against its tenant's quota.
func (k *leaseEntry) counts() milliGPU {
	if k.tenant == "" || k.shape != "" || k.sleeps {
		return 0
	}
	return k.gpus
}

func (t *tx) usageOf(tenant string) tenantUsage {
	t.reindex()
	u := t.usageByTenant[tenant]
	if u == nil {
		return tenantUsage{}
	}
	out := *u
	out.byModel = maps.Clone(u.byModel)
	return out
}

// openLeasesOf returns the leases of a tenant that have not ended.
func (t *tx) openLeasesOf(tenant string) map[string]bool {
	t.reindex()
	if u := t.usageByTenant[tenant]; u != nil {
		return u.open
	}
	return nil
}
