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
)

// of returns a spec for a tenant.
func of(tenant string, s *dxpuv1.LeaseSpec) *dxpuv1.LeaseSpec {
	s.Tenant = tenant
	return s
}

// TestReservationAtTheQuota has a tenant that uses its quota until a minute before: it can
// reserve the time after it, and the promise can move.
func TestReservationAtTheQuota(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 1), boxNode("b2", 1), boxNode("b3", 1))
	w.putTenant("a", &dxpuv1.Quota{MaxGpus: 1})
	w.create(of("a", &dxpuv1.LeaseSpec{Count: 1, ExpiresAfter: durationpb.New(time.Hour)}))
	w.settle()
	id := w.create(of("a", w.later(1, 2*time.Hour, time.Hour)))
	w.settle()
	first := w.promised(id)
	if err := w.m.update(context.Background(), func(t *tx) error { return t.cordon(atBox(first[:2]), 0, &cordon{}) }); err != nil {
		t.Fatal(err)
	}
	w.passReporting(promiseCheck + time.Second)
	if got := w.promised(id); got == first || got == "" {
		t.Errorf("%s is promised, and is cordoned: %v", got, w.lease(id).Reservation)
	}
}

// TestReservationsWithinTheQuotaByModel has promises of any model: together they are within
// the tenant's quota of that model.
func TestReservationsWithinTheQuotaByModel(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 4))
	w.putTenant("a", &dxpuv1.Quota{MaxGpusByModel: map[string]uint32{"DX100": 2}})
	w.create(of("a", w.later(1, time.Hour, time.Hour)))
	w.create(of("a", w.later(1, time.Hour, time.Hour)))
	_, err := w.tryCreate(of("a", w.later(1, time.Hour, time.Hour)))
	wantErr(t, err, connect.CodeResourceExhausted, "quota")
}

// TestReservationsWithinTheGuarantee: guarantees bound the promises to leases
// that are not preemptible, as it bounds those leases.
func TestReservationsWithinTheGuarantee(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 4))
	guaranteed := uint32(1)
	w.putTenant("a", &dxpuv1.Quota{GuaranteedGpus: &guaranteed})
	w.create(of("a", w.later(1, time.Hour, time.Hour)))
	_, err := w.tryCreate(of("a", w.later(1, time.Hour, time.Hour)))
	wantErr(t, err, connect.CodeResourceExhausted, "guaranteed")
	s := of("a", w.later(1, time.Hour, time.Hour))
	s.Preemptible = true
	w.create(s)
}

// TestPromiseBeyondTheQuota has a tenant that uses its quota when its reservation begins: the
// promised GPU does not stay idle.
func TestPromiseBeyondTheQuota(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 2))
	w.putTenant("a", &dxpuv1.Quota{MaxGpus: 1})
	id := w.create(of("a", w.later(1, 2*time.Minute, 24*time.Hour)))
	uses := w.create(of("a", &dxpuv1.LeaseSpec{Count: 1}))
	waits := w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true})
	w.passReporting(3 * time.Minute)
	w.wantLease(uses, leaseActive)
	w.wantLease(id, leasePending)
	w.wantLease(waits, leasePending)
	w.passReporting(promiseGrace)
	w.wantLease(waits, leaseActive)
	if l := w.wantLease(id, leasePending); l.Reservation != nil || l.QueuePosition != 1 || !strings.Contains(w.explain(id), "quota") {
		t.Errorf("%v is promised, position %d: %s", l.Reservation, l.QueuePosition, w.explain(id))
	}
	w.delete(uses, true)
	w.passReporting(time.Minute)
	w.wantLease(id, leaseActive)
	w.checkIndex(t)
}

// TestReservationsInPages lists reservations one by one.
func TestReservationsInPages(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 3))
	for range 3 {
		w.create(w.later(1, time.Hour, time.Hour))
	}
	seen := map[string]bool{}
	req := &dxpuv1.ListLeasesRequest{Reserved: true, PageSize: 1}
	for range 5 {
		res, err := w.api().ListLeases(operatorContext(), connect.NewRequest(req))
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range res.Msg.Leases {
			if seen[l.Id] {
				t.Errorf("%s is listed twice", l.Id)
			}
			seen[l.Id] = true
		}
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			break
		}
	}
	if len(seen) != 3 {
		t.Errorf("%d listed", len(seen))
	}
}

// TestFailoverAfterTheBeginning has another manager that begins to lead while a lease whose
// time has begun waits for its quota.
func TestFailoverAfterTheBeginning(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 4), boxNode("b1", 2))
	w.putTenant("a", &dxpuv1.Quota{MaxGpus: 1})
	id := w.create(of("a", w.later(1, 2*time.Minute, time.Hour)))
	uses := w.create(of("a", &dxpuv1.LeaseSpec{Count: 1}))
	w.passReporting(2*time.Minute + 5*time.Second)
	w.restoredPool(store.records)
	w.settle()
	if _, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1}); err == nil {
		t.Error("the promised GPU is given to another lease")
	}
	w.delete(uses, true)
	w.passReporting(10 * time.Second)
	w.wantLease(id, leaseActive)
	w.passReporting(time.Hour)
	w.wantLease(id, leaseReleased)
}

// borrows returns a spec of a tenant that may borrow GPUs.
func borrows(tenant string, s *dxpuv1.LeaseSpec) *dxpuv1.LeaseSpec {
	s.Tenant, s.Preemptible = tenant, true
	return s
}

