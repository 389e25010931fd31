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

// TestReservationOfAnotherModel has quotas by model: a reservation that names none gets GPUs of
// a model that the quota admits, and what its tenant has now does not count.
func TestReservationOfAnotherModel(t *testing.T) {
	for _, none := range []string{"DX100", "T4"} {
		other := boxNode("b2", 1)
		other.model = "T4"
		w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 1), other)
		w.putTenant("a", &dxpuv1.Quota{MaxGpusByModel: map[string]uint32{none: 0}})
		s := w.later(1, time.Hour, time.Hour)
		s.Tenant = "a"
		if got, want := w.promised(w.create(s)), map[string]string{"DX100": "b2/0", "T4": "b1/0"}[none]; got != want {
			t.Errorf("with no %s: %s is promised, want %s", none, got, want)
		}
		_, err := w.tryCreate(s)
		wantErr(t, err, connect.CodeResourceExhausted, "With it 1 GPU of model "+none+" would be promised to tenant a, whose quota is 0.")
	}
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 2))
	w.putTenant("a", &dxpuv1.Quota{MaxGpusByModel: map[string]uint32{"DX100": 1}})
	w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a"})
	w.settle()
	s := w.later(1, time.Hour, time.Hour)
	s.Tenant = "a"
	res, err := w.api().ExplainLease(context.Background(), connect.NewRequest(&dxpuv1.ExplainLeaseRequest{What: &dxpuv1.ExplainLeaseRequest_Spec{Spec: s}}))
	if err != nil || !res.Msg.Satisfied {
		t.Errorf("explained as %v: %v", res, err)
	}
	w.create(s)
}

// TestReservationAfterMaintenance reserves GPUs of a box and a host in maintenance that is over
// by then.
func TestReservationAfterMaintenance(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
	onHost := planRequest(w, "b1", 0, 10*time.Minute)
	onHost.Maintenance.Target = &dxpuv1.Maintenance_HostId{HostId: "h1"}
	for _, r := range []*dxpuv1.PlanMaintenanceRequest{planRequest(w, "b1", 0, 10*time.Minute), onHost} {
		if _, err := w.api().PlanMaintenance(context.Background(), connect.NewRequest(r)); err != nil {
			t.Fatal(err)
		}
	}
	w.settle()
	_, err := w.tryCreate(w.later(1, 9*time.Minute, time.Hour))
	wantErr(t, err, connect.CodeResourceExhausted, "no capacity for this lease from")
	id := w.create(w.later(1, 10*time.Minute, time.Hour))
	waits := w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true})
	w.passReporting(10*time.Minute + 2*time.Second)
	w.wantLease(id, leaseActive)
	w.wantLease(waits, leasePending)
}

// TestPromiseMovesFromWhatDoesNotFit has a slot that fails, and a taint and a label that change
// after the promise: it moves.
func TestPromiseMovesFromWhatDoesNotFit(t *testing.T) {
	for name, change := range map[string]func(w *world, box, host string){
		"slot": func(w *world, _, host string) { w.nodes[host].dead[0] = true },
		"taint": func(w *world, box, _ string) {
			taint := &dxpuv1.Taint{Key: "team", Value: "ml", Effect: dxpuv1.TaintEffect_TAINT_EFFECT_NO_SCHEDULE}
			if _, err := w.api().SetTaints(context.Background(), connect.NewRequest(&dxpuv1.SetTaintsRequest{Target: atBox(box), Set: []*dxpuv1.Taint{taint}})); err != nil {
				t.Fatal(err)
			}
		},
		"label": func(w *world, box, _ string) { w.nodes[box].labels = nil },
	} {
		boxes := []*fakeNode{boxNode("b1", 1), boxNode("b2", 1)}
		for _, b := range boxes {
			b.labels = map[string]string{"site": "x"}
		}
		w := newWorld(t, Config{}, hostNode("h1", 1), hostNode("h2", 1), boxes[0], boxes[1])
		s := w.later(1, 3*time.Minute, time.Minute)
		s.BoxLabels = map[string]string{"site": "x"}
		id := w.create(s)
		w.passReporting(promiseCheck)
		before := w.lease(id).Reservation
		change(w, before.GpuIds[0][:2], before.HostId)
		w.passReporting(promiseCheck + time.Second)
		if r := w.lease(id).Reservation; r.Obstacle != "" || r.HostId == before.HostId && r.GpuIds[0] == before.GpuIds[0] {
			t.Errorf("%s: %v was promised, now %v", name, before, r)
		}
		w.passReporting(2*time.Minute + 5*time.Second)
		w.wantLease(id, leaseActive)
	}
}

