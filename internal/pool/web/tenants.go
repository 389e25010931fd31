package web

import (
	"maps"
	"slices"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// tenantsData is what the page of the tenants shows.
type tenantsData struct {
	Tenants []tenantRow
	Next    string
}

// tenantRow is a tenant with what it uses of what it may use.
type tenantRow struct {
	*dxpuv1.Tenant
	GPUs, Leases usage
	Models       []modelQuota
}

// usage is a number and its bound; 0: none.
type usage struct{ Used, Most uint32 }

// Percent is how much of the bound is used, at most 100.
func (u usage) Percent() float64 {
	if u.Most == 0 {
		return 0
	}
	return min(100, 100*float64(u.Used)/float64(u.Most))
}

// Full reports whether there is nothing left.
func (u usage) Full() bool { return u.Most > 0 && u.Used >= u.Most }

// modelQuota bounds the GPUs of one model.
type modelQuota struct {
	Model string
	Most  uint32
}

func (s *Server) tenantsPage(v *view) error {
	v.Name, v.Title, v.Nav = "tenants", "Tenants", "tenants"
	d := &tenantsData{}
	v.Data = d
	res, err := answer(v.api.ListTenants(v.ctx(), connect.NewRequest(&dxpuv1.ListTenantsRequest{PageSize: rowsPerPage, PageToken: v.Query.Get("after")})))
	if connect.CodeOf(err) == connect.CodePermissionDenied && v.Me.GetTenant() != "" {
		res, err = ownTenant(v)
	}
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

// ownTenant is the list for a tenant, who may see none but itself.
func ownTenant(v *view) (*dxpuv1.ListTenantsResponse, error) {
	res, err := answer(v.api.GetTenant(v.ctx(), connect.NewRequest(&dxpuv1.GetTenantRequest{TenantId: v.Me.Tenant})))
	if err != nil {
		return nil, err
	}
	return &dxpuv1.ListTenantsResponse{Tenants: []*dxpuv1.Tenant{res.GetTenant()}}, nil
}
