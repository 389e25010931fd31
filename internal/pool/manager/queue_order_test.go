package manager

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
	"pgregory.net/rapid"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func (w *world) api() *poolService { return &poolService{m: w.m} }

func (w *world) putTenant(id string, q *dxpuv1.Quota) {
	w.t.Helper()
	_, err := w.api().PutTenant(context.Background(), connect.NewRequest(&dxpuv1.PutTenantRequest{Tenant: &dxpuv1.Tenant{Id: id, Quota: q}}))
	if err != nil {
		w.t.Fatalf("PutTenant %s: %v", id, err)
	}
}

func (w *world) explain(id string) string {
	w.t.Helper()
	res, err := w.api().ExplainLease(context.Background(), connect.NewRequest(&dxpuv1.ExplainLeaseRequest{What: &dxpuv1.ExplainLeaseRequest_LeaseId{LeaseId: id}}))
	if err != nil {
		w.t.Fatalf("explain %s: %v", id, err)
	}
	return strings.Join(res.Msg.Explanation, " ")
}

func TestQuotaAtCreation(t *testing.T) {
	quota := &dxpuv1.Quota{
		MaxGpus: 4, MaxLeases: 2, MaxGpusByModel: map[string]uint32{"DX100": 3, "T4": 0}, MaxPriority: proto.Int32(10),
	}
	tests := []struct {
		name string
		spec *dxpuv1.LeaseSpec
		code connect.Code // 0: admitted
		want string
	}{
		{"within", &dxpuv1.LeaseSpec{Count: 3, Model: "DX100"}, 0, ""},
		{"more than the quota ever allows", &dxpuv1.LeaseSpec{Count: 5}, connect.CodeInvalidArgument, "spec.count: 5 GPUs exceed the quota of 4 of tenant a"},
		{"more of the model than the quota ever allows", &dxpuv1.LeaseSpec{Count: 4, Model: "DX100"}, connect.CodeInvalidArgument, "4 GPUs of model DX100"},
		{"a model that is forbidden", &dxpuv1.LeaseSpec{Count: 1, Model: "T4"}, connect.CodeInvalidArgument, "exceeds the quota of 0"},
		{"priority", &dxpuv1.LeaseSpec{Count: 1, Priority: 11}, connect.CodeInvalidArgument, "spec.priority: 11 is above 10"},
		{"highest priority", &dxpuv1.LeaseSpec{Count: 1, Priority: 10}, 0, ""},
		{"unknown tenant", &dxpuv1.LeaseSpec{Count: 1, Tenant: "b"}, connect.CodeNotFound, `tenant "b" does not exist`},
		{"the default tenant", &dxpuv1.LeaseSpec{Count: 5, Tenant: "default"}, 0, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 8))
			if _, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1, Tenant: "b"}); err != nil {
				t.Fatalf("before any tenant is defined: %v", err)
			}
			w.putTenant("a", quota)
			if tt.spec.Tenant == "" {
				tt.spec.Tenant = "a"
			}
			_, err := w.tryCreate(tt.spec)
			if tt.code == 0 && err != nil || tt.code != 0 && (connect.CodeOf(err) != tt.code || !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// The quota of the default tenant ends the time in which a pool takes every name, and the
// event says whom that shuts out.
func TestFirstTenantIsTheDefaultOne(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 8))
	w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "b"})
	w.putTenant("default", &dxpuv1.Quota{MaxGpus: 4})
	w.putTenant("default", &dxpuv1.Quota{MaxGpus: 5})
	_, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 5, Tenant: "b"})
	if connect.CodeOf(err) != connect.CodeNotFound || !strings.Contains(err.Error(), `tenant "b" does not exist`) {
		t.Errorf("with a name of its own: %v", err)
	}
	w.create(&dxpuv1.LeaseSpec{Count: 1})
	var said []string
	for line := range strings.Lines(w.events()) {
		if strings.Contains(line, " may have ") {
			said = append(said, strings.TrimSpace(line))
		}
	}
	want := []string{
		"tenant default may have 4 GPUs in any number of leases; tenants that are not set get no new leases from now on: b",
		"tenant default may have 5 GPUs in any number of leases",
	}
	if !slices.Equal(said, want) {
		t.Errorf("events %q, want %q", said, want)
	}
}