// TestMovedPromiseLeavesTheRest has a lease that waits for one of the GPUs of a promise that
// moves because of another one.
func TestMovedPromiseLeavesTheRest(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 2), boxNode("b2", 2))
	s := w.later(2, 10*time.Minute, time.Minute)
	s.SameBox = required
	id := w.create(s)
	box := w.promised(id)[:2]
	waits := w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true, GpuIds: []string{box + "/1"}})
	w.passReporting(promiseCheck)
	w.wantLease(waits, leasePending)
	if err := w.m.update(context.Background(), func(t *tx) error { return t.cordon(atGPU(box+"/0"), 0, &cordon{}) }); err != nil {
		t.Fatal(err)
	}
	w.passReporting(promiseCheck + time.Second)
	if got := w.promised(id); strings.Contains(got, box) {
		t.Errorf("%s is promised", got)
	}
	w.wantLease(waits, leaseActive)
}

// TestEqualReservationsBegin has two equal reservations, one of which cannot have its GPU: the
// other one does not wait for it.
func TestEqualReservationsBegin(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 2), boxNode("b1", 1), boxNode("b2", 1))
	s := w.later(1, 3*time.Minute, time.Hour)
	first, second := w.create(s), w.create(s)
	w.passReporting(3*time.Minute - time.Second)
	w.nodes[w.promised(first)[:2]].dead[0] = true
	w.passReporting(3 * time.Second)
	w.wantLease(first, leasePending)
	w.wantLease(second, leaseActive)
}

// TestReservationOfWhatIsReleased reserves a GPU that is being released, and the slot of one
// that broke whose lease ends before.
func TestReservationOfWhatIsReleased(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	w.delete(id, true)
	w.wantLease(id, leaseReleasing)
	_, err := w.tryCreate(w.later(1, 59*time.Second, time.Hour))
	wantErr(t, err, connect.CodeResourceExhausted, "no capacity for this lease from")
	w.create(w.later(1, 2*time.Minute, time.Hour))

	w = newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1), boxNode("b2", 1))
	broken := w.create(&dxpuv1.LeaseSpec{Count: 1, GpuIds: []string{"b1/0"}, ExpiresAfter: durationpb.New(5 * time.Minute)})
	w.settle()
	w.nodes["b1"].dead[0] = true
	w.settle()
	w.wantLease(broken, leaseDegraded)
	after := w.create(w.later(1, 10*time.Minute, time.Hour))
	w.passReporting(10*time.Minute + 2*time.Second)
	w.wantLease(after, leaseActive)
}

// TestReservationBesideTheFirstOfTheQueue reserves, by its name, each GPU of which the lease
// that is first in the queue needs some but not all.
func TestReservationBesideTheFirstOfTheQueue(t *testing.T) {
	for _, gpu := range []string{"b1/0", "b1/1", "b1/2", "b1/3"} {
		w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 4))
		ends := w.create(&dxpuv1.LeaseSpec{Count: 3, ExpiresAfter: durationpb.New(10 * time.Minute)})
		first := w.create(&dxpuv1.LeaseSpec{Count: 3, Priority: 1, Wait: true})
		w.settle()
		s := w.later(1, time.Hour, time.Hour)
		s.GpuIds = []string{gpu}
		w.create(s)
		_, err := w.tryCreate(w.later(1, time.Hour, time.Hour))
		wantErr(t, err, connect.CodeResourceExhausted, "is first in the queue and needs 3")
		w.passReporting(11 * time.Minute)
		w.wantLease(ends, leaseReleased)
		w.wantLease(first, leaseActive)
	}
}

