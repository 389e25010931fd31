package manager_test

import (
	"context"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// watchLeases opens a watch. next returns the next message with a lease.
func (s *service) watchLeases(t *testing.T, req *dxpuv1.WatchLeasesRequest) (next func() *dxpuv1.WatchLeasesResponse) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	stream, err := s.pool.WatchLeases(ctx, connect.NewRequest(req))
	if err != nil {
		t.Fatal(err)
	}
	return func() *dxpuv1.WatchLeasesResponse {
		for stream.Receive() {
			if stream.Msg().Lease != nil {
				return stream.Msg()
			}
		}
		t.Fatalf("the watch ended: %v", stream.Err())
		return nil
	}
}

// A caller that has seen a later revision than the pool has learns it: it would wait for changes
// that it takes for known.
func TestWatchLeasesOfALaterRevision(t *testing.T) {
	s := populated(t)
	list, err := s.pool.ListLeases(t.Context(), connect.NewRequest(&dxpuv1.ListLeasesRequest{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []uint64{list.Msg.Revision + 1000, 1 << 40} { // 1 << 40: of another incarnation
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		stream, err := s.pool.WatchLeases(ctx, connect.NewRequest(&dxpuv1.WatchLeasesRequest{AfterRevision: at}))
		if err == nil {
			if stream.Receive() {
				t.Fatalf("a watch from revision %d of %d is open", at, list.Msg.Revision)
			}
			err = stream.Err()
		}
		wantCode(t, err, connect.CodeOutOfRange, "was it restored from a backup?")
	}
}

// A watch from the revision of a list shows every later change, and a new watch begins
// with all leases.
func TestWatchLeases(t *testing.T) {
	s := populated(t)
	list, err := s.pool.ListLeases(t.Context(), connect.NewRequest(&dxpuv1.ListLeasesRequest{}))
	if err != nil || list.Msg.Revision == 0 {
		t.Fatalf("the list has revision %d: %v", list.Msg.GetRevision(), err)
	}
	create := func(tenant string) string {
		res, err := s.pool.CreateLease(t.Context(), connect.NewRequest(&dxpuv1.CreateLeaseRequest{Spec: &dxpuv1.LeaseSpec{Count: 1, Tenant: tenant}}))
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg.Lease.Id
	}
	remove := func(id string) {
		if _, err := s.pool.DeleteLease(t.Context(), connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: id})); err != nil {
			t.Fatal(err)
		}
	}
	a := create("a")
	next := s.watchLeases(t, &dxpuv1.WatchLeasesRequest{AfterRevision: list.Msg.Revision})
	got := next()
	if got.Lease.Id != a || got.Lease.State != dxpuv1.LeaseState_LEASE_STATE_BINDING || got.Revision <= list.Msg.Revision {
		t.Errorf("the first change: %v, want that of %s", got, a)
	}
	remove(a)
	for got = next(); got.Lease.State == dxpuv1.LeaseState_LEASE_STATE_BINDING; got = next() {
	}
	if got.Lease.Id != a || got.Lease.State != dxpuv1.LeaseState_LEASE_STATE_RELEASING {
		t.Errorf("after the deletion: %v", got)
	}

	b := create("b")
	of := s.watchLeases(t, &dxpuv1.WatchLeasesRequest{Tenant: "b"})
	if got := of(); got.Lease.Id != b || got.Revision == 0 {
		t.Errorf("the leases of tenant b: %v", got)
	}
	create("c")
	remove(b)
	if got := of(); got.Lease.Id != b || got.Lease.State != dxpuv1.LeaseState_LEASE_STATE_RELEASING {
		t.Errorf("the leases of tenant b after a change of others: %v", got)
	}
}
