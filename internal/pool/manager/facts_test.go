package manager

import (
	"context"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// A lease that waited in vain for slots of its host says so, and not that it could preempt
// no other lease.
func TestWhatALeaseLacked(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), hostNode("h2", 1), boxNode("b1", 4))
	w.create(&dxpuv1.LeaseSpec{Count: 1, HostId: "h1"})
	slots := w.create(&dxpuv1.LeaseSpec{Count: 1, HostId: "h1", Wait: true, WaitTimeout: durationpb.New(time.Second)})
	gpus := w.create(&dxpuv1.LeaseSpec{Count: 1, Model: "H100", Wait: true, WaitTimeout: durationpb.New(time.Second)})
	for range 5 {
		w.settle()
	}
	for id, want := range map[string]string{
		slots: "the wait timed out: Host h1 does not have 1 free slot.",
		gpus:  `H100`,
	} {
		if l := w.wantLease(id, leaseFailed); !strings.Contains(l.StateReason, want) || strings.Contains(l.StateReason, "preempt") {
			t.Errorf("lease %s: %s", id, l.StateReason)
		}
	}
}

// An explanation of a refusal does not praise GPUs that the lease cannot get.
func TestExplanationsDoNotContradict(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 4))
	res, err := w.api().ExplainLease(operatorContext(), connect.NewRequest(&dxpuv1.ExplainLeaseRequest{
		What: &dxpuv1.ExplainLeaseRequest_Spec{Spec: &dxpuv1.LeaseSpec{Count: 2}},
	}))
	if err != nil {
		t.Fatal(err)
	}
	why := strings.Join(res.Msg.Explanation, " ")
	if res.Msg.Satisfied || !strings.Contains(why, "No host has 2 free slots") || strings.Contains(why, "fits best") {
		t.Errorf("satisfied %v: %s", res.Msg.Satisfied, why)
	}
}

// A tenant learns nothing about the boxes of the pool from an explanation.
func TestTenantsLearnNoBoxes(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 4))
	explain := func(who auth.Identity) string {
		res, err := w.api().ExplainLease(auth.With(context.Background(), who), connect.NewRequest(&dxpuv1.ExplainLeaseRequest{
			What: &dxpuv1.ExplainLeaseRequest_Spec{Spec: &dxpuv1.LeaseSpec{Count: 1, Tenant: "a"}},
		}))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(res.Msg.Explanation, " ")
	}
	if why := explain(auth.Identity{Role: dxpuv1.Role_ROLE_OPERATOR}); !strings.Contains(why, "Box b1 (PCIe-switch) fits best") {
		t.Errorf("an operator is told %q", why)
	}
	if why := explain(auth.Identity{Role: dxpuv1.Role_ROLE_TENANT, Tenant: "a"}); strings.Contains(why, "b1") || !strings.Contains(why, "usable GPUs are free") {
		t.Errorf("a tenant is told %q", why)
	}
}

// A text that is no token of a page is refused, even if it is valid base64.
func TestPageTokensAreChecked(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 4))
	list := func(token string) (*dxpuv1.ListGPUsResponse, error) {
		res, err := w.api().ListGPUs(operatorContext(), connect.NewRequest(&dxpuv1.ListGPUsRequest{PageSize: 3, PageToken: token}))
		if err != nil {
			return nil, err
		}
		return res.Msg, nil
	}
	for _, token := range []string{"zzz", "zzzz", "%", pageToken("")} {
		_, err := list(token)
		wantRefusal(t, err, connect.CodeInvalidArgument, "page_token: not issued by this manager")
	}
	first, err := list("")
	if err != nil || len(first.Gpus) != 3 {
		t.Fatalf("%v, %v", first, err)
	}
	if next, err := list(first.NextPageToken); err != nil || len(next.Gpus) != 1 {
		t.Errorf("%v, %v", next, err)
	}
}

// The time for which a device was attached is not that of a step.
func TestStepsDoNotCountUse(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	w.wantLease(id, leaseActive)
	for range 100 {
		w.settle()
	}
	w.delete(id, true)
	w.settle()
	w.wantLease(id, leaseReleased)
	events, _, _, _ := w.m.events.after(0)
	for _, e := range events {
		if e.Type == dxpuv1.EventType_EVENT_TYPE_BINDING_STATE && e.Duration.AsDuration() > 10*time.Second {
			t.Errorf("%s: after %v", e.Message, e.Duration.AsDuration())
		}
	}
	families, err := w.m.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.Metric {
			if f.GetName() == "dxpu_manager_binding_step_seconds" && m.GetLabel()[0].GetValue() == "detaching" {
				t.Errorf("%d steps into detaching are measured", m.GetHistogram().GetSampleCount())
			}
		}
	}
}

// A manager without others has no address to be told apart by.
func TestManagerAt(t *testing.T) {
	if a, b := managerAt(""), managerAt("http://m1:7470"); a != "the manager" || b != "the manager at http://m1:7470" {
		t.Errorf("%q, %q", a, b)
	}
}

// One thing is not "1 things".
func TestMessagesAboutOne(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 2), boxNode("b1", 2))
	w.putTenant("a", &dxpuv1.Quota{MaxLeases: 1, MaxGpus: 1, GuaranteedGpus: proto.Uint32(1)})
	w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a"})
	w.settle()
	_, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a"})
	wantErr(t, err, connect.CodeResourceExhausted, "a has 1 lease, which is its quota")
	_, err = w.api().DeleteTenant(t.Context(), connect.NewRequest(&dxpuv1.DeleteTenantRequest{TenantId: "a"}))
	wantErr(t, err, connect.CodeFailedPrecondition, "a has 1 lease; delete")
	_, err = w.api().DeleteNode(t.Context(), connect.NewRequest(&dxpuv1.DeleteNodeRequest{NodeId: "b1"}))
	wantErr(t, err, connect.CodeFailedPrecondition, "box b1 has 1 binding: drain")
	if want := "tenant a may have 1 GPU in 1 lease, 1 GPU guaranteed"; !strings.Contains(w.events(), want) {
		t.Errorf("the events do not say %q: %s", want, w.events())
	}
	waits := w.create(&dxpuv1.LeaseSpec{Count: 2, Wait: true})
	if why := w.explain(waits); !strings.Contains(why, "default has 0 GPUs") {
		t.Error(why)
	}
}
