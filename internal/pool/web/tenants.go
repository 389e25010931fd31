package web

import (
	"maps"
	"slices"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// tenantsData is the content of the page of tenants.
type tenantsData struct {
	Tenants []tenantRow
	Next    string
}

// tenantRow is a tenant with its usage and quotas.
type tenantRow struct {
	*dxpuv1.Tenant
	GPUs, Leases usage
	Models       []modelQuota
}

// usage is a number and its limit; Most 0: no limit.
type usage struct{ Used, Most uint32 }

// Percent returns the used share of the limit in percent, at most 100.
func (u usage) Percent() float64 {
	if u.Most == 0 {
		return 0
	}
	return min(100, 100*float64(u.Used)/float64(u.Most))
}

// Full reports whether the limit is reached.
func (u usage) Full() bool { return u.Most > 0 && u.Used >= u.Most }

// modelQuota is the limit for GPUs of one model.
type modelQuota struct {
	Model string
	Most  uint32
}

func (s *Server) tenantsPage(v *view) error {
	v.Name, v.Title, v.Nav = "tenants", "Tenants", "tenants"
	d := &tenantsData{}
	v.Data = d
	list := func() (*dxpuv1.ListTenantsResponse, error) {
		return ask(v.ctx(), v.api.ListTenants, &dxpuv1.ListTenantsRequest{PageSize: rowsPerPage, PageToken: v.Query.Get("after")})
	}
	if v.Me.GetTenant() != "" {
		list = func() (*dxpuv1.ListTenantsResponse, error) { return ownTenant(v) }
	}
	res, err := list()
	if err != nil {
		return err
	}
	d.Next = res.NextPageToken
	for _, t := range res.Tenants {
		q := t.GetQuota()
		row := tenantRow{Tenant: t, GPUs: usage{t.Gpus, q.GetMaxGpus()}, Leases: usage{t.Leases, q.GetMaxLeases()}}
		for _, m := range slices.Sorted(maps.Keys(q.GetMaxGpusByModel())) {
			row.Models = append(row.Models, modelQuota{m, q.MaxGpusByModel[m]})
		}
		d.Tenants = append(d.Tenants, row)
	}
	return nil
}

// ownTenant returns the list for a tenant, which has access to itself only.
func ownTenant(v *view) (*dxpuv1.ListTenantsResponse, error) {
	res, err := ask(v.ctx(), v.api.GetTenant, &dxpuv1.GetTenantRequest{TenantId: v.Me.Tenant})
	if err != nil {
		return nil, err
	}
	return &dxpuv1.ListTenantsResponse{Tenants: []*dxpuv1.Tenant{res.GetTenant()}}, nil
}