// TestHeldIsGatheredAgain has a lease of higher priority take what is held: the reason for
// others counts what is left.
func TestHeldIsGatheredAgain(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 3))
	w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	w.create(&dxpuv1.LeaseSpec{Count: 3, Priority: 1, Wait: true})
	_, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1})
	wantErr(t, err, connect.CodeResourceExhausted, "2 free GPUs and 3 host slots are held")
	w.create(&dxpuv1.LeaseSpec{Count: 1, Priority: 2})
	_, err = w.tryCreate(&dxpuv1.LeaseSpec{Count: 1})
	wantErr(t, err, connect.CodeResourceExhausted, "1 free GPU and 3 host slots are held")
}

// TestQuotaIsFreeAgainWithoutAGPU has a lease end whose GPU cannot be used: others of its tenant
// that waited for the quota get their turn.
func TestQuotaIsFreeAgainWithoutAGPU(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 2), boxNode("b1", 1), boxNode("b2", 1))
	w.putTenant("a", &dxpuv1.Quota{MaxGpus: 1})
	first := w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a", GpuIds: []string{"b1/0"}})
	waits := w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a", Wait: true, HostId: "h1"})
	w.settle()
	if err := w.m.update(context.Background(), func(t *tx) error { return t.cordon(atBox("b1"), 0, &cordon{}) }); err != nil {
		t.Fatal(err)
	}
	w.nodes["h1"].down = true // the lease ends later than the pass that its deletion makes
	w.delete(first, true)
	w.wantLease(first, leaseReleasing)
	w.nodes["h1"].down = false
	w.settle()
	w.wantLease(first, leaseReleased)
	w.wantLease(waits, leaseActive)
}

// TestHeldForNothing has a lease of the queue that the pool cannot satisfy any more, and one that
// another lease goes ahead of: others get what was held.
func TestHeldForNothing(t *testing.T) {
	for name, change := range map[string]func(w *world){
		"host": func(w *world) {
			if err := w.m.update(context.Background(), func(t *tx) error { return t.cordon(atHost("h1"), 0, &cordon{}) }); err != nil {
				t.Fatal(err)
			}
		},
		"GPU": func(w *world) { w.nodes["b1"].dead[0] = true },
		"first": func(w *world) {
			w.create(&dxpuv1.LeaseSpec{Count: 1, Priority: 2, Wait: true, GpuIds: []string{"b1/0"}})
		},
	} {
		w := newWorld(t, Config{}, hostNode("h1", 4), hostNode("h2", 4), boxNode("b1", 3))
		w.create(&dxpuv1.LeaseSpec{Count: 1, GpuIds: []string{"b1/0"}, HostId: "h2"})
		w.settle()
		w.create(&dxpuv1.LeaseSpec{Count: 3, Priority: 1, Wait: true, HostId: "h1"})
		small := w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true, HostId: "h2"})
		w.settle()
		w.wantLease(small, leasePending)
		change(w)
		w.settle()
		if l := w.lease(small); l.State != leaseActive {
			t.Errorf("%s: lease %s is %s", name, small, leaseWord(l.State))
		}
	}
}

// The first of the queue is over when a reservation begins only if it has begun early enough: the
// leases that it waits for end late, or in time.
func TestReservationWaitsForAShortHeadThatBeginsLate(t *testing.T) {
	for ends, want := range map[time.Duration]connect.Code{50 * time.Minute: connect.CodeResourceExhausted, 30 * time.Minute: 0} {
		w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 4))
		w.create(&dxpuv1.LeaseSpec{Count: 2, ExpiresAfter: durationpb.New(ends)})
		w.settle()
		w.create(&dxpuv1.LeaseSpec{Count: 4, Priority: 1, Wait: true, ExpiresAfter: durationpb.New(20 * time.Minute)})
		_, err := w.tryCreate(w.later(2, time.Hour, time.Hour))
		if connect.CodeOf(err) != want && (err != nil || want != 0) {
			t.Errorf("the others end in %v: %v", ends, err)
		}
	}
}

