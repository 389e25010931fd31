package manager

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

func tenantChange(id string, gpus uint32) *dxpuv1.PreviewChange {
	return &dxpuv1.PreviewChange{Call: &dxpuv1.PreviewChange_PutTenant{PutTenant: &dxpuv1.PutTenantRequest{
		Tenant: &dxpuv1.Tenant{Id: id, Quota: &dxpuv1.Quota{MaxGpus: gpus}},
	}}}
}

func leaseChange(s *dxpuv1.LeaseSpec) *dxpuv1.PreviewChange {
	return &dxpuv1.PreviewChange{Call: &dxpuv1.PreviewChange_CreateLease{CreateLease: &dxpuv1.CreateLeaseRequest{Spec: s}}}
}

func resizeChange(id string, count uint32) *dxpuv1.PreviewChange {
	return &dxpuv1.PreviewChange{Call: &dxpuv1.PreviewChange_ResizeLease{ResizeLease: &dxpuv1.ResizeLeaseRequest{LeaseId: id, Count: count}}}
}

// preview returns a line for each change: the error, the state of the lease, or the tenant.
func (w *world) preview(changes ...*dxpuv1.PreviewChange) []string {
	w.t.Helper()
	res, err := w.api().Preview(context.Background(), connect.NewRequest(&dxpuv1.PreviewRequest{Changes: changes}))
	if err != nil {
		w.t.Fatalf("%v", err)
	}
	var out []string
	for _, r := range res.Msg.Results {
		switch {
		case r.Code != "":
			out = append(out, r.Code+": "+r.Message)
		case r.Lease != nil:
			out = append(out, fmt.Sprintf("%s, %d GPUs", leaseWord(r.Lease.State), r.Lease.Spec.Count))
		default:
			out = append(out, "tenant "+r.Tenant.Id)
		}
	}
	return out
}

// TestPreview has changes that build on each other, and others that fail between them.
// The pool is as before afterwards.
func TestPreview(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 3))
	l := w.create(&dxpuv1.LeaseSpec{Count: 1})
	waiting := w.create(&dxpuv1.LeaseSpec{Count: 3, Wait: true})
	w.settle()
	before, reserved := w.m.state.meta.Revision, w.m.state.reserved
	if reserved == nil || reserved.lease != waiting {
		t.Fatalf("the waiting lease has no reservation: %+v", reserved)
	}
	got := w.preview(
		tenantChange("a", 2),
		leaseChange(&dxpuv1.LeaseSpec{Count: 3, Tenant: "a"}),
		leaseChange(&dxpuv1.LeaseSpec{Count: 65}),
		resizeChange(l, 2),
		leaseChange(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a"}),
		leaseChange(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a"}),
		leaseChange(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a", Wait: true}),
	)
	want := []string{
		"tenant a", "invalid_argument: spec.count: 3 GPUs exceed the quota of 2", "invalid_argument: spec.count: 65",
		"active, 2 GPUs", "binding, 1 GPUs", "resource_exhausted: no capacity for this lease now", "pending, 1 GPUs",
	}
	for i := range want {
		if i >= len(got) || !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("change %d: got %q, want %q", i, got, want[i])
		}
	}
	if now := w.m.state.meta.Revision; now != before || w.m.state.tenants.get("a") != nil || w.m.state.leases.len() != 2 {
		t.Errorf("the pool has changed: revision %d, before %d; %d leases", now, before, w.m.state.leases.len())
	}
	if !reflect.DeepEqual(w.m.state.reserved, reserved) {
		t.Errorf("the reservation has changed: %+v", w.m.state.reserved)
	}
	w.settle()
	if next := w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true}); next == "" {
		t.Error("no lease can be made afterwards")
	}
}

// TestPreviewIsBounded has more changes, and more failures, than a preview looks at.
func TestPreviewIsBounded(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 3))
	bad := leaseChange(&dxpuv1.LeaseSpec{Count: 65})
	got := w.preview(bad, bad, bad, bad, leaseChange(&dxpuv1.LeaseSpec{Count: 1}))
	if !strings.HasPrefix(got[4], "canceled: not looked at") {
		t.Errorf("after %d failures: %q", maxPreviewFailures, got[4])
	}
	// The changes before the failures have their results.
	good := leaseChange(&dxpuv1.LeaseSpec{Count: 1})
	if got = w.preview(good, bad, bad, bad, bad, good); got[0] != "binding, 1 GPUs" || !strings.HasPrefix(got[5], "canceled") {
		t.Errorf("before %d failures: %q, after them %q", maxPreviewFailures, got[0], got[5])
	}
	if got := w.preview(&dxpuv1.PreviewChange{}); !strings.HasPrefix(got[0], "invalid_argument: changes:") {
		t.Errorf("an empty change: %q", got)
	}
	for _, n := range []int{0, maxPreview + 1} {
		_, err := w.api().Preview(context.Background(), connect.NewRequest(&dxpuv1.PreviewRequest{Changes: make([]*dxpuv1.PreviewChange, n)}))
		if connect.CodeOf(err) != connect.CodeInvalidArgument {
			t.Errorf("%d changes: %v", n, err)
		}
	}
}

// TestPreviewEndsInTime has a clock that is 20 ms later at each look at it: the manager looks
// at the first changes, and the other ones may be asked for again.
func TestPreviewEndsInTime(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 8)) // no change fails, which would end the preview too
	now := w.m.cfg.Now
	defer func() { w.m.cfg.Now = now }()
	w.m.cfg.Now = func() time.Time {
		w.clock.pass(20 * time.Millisecond)
		return now()
	}
	one := leaseChange(&dxpuv1.LeaseSpec{Count: 1})
	got := w.preview(one, one, one, one, one, one, one, one)
	if got[0] != "binding, 1 GPUs" || !strings.Contains(got[7], "canceled: not looked at, because a preview may take") {
		t.Errorf("the first and the last change: %q, %q", got[0], got[7])
	}
}

// TestPreviewOfAnOperator has a change that needs another role.
func TestPreviewOfAnOperator(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 3))
	c := &call{caller: auth.Identity{Actor: "t-1", Role: dxpuv1.Role_ROLE_OPERATOR}}
	w.m.mu.Lock()
	got := w.m.previewLocked(c, []*dxpuv1.PreviewChange{tenantChange("a", 2), leaseChange(&dxpuv1.LeaseSpec{Count: 1})})
	w.m.mu.Unlock()
	if got[0].Code != connect.CodePermissionDenied.String() || got[1].Code != "" {
		t.Errorf("got %v", got)
	}
}
