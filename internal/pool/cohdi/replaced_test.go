package cohdi_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/pool/cohdi"
	"github.com/dxpu-project/dxpu/internal/pool/web"
)

// replaced is a manager with leases that keep the bindings of their earlier GPUs.
type replaced struct {
	resigned
	leases  []*dxpuv1.Lease
	deleted []string
}

// had returns a lease that had GPUs, and has the last of them.
func had(id string, gpus ...string) *dxpuv1.Lease {
	l := &dxpuv1.Lease{Id: id, State: dxpuv1.LeaseState_LEASE_STATE_ACTIVE, Spec: &dxpuv1.LeaseSpec{Labels: map[string]string{cohdi.Label: machine}}}
	states := []dxpuv1.BindingState{dxpuv1.BindingState_BINDING_STATE_RELEASED, dxpuv1.BindingState_BINDING_STATE_LOST, dxpuv1.BindingState_BINDING_STATE_FAILED}
	for i, gpu := range gpus {
		b := &dxpuv1.Binding{GpuId: gpu, State: states[i%len(states)]}
		if i == len(gpus)-1 {
			b.State = dxpuv1.BindingState_BINDING_STATE_ATTACHED
		}
		l.Bindings = append(l.Bindings, b)
	}
	return l
}

// waits makes a lease one that has lost its GPU and waits for another one.
func waits(l *dxpuv1.Lease, epoch uint64) *dxpuv1.Lease {
	l.State = dxpuv1.LeaseState_LEASE_STATE_DEGRADED
	for _, b := range l.Bindings {
		b.Epoch = epoch
	}
	l.Bindings[len(l.Bindings)-1].State = dxpuv1.BindingState_BINDING_STATE_LOST
	return l
}

// removed reports whether a removal has ended this lease alone. "": it has found none.
func (r *replaced) removed(w *httptest.ResponseRecorder, lease string) bool {
	if lease == "" {
		return w.Code == http.StatusNotFound && len(r.deleted) == 0
	}
	return w.Code == http.StatusNoContent && slices.Equal(r.deleted, []string{lease})
}

func (r *replaced) ListLeases(context.Context, *connect.Request[dxpuv1.ListLeasesRequest]) (*connect.Response[dxpuv1.ListLeasesResponse], error) {
	return connect.NewResponse(&dxpuv1.ListLeasesResponse{Leases: r.leases}), nil
}

func (r *replaced) CreateLease(context.Context, *connect.Request[dxpuv1.CreateLeaseRequest]) (*connect.Response[dxpuv1.CreateLeaseResponse], error) {
	return connect.NewResponse(&dxpuv1.CreateLeaseResponse{Lease: r.leases[0]}), nil
}

func (r *replaced) GetLease(_ context.Context, req *connect.Request[dxpuv1.GetLeaseRequest]) (*connect.Response[dxpuv1.GetLeaseResponse], error) {
	l := r.leases[slices.IndexFunc(r.leases, func(l *dxpuv1.Lease) bool { return l.Id == req.Msg.LeaseId })]
	if slices.Contains(r.deleted, l.Id) {
		l.State = dxpuv1.LeaseState_LEASE_STATE_RELEASED
	}
	return connect.NewResponse(&dxpuv1.GetLeaseResponse{Lease: l}), nil
}

func (r *replaced) DeleteLease(_ context.Context, req *connect.Request[dxpuv1.DeleteLeaseRequest]) (*connect.Response[dxpuv1.DeleteLeaseResponse], error) {
	r.deleted = append(r.deleted, req.Msg.LeaseId)
	return connect.NewResponse(&dxpuv1.DeleteLeaseResponse{}), nil
}

func (r *replaced) GetGPU(_ context.Context, req *connect.Request[dxpuv1.GetGPURequest]) (*connect.Response[dxpuv1.GetGPUResponse], error) {
	return connect.NewResponse(&dxpuv1.GetGPUResponse{Gpu: &dxpuv1.GPU{Id: req.Msg.GpuId}}), nil
}

func (r *replaced) update(t *testing.T, method, body string) *httptest.ResponseRecorder {
	_, api := dxpuv1connect.NewPoolServiceHandler(r)
	w := httptest.NewRecorder()
	req := httptest.NewRequestWithContext(t.Context(), method, "/fabric_manager/api/v1/machines/"+machine+"/update?tenant_uuid="+tenant, strings.NewReader(body))
	cohdi.Handler(cohdi.Config{Client: web.LocalClient(api)}).ServeHTTP(w, req)
	return w
}

// TestRemoveReplaced: a GPU that one lease had and another one has is that of the other one. One that is
// lost is removed with the last lease that had it, while that lease waits for another GPU.
func TestRemoveReplaced(t *testing.T) {
	for gpu, want := range map[string]string{"box-1/0": "lease-2", "box-2/0": "lease-1", "box-3/0": "", "box-4/0": "lease-3", "box-5/0": "lease-5", "box-6/0": "lease-4"} {
		for range 20 { // the order of the leases does not matter
			r := &replaced{leases: []*dxpuv1.Lease{
				had("lease-1", "box-1/0", "box-2/0"), had("lease-2", "box-2/0", "box-1/0"), had("lease-3", "box-3/0", "box-1/0", "box-4/0"),
				waits(had("lease-4", "box-6/0", "box-5/0"), 10), waits(had("lease-5", "box-5/0"), 20),
			}}
			if w := r.update(t, http.MethodDelete, removing(gpu)); !r.removed(w, want) {
				t.Fatalf("%s: %d %s; leases %q are deleted, want %q", gpu, w.Code, w.Body, r.deleted, want)
			}
		}
	}
}

// TestRemoveReplacedAgain: a caller that did not get the answer asks again. The lease that had the GPU
// earlier, and has another one, goes on.
func TestRemoveReplacedAgain(t *testing.T) {
	r := &replaced{leases: []*dxpuv1.Lease{had("lease-1", "box-1/0", "box-2/0"), had("lease-2", "box-1/0")}}
	if w := r.update(t, http.MethodDelete, removing("box-1/0")); !r.removed(w, "lease-2") {
		t.Fatalf("%d %s; leases %q are deleted", w.Code, w.Body, r.deleted)
	}
	r.leases, r.deleted = r.leases[:1], nil
	if w := r.update(t, http.MethodDelete, removing("box-1/0")); !r.removed(w, "") {
		t.Errorf("again: %d %s; leases %q are deleted", w.Code, w.Body, r.deleted)
	}
}

// TestAddReplaced: the answer has the GPU that serves, and none that failed during the attach.
func TestAddReplaced(t *testing.T) {
	r := &replaced{leases: []*dxpuv1.Lease{had("lease-1", "box-1/0", "box-2/0")}}
	w := r.update(t, http.MethodPatch, adding("T4", 1))
	var a answer
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil || w.Code != http.StatusOK || len(a.Data.Machines) != 1 {
		t.Fatalf("%d %s, %v", w.Code, w.Body, err)
	}
	if got := a.Data.Machines[0].Resources; len(got) != 1 || got[0].UUID != "box-2/0" {
		t.Errorf("resources %+v, want the one that serves", got)
	}
}