// A lease over its tenant's quota waits with that reason and does not hold up others.
func TestQuotaInTheQueue(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 8))
	w.putTenant("a", &dxpuv1.Quota{MaxGpus: 2, MaxLeases: 2})
	w.putTenant("b", nil)
	first := w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: "a"})
	_, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a"})
	wantErr(t, err, connect.CodeResourceExhausted, "Tenant a has 2 of the 2 GPUs that its quota allows")
	waits := w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a", Wait: true, Priority: 50})
	if s := w.explain(waits); !strings.Contains(s, "It is number 1 of 1 in the queue") || !strings.Contains(s, "Tenant a has 2 of the 2 GPUs") {
		t.Errorf("explanation: %s", s)
	}
	_, err = w.tryCreate(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a", Wait: true})
	wantErr(t, err, connect.CodeResourceExhausted, "which is its quota")
	other := w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "b", Wait: true})
	w.settle()
	w.wantLease(other, leaseActive)
	w.wantLease(waits, leasePending)
	w.delete(first, true)
	w.settle()
	w.wantLease(waits, leaseActive)
}

func wantErr(t *testing.T, err error, code connect.Code, text string) {
	t.Helper()
	if err == nil || connect.CodeOf(err) != code || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want %v with %q", err, code, text)
	}
}

// A lease without a model gets one whose quota is not used up.
func TestQuotaByModel(t *testing.T) {
	other := boxNode("b2", 1)
	other.model = "T4"
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 8), other)
	w.putTenant("a", &dxpuv1.Quota{MaxGpusByModel: map[string]uint32{"DX100": 1}})
	for _, want := range []string{"b1/0", "b2/0"} {
		id := w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a"})
		if got := w.lease(id).Bindings[0].GpuId; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	_, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a"})
	wantErr(t, err, connect.CodeResourceExhausted, "Tenant a has 1 of the 1 GPUs of model DX100")
}

// orderOf returns the pending leases in the order of the queue: it takes the first one
// again and again.
func orderOf(t *tx) (out []string) {
	type waiting struct {
		queueKey
		tenant string
		ask
	}
	var rest []waiting
	has := map[string]map[string]milliGPU{} // by tenant and model
	for _, l := range t.leases.rows {
		if l.State == leasePending {
			rest = append(rest, waiting{queueKey{l.spec.Priority, l.CreateTime.UnixNano(), l.ID}, l.spec.Tenant, ask{sizeOf(l.spec), l.spec.Model}})
			u := t.usageOf(l.spec.Tenant)
			has[l.spec.Tenant] = map[string]milliGPU{anyModel: u.gpus}
			maps.Copy(has[l.spec.Tenant], u.byModel)
		}
	}
	share := func(tenant string) float64 {
		v, _ := t.poolSizes().dominant(has[tenant][anyModel], has[tenant], t.weight(tenant))
		return v
	}
	for len(rest) > 0 {
		first := slices.MinFunc(rest, func(a, b waiting) int {
			return t.compareQueued(a.queueKey, share(a.tenant), b.queueKey, share(b.tenant))
		})
		out = append(out, first.id)
		if has[first.tenant][anyModel] += first.gpus; first.model != anyModel {
			has[first.tenant][first.model] += first.gpus
		}
		rest = slices.DeleteFunc(rest, func(o waiting) bool { return o == first })
	}
	return out
}

// Positions are those of the order that follows from taking the first one again and
// again, for any queue.
func TestQueuePositions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rare := boxNode("b2", 1)
		rare.model = "rare"
		w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 2), rare)
		for _, id := range []string{"a", "b", "c"} {
			w.putTenant(id, &dxpuv1.Quota{Weight: rapid.Uint32Range(0, 3).Draw(t, "weight")})
		}
		w.create(&dxpuv1.LeaseSpec{Count: 1, Model: "rare", Tenant: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "holder")})
		w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: rapid.SampledFrom([]string{"a", "b"}).Draw(t, "holder")})
		for range rapid.IntRange(1, 12).Draw(t, "leases") {
			w.create(&dxpuv1.LeaseSpec{
				Count: rapid.Uint32Range(1, 8).Draw(t, "count"), Wait: true, Tenant: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant"),
				Priority: rapid.Int32Range(-1, 1).Draw(t, "priority"), Model: rapid.SampledFrom([]string{"", "rare", "DX100"}).Draw(t, "model"),
			})
			w.clock.pass(time.Duration(rapid.IntRange(0, 200).Draw(t, "s")) * time.Second)
		}
		_ = w.m.view(func(t *tx) error {
			for i, id := range orderOf(t) {
				if p, all := t.queuePosition(id), t.allPositions()[id]; int(p) != i+1 || p != all {
					w.t.Fatalf("lease %s is at %d, in a list at %d, want %d", id, p, all, i+1)
				}
			}
			return nil
		})
	})
}

