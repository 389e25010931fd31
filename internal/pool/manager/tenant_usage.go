package manager

import "maps"

// tenantUsage is the use of a tenant, for its quota and for lists of its
// leases.
type tenantUsage struct {
	open            map[string]bool // leases that have not ended
	pending, active uint32          // leases in the queue; leases that have or get GPUs
	gpus            uint32
	byModel         map[string]uint32 // GPUs
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
		u = &tenantUsage{open: map[string]bool{}, byModel: map[string]uint32{}}
		x.usageByTenant[k.tenant] = u
	}
	if sign == 1 {
		u.open[id] = true
	} else if delete(u.open, id); len(u.open) == 0 {
		delete(x.usageByTenant, k.tenant)
		return
	}
	if k.shape != "" {
		u.pending += sign
		return
	}
	if k.holding {
		u.active += sign
	}
	u.gpus += sign * k.gpus
	if u.byModel[k.model] += sign * k.gpus; u.byModel[k.model] == 0 {
		delete(u.byModel, k.model)
	}
}

// usageOf returns the usage of a tenant.
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
