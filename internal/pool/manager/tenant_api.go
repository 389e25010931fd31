package manager

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/plural"
)

func (s *poolService) ListTenants(ctx context.Context, req *connect.Request[dxpuv1.ListTenantsRequest]) (*connect.Response[dxpuv1.ListTenantsResponse], error) {
	return viewResponse(ctx, s.m, func(t *tx, res *dxpuv1.ListTenantsResponse) (err error) {
		res.Revision = t.meta.Revision
		res.Tenants, res.NextPageToken, err = listPage(req.Msg, same, strings.Compare, allOf(t.tenantIDs()), t.tenantMessage)
		return err
	})
}

// tenantIDs returns the defined tenants, the default one, and those that have
// leases without being defined.
func (t *tx) tenantIDs() []string {
	ids := append(t.tenants.ids(), defaultTenant)
	for id, u := range t.usageByTenant {
		if u.leases() > 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

func (s *poolService) GetTenant(ctx context.Context, req *connect.Request[dxpuv1.GetTenantRequest]) (*connect.Response[dxpuv1.GetTenantResponse], error) {
	return viewResponse(ctx, s.m, func(t *tx, res *dxpuv1.GetTenantResponse) error {
		if !slices.Contains(t.tenantIDs(), req.Msg.TenantId) {
			return notFound("tenant", req.Msg.TenantId)
		}
		res.Tenant = t.tenantMessage(req.Msg.TenantId)
		return nil
	})
}

func (s *poolService) PutTenant(ctx context.Context, req *connect.Request[dxpuv1.PutTenantRequest]) (*connect.Response[dxpuv1.PutTenantResponse], error) {
	return updateResponse(ctx, s.m, func(t *tx, res *dxpuv1.PutTenantResponse) error { return t.putTenant(req.Msg, res) })
}

// putTenant carries out a request to make or change a tenant.
func (t *tx) putTenant(r *dxpuv1.PutTenantRequest, res *dxpuv1.PutTenantResponse) error {
	want := r.Tenant
	if err := checkTenant(want); err != nil {
		return err
	}
	set := map[string]bool{"description": want.Description != "", "quota": want.Quota != nil}
	if paths := r.UpdateMask.GetPaths(); len(paths) > 0 {
		clear(set)
		for _, p := range paths {
			if p != "description" && p != "quota" {
				return invalid("update_mask: %q is not description or quota", truncateText(p))
			}
			set[p] = true
		}
	}
	old, first := t.tenants.get(want.Id), t.tenants.len() == 0
	switch {
	case old == nil && want.ResourceVersion != 0:
		return conflict("tenant", want.Id, 0, want.ResourceVersion)
	case old == nil:
		t.tenants.put(want.Id, &tenantRecord{ID: want.Id, CreateTime: t.now, Created: t.revision()})
	case want.ResourceVersion != 0 && want.ResourceVersion != old.ResourceVersion:
		return conflict("tenant", want.Id, old.ResourceVersion, want.ResourceVersion)
	}
	record := t.tenants.edit(want.Id)
	if set["description"] {
		record.Description = want.Description
	}
	if set["quota"] {
		record.Quota = quotaOf(want.Quota)
	}
	record.ResourceVersion = t.revision()
	t.event(&dxpuv1.Event{Type: dxpuv1.EventType_EVENT_TYPE_TENANT_CHANGED, Tenant: want.Id},
		"tenant %s may have %s%s", want.Id, &record.Quota, t.shutsOut(first))
	res.Tenant = t.tenantMessage(want.Id)
	return nil
}

// shutsOut returns the part of the event of the first tenant about those that get no more
// leases from then on, because they are not defined: programs that use the pool.
func (t *tx) shutsOut(first bool) string {
	if !first {
		return ""
	}
	ids := slices.DeleteFunc(t.tenantIDs(), func(id string) bool { return id == defaultTenant || t.tenants.get(id) != nil })
	if len(ids) == 0 {
		return ""
	}
	const most = 8
	names := strings.Join(ids[:min(len(ids), most)], ", ")
	if len(ids) > most {
		names = fmt.Sprintf("%s and %d more", names, len(ids)-most)
	}
	return "; tenants that are not set get no new leases from now on: " + names
}

// maxWeight bounds the weight of a tenant.
const maxWeight = 1000

func checkTenant(t *dxpuv1.Tenant) error {
	switch {
	case t == nil:
		return invalid("tenant: must be set")
	case !tenantPattern.MatchString(t.Id):
		return invalid("tenant.id: %q is not 1 to 63 of a-z, 0-9, '.', '_' and '-'", t.Id)
	}
	if _, ok := t.Quota.GetMaxGpusByModel()[""]; ok {
		return invalid("tenant.quota.max_gpus_by_model: a model without a name")
	}
	if w := t.Quota.GetWeight(); w > maxWeight {
		return invalid("tenant.quota.weight: %d is not 0 to %d", w, maxWeight)
	}
	if g, most := t.Quota.GetGuaranteedGpus(), t.Quota.GetMaxGpus(); most > 0 && g > most {
		return invalid("tenant.quota.guaranteed_gpus: %d is above max_gpus, which is %d", g, most)
	}
	if p := t.Quota.GetMaxPriority(); p < -100 || p > 100 {
		return invalid("tenant.quota.max_priority: %d is not -100 to 100", p)
	}
	return nil
}

func quotaOf(q *dxpuv1.Quota) quotaRecord {
	out := quotaRecord{Weight: q.GetWeight(), MaxGPUs: q.GetMaxGpus(), MaxLeases: q.GetMaxLeases(), MaxGPUsByModel: q.GetMaxGpusByModel()}
	if q != nil && q.GuaranteedGpus != nil {
		g := *q.GuaranteedGpus
		out.GuaranteedGPUs = &g
	}
	if q != nil && q.MaxPriority != nil {
		p := *q.MaxPriority
		out.MaxPriority = &p
	}
	return out
}

func (s *poolService) DeleteTenant(ctx context.Context, req *connect.Request[dxpuv1.DeleteTenantRequest]) (*connect.Response[dxpuv1.DeleteTenantResponse], error) {
	id := req.Msg.TenantId
	return updateResponse(ctx, s.m, func(t *tx, _ *dxpuv1.DeleteTenantResponse) error {
		r, u := t.tenants.get(id), t.usageOf(id)
		switch {
		case id == defaultTenant:
			return errorf(connect.CodeFailedPrecondition, "tenant_id: the default tenant always exists; give it a quota instead")
		case r == nil:
			return notFound("tenant", id)
		case req.Msg.ResourceVersion != 0 && req.Msg.ResourceVersion != r.ResourceVersion:
			return conflict("tenant", id, r.ResourceVersion, req.Msg.ResourceVersion)
		case u.leases() > 0:
			return errorf(connect.CodeFailedPrecondition, "tenant_id: %s has %s; delete them first", id, plural.Count(u.leases(), "lease", "leases"))
		}
		t.tenants.remove(id)
		t.deleteTokensOf(id)
		t.event(&dxpuv1.Event{Type: dxpuv1.EventType_EVENT_TYPE_TENANT_CHANGED, Tenant: id}, "tenant %s was deleted", id)
		return nil
	})
}

func (t *tx) tenantMessage(id string) *dxpuv1.Tenant {
	out := &dxpuv1.Tenant{Id: id, Quota: &dxpuv1.Quota{}}
	if r := t.tenants.get(id); r != nil {
		out.Description, out.ResourceVersion, out.CreateTime = r.Description, r.ResourceVersion, timestamp(r.CreateTime)
		out.Quota = &dxpuv1.Quota{
			Weight:  r.Quota.Weight,
			MaxGpus: r.Quota.MaxGPUs, MaxLeases: r.Quota.MaxLeases, MaxGpusByModel: maps.Clone(r.Quota.MaxGPUsByModel), MaxPriority: r.Quota.MaxPriority,
			GuaranteedGpus: r.Quota.GuaranteedGPUs,
		}
	}
	u := t.usageOf(id)
	out.BorrowedGpus = t.borrowed(id).roundedUp()
	out.Parts, out.PartMemoryBytes, out.PartCompute = uint32(u.parts), uint64(u.partMemory), uint32(u.partCompute)
	out.Gpus, out.Leases, out.LeasesPending = u.gpus.roundedUp(), u.leases()-u.pending, u.pending
	return out
}

func (q *quotaRecord) String() string {
	gpus, leases := "any number of GPUs", "any number of leases"
	if q.MaxGPUs > 0 {
		gpus = plural.Count(q.MaxGPUs, "GPU", "GPUs")
	}
	if q.MaxLeases > 0 {
		leases = plural.Count(q.MaxLeases, "lease", "leases")
	}
	out := gpus + " in " + leases
	if len(q.MaxGPUsByModel) > 0 {
		out += ", bounded by model"
	}
	if q.GuaranteedGPUs != nil {
		out += ", " + plural.Count(*q.GuaranteedGPUs, "GPU", "GPUs") + " guaranteed"
	}
	if q.Weight > 1 {
		out += fmt.Sprintf(", with weight %d", q.Weight)
	}
	if q.MaxPriority != nil {
		out += fmt.Sprintf(", with priority up to %d", *q.MaxPriority)
	}
	return out
}