// A page of a list asks for many positions: the work is that of one order, whatever the
// number of leases on the page.
func TestPageOfPositions(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1))
	for i := range 100 {
		w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true, Tenant: fmt.Sprint("t", i%50)})
	}
	_ = w.m.view(func(t *tx) error {
		for _, id := range orderOf(t) {
			t.queuePosition(id)
		}
		if len(t.positions) != 100 {
			w.t.Fatalf("%d positions are known, want 100", len(t.positions))
		}
		return nil
	})
	res, err := w.api().ListLeases(operatorContext(), connect.NewRequest(&dxpuv1.ListLeasesRequest{PageSize: 100}))
	if err != nil || len(res.Msg.Leases) != 100 {
		t.Fatal(err)
	}
	seen := map[uint32]bool{}
	for _, l := range res.Msg.Leases {
		seen[l.QueuePosition] = true
	}
	if len(seen) != 100 || seen[0] {
		t.Errorf("positions %v", seen)
	}
}

// BenchmarkQueuePosition measures the position of a lease in a queue of 3,000 leases of
// one tenant, and of 1,000 tenants.
func BenchmarkQueuePosition(b *testing.B) {
	for _, tenants := range []int{1, 1000} {
		b.Run(fmt.Sprint("tenants=", tenants), func(b *testing.B) {
			w := newWorld(b, Config{}, hostNode("h1", 1))
			id := ""
			for i := range 3000 {
				id = w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true, Tenant: fmt.Sprint("t", i%tenants), Priority: int32(i % 3)})
			}
			for b.Loop() {
				_ = w.m.view(func(t *tx) error {
					t.queuePosition(id)
					return nil
				})
			}
		})
		b.Run(fmt.Sprint("all/tenants=", tenants), func(b *testing.B) {
			w := newWorld(b, Config{}, hostNode("h1", 1))
			for i := range 3000 {
				w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true, Tenant: fmt.Sprint("t", i%tenants), Priority: int32(i % 3)})
			}
			for b.Loop() {
				_ = w.m.view(func(t *tx) error {
					t.allPositions()
					return nil
				})
			}
		})
	}
}

// Within a priority the tenant with the fewest GPUs comes first, until leases have aged.
func TestQueueIsFair(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 16), boxNode("b1", 4))
	for _, id := range []string{"a", "b", "c"} {
		w.putTenant(id, nil)
	}
	held := []string{w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: "a"}), w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: "b"})}
	wait := func(tenant string, priority int32) string {
		return w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: tenant, Wait: true, Priority: priority})
	}
	a1, a2, b1, c1, c2, c3, top := wait("a", 0), wait("a", 0), wait("b", 0), wait("c", 0), wait("c", 0), wait("c", 0), wait("a", 1)
	order := []string{top, c1, c2, b1, c3, a1, a2} // of c and b, both with two then, b's is older
	var got []string
	_ = w.m.view(func(t *tx) error {
		got = orderOf(t)
		return nil
	})
	if !slices.Equal(got, order) {
		t.Errorf("order %v, want %v", got, order)
	}
	for i, id := range order {
		if p := w.lease(id).QueuePosition; int(p) != i+1 {
			t.Errorf("lease %s is at %d, want %d", id, p, i+1)
		}
	}
	w.clock.pass(agingTime) // from now on the oldest come first
	for i, id := range []string{top, a1, a2, b1, c1, c2, c3} {
		if p := w.lease(id).QueuePosition; int(p) != i+1 {
			t.Errorf("after %v lease %s is at %d, want %d", agingTime, id, p, i+1)
		}
	}
	w.clock.pass(-agingTime)
	for _, id := range held {
		w.delete(id, true)
	}
	w.settle()
	active := 0
	for _, id := range order {
		if w.lease(id).State == leaseActive {
			active++
		}
	}
	if active != 4 {
		t.Errorf("%d leases are active, want 4", active)
	}
	w.wantLease(top, leaseActive)
}

func mask(paths ...string) *fieldmaskpb.FieldMask { return &fieldmaskpb.FieldMask{Paths: paths} }