// A reservation does not take the place that the first of the queue will have when it begins late
// and runs into the time of another one.
func TestReservationDoesNotDelayAShortHead(t *testing.T) {
	for at, want := range map[time.Duration]connect.Code{66 * time.Minute: connect.CodeResourceExhausted, 72 * time.Minute: 0} {
		w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 2), boxNode("b2", 2))
		for range 2 {
			w.create(&dxpuv1.LeaseSpec{Count: 2, ExpiresAfter: durationpb.New(50 * time.Minute)})
		}
		w.settle()
		w.create(w.later(2, 65*time.Minute, time.Hour))
		head := w.create(&dxpuv1.LeaseSpec{Count: 2, Priority: 1, Wait: true, ExpiresAfter: durationpb.New(20 * time.Minute)})
		if _, err := w.tryCreate(w.later(2, at, time.Hour)); connect.CodeOf(err) != want && (err != nil || want != 0) {
			t.Errorf("in %v: %v", at, err)
		}
		w.passReporting(51 * time.Minute)
		w.wantLease(head, leaseActive)
	}
}

// GPUs that leases of the queue still release are free by the time of a reservation.
func TestReservationOfWhatPreemptedLeasesRelease(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 4))
	victim := w.create(&dxpuv1.LeaseSpec{Count: 4, Preemptible: true, Wait: true, ExpiresAfter: durationpb.New(10 * time.Minute)})
	w.settle()
	w.delete(w.create(&dxpuv1.LeaseSpec{Count: 4, Priority: 1, Wait: true}), true)
	if l := w.wantLease(victim, leasePending); !strings.Contains(l.String(), "DETACHING") {
		t.Fatalf("lease %v releases nothing", l)
	}
	if _, err := w.tryCreate(w.later(4, time.Hour, time.Hour)); err != nil {
		t.Error(err)
	}
}

// The first of the queue is not over when a reservation begins if it can begin only after another
// reservation, or maintenance, that comes in between.
func TestReservationWaitsForAShortHeadThatAnotherDelays(t *testing.T) {
	between := map[string]func(w *world, in time.Duration){
		"reservation": func(w *world, in time.Duration) { w.create(w.later(2, in, 5*time.Minute)) },
		"maintenance": func(w *world, in time.Duration) {
			if _, err := w.api().PlanMaintenance(t.Context(), connect.NewRequest(planRequest(w, "b1", in, 5*time.Minute))); err != nil {
				t.Fatal(err)
			}
		},
	}
	for what, comes := range between {
		for in, want := range map[time.Duration]connect.Code{40 * time.Minute: connect.CodeResourceExhausted, 45 * time.Minute: 0, 25 * time.Minute: 0} {
			w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 4))
			w.create(&dxpuv1.LeaseSpec{Count: 2, ExpiresAfter: durationpb.New(24 * time.Minute)})
			w.settle()
			comes(w, in)
			w.create(&dxpuv1.LeaseSpec{Count: 4, Priority: 1, Wait: true, ExpiresAfter: durationpb.New(20 * time.Minute)})
			_, err := w.tryCreate(w.later(2, time.Hour, time.Hour))
			if connect.CodeOf(err) != want && (err != nil || want != 0) {
				t.Errorf("%s in %v: %v", what, in, err)
			}
		}
	}
}

// TestReservationOfAGPUWithParts reserves a GPU whose parts have leases that end before, and one
// with a part that does not, as after a mistake: it leaves when the reservation begins.
func TestReservationOfAGPUWithParts(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), hostNode("h2", 4), dividedBox("b1", 1))
	whole := func() *dxpuv1.LeaseSpec {
		s := w.later(1, 10*time.Minute, time.Hour)
		s.HostId = "h2"
		return s
	}
	ends := part(256, 300)
	ends.HostId = "h1"
	ends.ExpiresAfter = durationpb.New(5 * time.Minute)
	w.create(ends)
	w.settle()
	id := w.create(whole())
	w.passReporting(2 * promiseCheck)
	if r := w.lease(id).Reservation; r.GetObstacle() != "" {
		t.Errorf("%v", r)
	}
	w.passReporting(10 * time.Minute)
	w.wantLease(id, leaseActive)

	w = newWorld(t, Config{}, hostNode("h1", 4), hostNode("h2", 4), dividedBox("b1", 1))
	id = w.create(whole())
	stays := w.create(ends)
	w.settle()
	w.wantLease(stays, leaseActive)
	if err := w.m.update(t.Context(), func(tx *tx) error {
		s := tx.editLease(stays)
		s.spec.ExpiresAfter = durationpb.New(time.Hour)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	w.passReporting(10*time.Minute + 5*time.Second)
	w.wantLease(id, leaseActive)
	w.wantLease(stays, leaseDegraded)
}