// TestPromiseYieldsToAGuarantee has a promise of all GPUs to a tenant that borrows them: the
// other one gets those of its guarantee, at once, from the queue and by growing, and keeps
// them when the promised time begins. It borrows nothing that is promised.
func TestPromiseYieldsToAGuarantee(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 4))
	w.putTenant("a", guaranteed(3, 0))
	w.putTenant("b", guaranteed(1, 0))
	w.putTenant("none", nil)
	id := w.create(borrows("b", w.later(4, 3*time.Minute, time.Hour)))
	for _, s := range []*dxpuv1.LeaseSpec{{Count: 1, Tenant: "none"}, borrows("a", &dxpuv1.LeaseSpec{Count: 4}), borrows("b", &dxpuv1.LeaseSpec{Count: 1})} {
		_, err := w.tryCreate(s)
		wantErr(t, err, connect.CodeResourceExhausted, "promised to leases that begin later")
	}
	first := w.create(of("a", &dxpuv1.LeaseSpec{Count: 1}))
	waits := w.create(of("a", &dxpuv1.LeaseSpec{Count: 1, Wait: true}))
	grows := w.create(borrows("a", &dxpuv1.LeaseSpec{Count: 1}))
	w.settle()
	wantErr(t, w.resize(grows, 2, 0), connect.CodeResourceExhausted, "cannot grow by 1 GPU now")
	w.delete(first, true)
	w.settle()
	if err := w.resize(grows, 2, 0); err != nil {
		t.Error(err)
	}
	w.passReporting(promiseCheck + time.Second)
	if r := w.lease(id).Reservation; !strings.Contains(r.GetObstacle(), "went to tenant a within its guarantee") {
		t.Errorf("its promise: %v", r)
	}
	w.passReporting(4 * time.Minute)
	w.wantLease(waits, leaseActive)
	w.wantLease(id, leasePending)
	if l := w.wantLease(grows, leaseActive); l.Spec.Count != 2 {
		t.Errorf("it has %d GPUs", l.Spec.Count)
	}
	w.delete(waits, true)
	w.delete(grows, true)
	w.passReporting(time.Minute)
	w.wantLease(id, leaseActive)
	w.checkIndex(t)
}

// TestPromiseWithinTheGuaranteeIsKept has promises that their tenant's guarantee covers: they
// yield to no other lease, and the newest is the first that it does not cover.
func TestPromiseWithinTheGuaranteeIsKept(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 4))
	w.putTenant("a", guaranteed(3, 0))
	w.putTenant("b", guaranteed(2, 0))
	w.create(borrows("b", &dxpuv1.LeaseSpec{Count: 1, ExpiresAfter: durationpb.New(time.Minute)})) // is over by then
	w.settle()
	for _, s := range []*dxpuv1.LeaseSpec{of("b", w.later(1, 3*time.Minute, time.Hour)), borrows("b", w.later(1, 3*time.Minute, time.Hour)), borrows("b", w.later(2, 3*time.Minute, time.Hour))} {
		w.create(s)
	}
	_, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1})
	wantErr(t, err, connect.CodeResourceExhausted, "promised to leases that begin later")
	w.passReporting(2 * time.Minute)
	_, err = w.tryCreate(of("a", &dxpuv1.LeaseSpec{Count: 3}))
	wantErr(t, err, connect.CodeResourceExhausted, "promised to leases that begin later")
	w.create(of("a", &dxpuv1.LeaseSpec{Count: 2}))
}

// TestPromiseMovesFromAGuarantee has a promise that yields to one within a guarantee, and
// moves to other GPUs when there are some.
func TestPromiseMovesFromAGuarantee(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 1), boxNode("b2", 1))
	w.putTenant("a", guaranteed(1, 0))
	w.putTenant("b", guaranteed(0, 0))
	busy := w.create(&dxpuv1.LeaseSpec{Count: 1, GpuIds: []string{"b2/0"}})
	borrowed := w.create(borrows("b", w.later(1, 3*time.Minute, time.Hour)))
	own := w.create(of("a", w.later(1, 3*time.Minute, time.Hour)))
	if w.promised(borrowed) != "b1/0" || w.promised(own) != "b1/0" {
		t.Fatalf("%s and %s are promised", w.promised(borrowed), w.promised(own))
	}
	w.passReporting(promiseCheck + time.Second)
	if r := w.lease(borrowed).Reservation; !strings.Contains(r.GetObstacle(), "of tenant a has the same promise within its guarantee") {
		t.Errorf("its promise: %v", r)
	}
	_, err := w.tryCreate(borrows("b", w.later(1, 3*time.Minute, time.Hour)))
	wantErr(t, err, connect.CodeResourceExhausted, "no capacity")
	w.delete(busy, true)
	w.passReporting(promiseCheck + time.Second)
	if r := w.lease(borrowed).Reservation; w.promised(borrowed) != "b2/0" || w.promised(own) != "b1/0" || r.GetObstacle() != "" {
		t.Errorf("%v and %s are promised", r, w.promised(own))
	}
}

// A lease of the queue gets what is promised to another tenant as soon as that tenant would
// borrow it, because it has got other GPUs.
func TestPromiseThatComesToBeBorrowed(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 16), boxNode("b1", 5))
	for id, n := range map[string]uint32{"a": 2, "b": 4} {
		q := guaranteed(n, 0)
		q.MaxPriority = proto.Int32(2)
		w.putTenant(id, q)
	}
	later := w.later(2, time.Hour, time.Hour)
	later.Tenant, later.Preemptible = "a", true
	w.create(later)
	waits := w.create(&dxpuv1.LeaseSpec{Count: 4, Tenant: "b", Wait: true})
	w.settle()
	w.wantLease(waits, leasePending)
	w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a", Priority: 1})
	w.settle()
	w.wantLease(waits, leaseActive)
}