func TestTenantAPI(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 4))
	ctx := context.Background()
	put := func(tn *dxpuv1.Tenant) (*dxpuv1.Tenant, error) {
		res, err := w.api().PutTenant(ctx, connect.NewRequest(&dxpuv1.PutTenantRequest{Tenant: tn}))
		if err != nil {
			return nil, err
		}
		return res.Msg.Tenant, nil
	}
	remove := func(id string, version uint64) error {
		_, err := w.api().DeleteTenant(ctx, connect.NewRequest(&dxpuv1.DeleteTenantRequest{TenantId: id, ResourceVersion: version}))
		return err
	}
	for _, tt := range []struct {
		tenant *dxpuv1.Tenant
		want   string
	}{
		{nil, "tenant: must be set"},
		{&dxpuv1.Tenant{Id: "A"}, "tenant.id"},
		{&dxpuv1.Tenant{Id: "a", Quota: &dxpuv1.Quota{MaxPriority: proto.Int32(101)}}, "tenant.quota.max_priority"},
		{&dxpuv1.Tenant{Id: "a", Quota: &dxpuv1.Quota{MaxGpusByModel: map[string]uint32{"": 1}}}, "tenant.quota.max_gpus_by_model"},
	} {
		_, err := put(tt.tenant)
		wantErr(t, err, connect.CodeInvalidArgument, tt.want)
	}
	a, err := put(&dxpuv1.Tenant{Id: "a", Description: "first"})
	if err == nil {
		_, err = put(&dxpuv1.Tenant{Id: "q", Description: "limited", Quota: &dxpuv1.Quota{MaxGpus: 3}})
	}
	for _, tt := range []struct {
		req         *dxpuv1.PutTenantRequest
		description string
		gpus        uint32
	}{ // a field that a call leaves out keeps its value, unless the mask names it
		{&dxpuv1.PutTenantRequest{Tenant: &dxpuv1.Tenant{Id: "q", Description: "renamed"}}, "renamed", 3},
		{&dxpuv1.PutTenantRequest{Tenant: &dxpuv1.Tenant{Id: "q", Quota: &dxpuv1.Quota{MaxGpus: 5}}}, "renamed", 5},
		{&dxpuv1.PutTenantRequest{Tenant: &dxpuv1.Tenant{Id: "q", Description: "x", Quota: &dxpuv1.Quota{MaxGpus: 6}}, UpdateMask: mask("quota")}, "renamed", 6},
		{&dxpuv1.PutTenantRequest{Tenant: &dxpuv1.Tenant{Id: "q"}, UpdateMask: mask("description")}, "", 6},
		{&dxpuv1.PutTenantRequest{Tenant: &dxpuv1.Tenant{Id: "q"}, UpdateMask: mask("description", "quota")}, "", 0},
	} {
		res, err := w.api().PutTenant(ctx, connect.NewRequest(tt.req))
		if err != nil || res.Msg.Tenant.Description != tt.description || res.Msg.Tenant.Quota.MaxGpus != tt.gpus {
			t.Errorf("%v: %v, %v", tt.req, res, err)
		}
	}
	_, badMask := w.api().PutTenant(ctx, connect.NewRequest(&dxpuv1.PutTenantRequest{Tenant: &dxpuv1.Tenant{Id: "q"}, UpdateMask: mask("gpus")}))
	wantErr(t, badMask, connect.CodeInvalidArgument, `update_mask: "gpus" is not description or quota`)
	if err := remove("q", 0); err != nil {
		t.Error(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err = put(&dxpuv1.Tenant{Id: "a", Description: "second"}); err != nil {
		t.Fatal(err)
	}
	_, err = put(a)
	wantErr(t, err, connect.CodeAborted, "read it again")
	wantErr(t, remove("a", a.ResourceVersion), connect.CodeAborted, "read it again")
	wantErr(t, remove("nobody", 0), connect.CodeNotFound, "nobody")
	wantErr(t, remove("default", 0), connect.CodeFailedPrecondition, "always exists")
	id := w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: "a"})
	wantErr(t, remove("a", 0), connect.CodeFailedPrecondition, "has 1 lease; delete")
	res, err := w.api().ListTenants(ctx, connect.NewRequest(&dxpuv1.ListTenantsRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, tn := range res.Msg.Tenants {
		got = append(got, tn.Id)
	}
	if !slices.Equal(got, []string{"a", "default"}) || res.Msg.Tenants[0].Gpus != 2 || res.Msg.Tenants[0].Leases != 1 {
		t.Errorf("tenants: %v", res.Msg.Tenants)
	}
	w.settle()
	w.delete(id, true)
	w.settle()
	if err := remove("a", 0); err != nil {
		t.Error(err)
	}
	if _, err := w.api().GetTenant(ctx, connect.NewRequest(&dxpuv1.GetTenantRequest{TenantId: "a"})); connect.CodeOf(err) != connect.CodeNotFound {
		t.Errorf("GetTenant after its end: %v", err)
	}
}
