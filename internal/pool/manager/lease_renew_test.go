package manager

import (
	"context"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func (w *world) renew(id string) error {
	_, err := w.api().RenewLease(context.Background(), connect.NewRequest(&dxpuv1.RenewLeaseRequest{LeaseId: id}))
	return err
}

// TestLeaseWithoutRenewalEnds has a lease that is renewed for a while, and one that waits in
// the queue and is not.
func TestLeaseWithoutRenewalEnds(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 2), boxNode("b1", 1))
	ttl := durationpb.New(20 * time.Second)
	id := w.create(&dxpuv1.LeaseSpec{Count: 1, Ttl: ttl})
	queued := w.create(&dxpuv1.LeaseSpec{Count: 1, Ttl: ttl, Wait: true})
	for range 3 {
		w.passReporting(15 * time.Second)
		w.wantLease(id, leaseActive)
		if err := w.renew(id); err != nil {
			t.Fatal(err)
		}
	}
	w.wantLease(queued, leaseReleased)
	if err := w.renew(queued); connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "was not renewed") {
		t.Errorf("a lease that has ended: %v", err)
	}
	w.passReporting(19 * time.Second)
	w.wantLease(id, leaseActive)
	w.passReporting(2 * time.Second)
	w.wantLease(id, leaseReleased)
	forever := w.create(&dxpuv1.LeaseSpec{Count: 1})
	if err := w.renew(forever); connect.CodeOf(err) != connect.CodeFailedPrecondition {
		t.Errorf("a lease without a time to live: %v", err)
	}
	w.passReporting(time.Minute)
	w.wantLease(forever, leaseActive)
}

// TestRenewalSurvivesAFailover has a manager that begins to lead long after the last
// renewal: the lease has its whole time again, whatever the clock says.
func TestRenewalSurvivesAFailover(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 2), boxNode("b1", 1))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1, Ttl: durationpb.New(20 * time.Second)})
	w.settle()
	w.clock.pass(time.Hour)
	w.restoredPool(store.records)
	w.settle()
	w.passReporting(19 * time.Second)
	w.wantLease(id, leaseActive)
	w.passReporting(2 * time.Second)
	w.wantLease(id, leaseReleased)
}

// TestStallIsNoMissedRenewal suspends the manager for longer than the time to live.
func TestStallIsNoMissedRenewal(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 2), boxNode("b1", 1))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1, Ttl: durationpb.New(20 * time.Second)})
	w.settle()
	w.m.mu.Lock()
	w.m.awake = w.clock.now()
	w.m.mu.Unlock()
	w.clock.pass(time.Minute)
	w.m.mu.Lock()
	w.m.excuseNodesLocked()
	w.m.awake = time.Time{} // the clock below jumps
	w.m.mu.Unlock()
	w.settle()
	w.wantLease(id, leaseActive)
	w.passReporting(21 * time.Second)
	w.wantLease(id, leaseReleased)
}

// TestRenewalsAreForgotten creates and deletes leases: the manager does not remember them all.
func TestRenewalsAreForgotten(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 2), boxNode("b1", 1))
	for range 100 {
		id := w.create(&dxpuv1.LeaseSpec{Count: 1, Ttl: durationpb.New(time.Minute)})
		w.settle()
		w.delete(id, true)
		w.settle()
	}
	if n := len(w.m.state.holders.at); n > 40 {
		t.Errorf("%d renewals are kept", n)
	}
}
