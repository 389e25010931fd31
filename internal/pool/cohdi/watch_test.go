package cohdi_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/pool/cohdi"
	"github.com/dxpu-project/dxpu/internal/pool/web"
)

// resigned is a manager whose term ends while it attaches and detaches: its watches end
// without an error.
type resigned struct {
	dxpuv1connect.UnimplementedPoolServiceHandler
	deleted int
	leave   func() // ends the caller's request while a lease is created
}

func (r *resigned) lease() *dxpuv1.Lease {
	return &dxpuv1.Lease{
		Id: "lease-1", State: dxpuv1.LeaseState_LEASE_STATE_DEGRADED, Spec: &dxpuv1.LeaseSpec{Labels: map[string]string{cohdi.Label: machine}},
		Bindings: []*dxpuv1.Binding{{GpuId: "box-1/0"}},
	}
}

func (r *resigned) GetHost(context.Context, *connect.Request[dxpuv1.GetHostRequest]) (*connect.Response[dxpuv1.GetHostResponse], error) {
	return connect.NewResponse(&dxpuv1.GetHostResponse{Host: &dxpuv1.Host{Node: &dxpuv1.NodeInfo{Id: machine, Connected: true}}}), nil
}

func (r *resigned) CreateLease(ctx context.Context, _ *connect.Request[dxpuv1.CreateLeaseRequest]) (*connect.Response[dxpuv1.CreateLeaseResponse], error) {
	if r.leave != nil {
		r.leave()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err() // the lease exists, and its ID is lost
	}
	return connect.NewResponse(&dxpuv1.CreateLeaseResponse{Lease: r.lease()}), nil
}

func (r *resigned) GetLease(context.Context, *connect.Request[dxpuv1.GetLeaseRequest]) (*connect.Response[dxpuv1.GetLeaseResponse], error) {
	return connect.NewResponse(&dxpuv1.GetLeaseResponse{Lease: r.lease()}), nil
}

func (r *resigned) ListLeases(context.Context, *connect.Request[dxpuv1.ListLeasesRequest]) (*connect.Response[dxpuv1.ListLeasesResponse], error) {
	return connect.NewResponse(&dxpuv1.ListLeasesResponse{Leases: []*dxpuv1.Lease{r.lease()}}), nil
}

func (r *resigned) DeleteLease(context.Context, *connect.Request[dxpuv1.DeleteLeaseRequest]) (*connect.Response[dxpuv1.DeleteLeaseResponse], error) {
	r.deleted++
	return connect.NewResponse(&dxpuv1.DeleteLeaseResponse{Lease: r.lease()}), nil
}

func (r *resigned) WatchLeases(context.Context, *connect.Request[dxpuv1.WatchLeasesRequest], *connect.ServerStream[dxpuv1.WatchLeasesResponse]) error {
	return nil
}

// TestManagerResigns: a change whose outcome the manager no longer learns is an error, and
// neither a resource that was added nor one that was removed.
func TestManagerResigns(t *testing.T) {
	for method, body := range map[string]string{http.MethodPatch: adding("T4", 1), http.MethodDelete: removing("box-1/0")} {
		m := &resigned{}
		_, api := dxpuv1connect.NewPoolServiceHandler(m)
		w := httptest.NewRecorder()
		r := httptest.NewRequestWithContext(t.Context(), method, "/fabric_manager/api/v1/machines/"+machine+"/update?tenant_uuid="+tenant, strings.NewReader(body))
		cohdi.Handler(cohdi.Config{Client: web.LocalClient(api)}).ServeHTTP(w, r)
		if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "ended its watch") || m.deleted != 1 {
			t.Errorf("%s: %d %s; %d leases deleted", method, w.Code, w.Body, m.deleted)
		}
	}
}

// TestCallerLeaves: a caller that goes while its lease is created leaves none behind.
func TestCallerLeaves(t *testing.T) {
	ctx, leave := context.WithCancel(t.Context())
	m := &resigned{leave: leave}
	_, api := dxpuv1connect.NewPoolServiceHandler(m)
	r := httptest.NewRequestWithContext(ctx, http.MethodPatch, "/fabric_manager/api/v1/machines/"+machine+"/update?tenant_uuid="+tenant, strings.NewReader(adding("T4", 1)))
	cohdi.Handler(cohdi.Config{Client: web.LocalClient(api)}).ServeHTTP(httptest.NewRecorder(), r)
	if m.deleted != 1 {
		t.Errorf("%d leases deleted, want the one that was created", m.deleted)
	}
}
