package manager

import (
	"context"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// later returns the spec of a lease that begins in some time and lasts for some time.
func (w *world) later(count uint32, in, lasts time.Duration) *dxpuv1.LeaseSpec {
	return &dxpuv1.LeaseSpec{Count: count, StartTime: timestamppb.New(w.clock.now().Add(in)), ExpiresAfter: durationpb.New(lasts)}
}

// promised returns the GPUs that are promised to a lease.
func (w *world) promised(id string) string {
	return strings.Join(w.lease(id).GetReservation().GetGpuIds(), " ")
}

// TestReservation has a lease that begins in three minutes: until then only leases that end
// before get its GPU, and one that waits gets it when its time is over.
func TestReservation(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 2))
	id := w.create(w.later(1, 3*time.Minute, time.Minute))
	w.settle()
	l := w.wantLease(id, leasePending)
	if got := w.promised(id); got != "b1/0" || l.QueuePosition != 0 || !strings.HasPrefix(l.StateReason, "reserved from ") {
		t.Fatalf("%s is promised, position %d: %s", got, l.QueuePosition, l.StateReason)
	}
	if got := w.explain(id); !strings.Contains(got, "1 GPU with 1 slot of host h1 is promised to it") {
		t.Errorf("explained as %q", got)
	}
	forever := w.create(&dxpuv1.LeaseSpec{Count: 1})
	waits := w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true})
	w.settle()
	if got := w.has(forever); got != "b1/1" {
		t.Errorf("a lease without an end has %s", got)
	}
	for _, lasts := range []time.Duration{0, 2*time.Minute + time.Second, 5 * time.Minute} {
		s := &dxpuv1.LeaseSpec{Count: 1}
		if lasts != 0 {
			s.ExpiresAfter = durationpb.New(lasts)
		}
		_, err := w.tryCreate(s)
		wantErr(t, err, connect.CodeResourceExhausted, "promised to leases that begin later")
	}
	short := w.create(&dxpuv1.LeaseSpec{Count: 1, ExpiresAfter: durationpb.New(90 * time.Second)})
	w.settle()
	if got := w.has(short); got != "b1/0" {
		t.Errorf("a short lease has %q", got)
	}
	w.checkIndex(t)
	w.passReporting(2*time.Minute + 50*time.Second)
	w.wantLease(short, leaseReleased)
	w.wantLease(id, leasePending)
	w.passReporting(12 * time.Second)
	if l := w.wantLease(id, leaseActive); w.has(id) != "b1/0" || l.Reservation != nil {
		t.Errorf("when it begins it has %s, and %v", w.has(id), l.Reservation)
	}
	w.wantLease(waits, leasePending)
	w.passReporting(time.Minute)
	w.wantLease(id, leaseReleased)
	w.wantLease(waits, leaseActive)
	w.checkIndex(t)
}

// TestReservationsShareAGPU has reservations one after the other, and one that overlaps.
func TestReservationsShareAGPU(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 1))
	first := w.create(w.later(1, time.Hour, time.Hour))
	after := w.create(w.later(1, 3*time.Hour, time.Hour))
	if w.promised(first) != "b1/0" || w.promised(after) != "b1/0" {
		t.Errorf("%s and %s are promised", w.promised(first), w.promised(after))
	}
	for _, s := range []*dxpuv1.LeaseSpec{w.later(1, 90*time.Minute, time.Minute), w.later(1, 30*time.Minute, 40*time.Minute), w.later(1, 30*time.Minute, 24*time.Hour)} {
		_, err := w.tryCreate(s)
		wantErr(t, err, connect.CodeResourceExhausted, "no capacity for this lease from")
	}
	w.create(w.later(1, 2*time.Minute, 30*time.Minute))
	// A minute is between two reservations, whichever was made first.
	for _, s := range []*dxpuv1.LeaseSpec{w.later(1, 2*time.Hour+promiseLead-time.Second, time.Minute), w.later(1, 3*time.Hour-time.Minute, promiseLead-time.Second)} {
		_, err := w.tryCreate(s)
		wantErr(t, err, connect.CodeResourceExhausted, "no capacity for this lease from")
	}
	w.create(w.later(1, 2*time.Hour+promiseLead, 58*time.Minute))
	// A GPU whose lease ends in time counts, though it is not free now.
	w = newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 1))
	w.create(&dxpuv1.LeaseSpec{Count: 1, ExpiresAfter: durationpb.New(time.Minute)})
	w.settle()
	if id := w.create(w.later(1, 3*time.Minute, time.Minute)); w.promised(id) != "b1/0" {
		t.Errorf("%q is promised", w.promised(id))
	}
	_, err := w.tryCreate(w.later(1, time.Minute+time.Second, time.Second))
	wantErr(t, err, connect.CodeResourceExhausted, "no capacity")
}

// TestReservationSurvivesAFailover has another manager that begins to lead before a lease
// begins.
func TestReservationSurvivesAFailover(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 2), boxNode("b1", 1))
	id := w.create(w.later(1, 2*time.Minute, time.Minute))
	w.settle()
	w.restoredPool(store.records)
	w.settle()
	_, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1})
	wantErr(t, err, connect.CodeResourceExhausted, "promised to leases that begin later")
	w.passReporting(2*time.Minute + 2*time.Second)
	w.wantLease(id, leaseActive)
}

// TestPromiseWaitsForNodesAfterAFailover has a new manager that looks at what is promised
// before the nodes have found it: nothing moves, and nothing is said to be unusable.
func TestPromiseWaitsForNodesAfterAFailover(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 2), hostNode("h2", 2), boxNode("b1", 1), boxNode("b2", 1))
	id := w.create(w.later(1, 10*time.Minute, time.Minute))
	w.settle()
	before := w.lease(id).Reservation
	w.restoredPool(store.records)
	wantKept := func(when string) {
		t.Helper()
		if err := w.m.update(t.Context(), func(t *tx) error { t.event(&dxpuv1.Event{}, "a change"); return nil }); err != nil {
			t.Fatal(err)
		}
		if r := w.lease(id).Reservation; !proto.Equal(r, before) {
			t.Errorf("%s: %v is promised, before %v", when, r, before)
		}
	}
	wantKept("no node reports")
	for _, node := range w.order {
		if node != before.HostId && node != before.GpuIds[0][:2] {
			w.report(node)
		}
	}
	w.pass(time.Second)
	wantKept("the others report")
	w.settle()
	w.passReporting(promiseCheck + time.Second)
	wantKept("all report")
}

// TestPromiseMoves cordons what is promised: the promise moves to another GPU, and says so
// when there is none.
func TestPromiseMoves(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 2), boxNode("b1", 1), boxNode("b2", 1))
	id := w.create(w.later(1, 3*time.Minute, time.Minute))
	w.settle()
	cordon := func(box string) {
		if err := w.m.update(context.Background(), func(t *tx) error { return t.cordon(atBox(box), 0, &cordon{}) }); err != nil {
			t.Fatal(err)
		}
		w.passReporting(promiseCheck + time.Second)
	}
	first := w.promised(id)
	cordon(first[:2])
	second := w.promised(id)
	if second == "" || second == first {
		t.Fatalf("%s was promised, and is cordoned; now %s is", first, second)
	}
	cordon(second[:2])
	if r := w.lease(id).Reservation; !strings.Contains(r.GetObstacle(), "GPU "+second+" cannot be used") {
		t.Errorf("without a GPU: %v", r)
	}
	w.uncordon(atBox(first[:2]))
	w.passReporting(promiseCheck + time.Second)
	if r := w.lease(id).Reservation; r.GetObstacle() != "" || w.promised(id) != first {
		t.Errorf("with a GPU again: %v", r)
	}
}

// TestPromiseIsKept has leases without an end on what is promised, as after a mistake: one
// can move, and does so a minute before, the other one ends when the lease begins.
func TestPromiseIsKept(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 1), boxNode("b2", 1))
	moves := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	on := w.has(moves)
	id := w.create(w.later(1, 2*time.Minute, time.Minute))
	if err := w.m.update(context.Background(), func(t *tx) error {
		at, _ := parseGPU(on)
		p := *t.leases.get(id).Promise
		p.GPUs = []placement.Ref{at}
		t.editLease(id).Promise = &p
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	w.passReporting(50 * time.Second)
	if got := w.has(moves); got != on {
		t.Errorf("it moved to %s too early", got)
	}
	w.passReporting(15 * time.Second)
	if got := w.has(moves); got == on || got == "" {
		t.Fatalf("it did not move: %q", got)
	}
	stays := w.create(&dxpuv1.LeaseSpec{Count: 1, ExpiresAfter: durationpb.New(time.Hour), GpuIds: []string{on}, Wait: true})
	w.passReporting(time.Minute)
	w.wantLease(id, leaseActive)
	w.wantLease(stays, leasePending)
	if got := w.has(id); got != on {
		t.Errorf("the lease that begins has %s, want %s", got, on)
	}
}

// TestPromiseIsKeptDespiteSpares has leases that leave nothing but what is promised, which
// then is as many GPUs as the pool holds back as spares: the lease that begins gets it.
func TestPromiseIsKeptDespiteSpares(t *testing.T) {
	w := newWorld(t, Config{Reserve: placement.Reserve{Count: 1}}, hostNode("h1", 4), boxNode("b1", 3))
	id := w.create(w.later(1, 2*time.Minute, time.Minute))
	for range 2 {
		w.create(&dxpuv1.LeaseSpec{Count: 1})
	}
	w.passReporting(2*time.Minute + 10*time.Second)
	w.wantLease(id, leaseActive)
}

// TestPromiseIsKeptFromTheQueue has a lease of higher priority that waits for two slots of a
// host: it holds none of those that are promised, and the lease that begins gets them.
func TestPromiseIsKeptFromTheQueue(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 2), hostNode("h2", 3), boxNode("b1", 2), boxNode("b2", 3))
	id := w.create(w.later(3, 2*time.Minute, time.Minute))
	w.create(&dxpuv1.LeaseSpec{Count: 1, HostId: "h1"})
	first := w.create(&dxpuv1.LeaseSpec{Count: 2, Priority: 1, Wait: true})
	w.passReporting(2*time.Minute + 10*time.Second)
	w.wantLease(first, leasePending)
	w.wantLease(id, leaseActive)
}

// TestReservationAndMaintenance has maintenance of one of two boxes in the time of a
// reservation, and maintenance that is planned later.
func TestReservationAndMaintenance(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 1), boxNode("b2", 1))
	plan := func(box string, in, lasts time.Duration) {
		if _, err := w.api().PlanMaintenance(context.Background(), connect.NewRequest(planRequest(w, box, in, lasts))); err != nil {
			t.Fatal(err)
		}
		w.settle()
	}
	plan("b1", time.Hour, time.Hour)
	id := w.create(w.later(1, 90*time.Minute, time.Hour))
	if got := w.promised(id); got != "b2/0" {
		t.Errorf("%s is promised during maintenance of b1", got)
	}
	if got := w.promised(w.create(w.later(1, 150*time.Minute-time.Minute, time.Minute))); got != "b1/0" {
		t.Errorf("%s is promised after maintenance of b1", got)
	}
	plan("b2", 2*time.Hour, time.Hour)
	w.passReporting(promiseCheck + time.Second)
	if r := w.lease(id).Reservation; r.GetObstacle() == "" {
		t.Errorf("no box is without maintenance: %v", r)
	}
}

// TestReservationIsChecked has requests that would be mistakes, and the bounds.
func TestReservationIsChecked(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 64), boxNode("b1", 64))
	w.putTenant("a", &dxpuv1.Quota{MaxGpus: 3})
	for _, c := range []struct {
		name   string
		change func(*dxpuv1.LeaseSpec)
		code   connect.Code
		word   string
	}{
		{"no end", func(s *dxpuv1.LeaseSpec) { s.ExpiresAfter = nil }, connect.CodeInvalidArgument, "spec.expires_after: must be set"},
		{"no time", func(s *dxpuv1.LeaseSpec) { s.StartTime.Nanos = -1 }, connect.CodeInvalidArgument, "spec.start_time"},
		{"over", func(s *dxpuv1.LeaseSpec) { s.StartTime = timestamppb.New(w.clock.now()) }, connect.CodeInvalidArgument, "is over"},
		{"twice", func(s *dxpuv1.LeaseSpec) { s.StartAfter = durationpb.New(time.Hour) }, connect.CodeInvalidArgument, "spec.start_after: start_time is set too"},
		{"after no time", func(s *dxpuv1.LeaseSpec) { s.StartTime, s.StartAfter = nil, &durationpb.Duration{} }, connect.CodeInvalidArgument, "spec.start_after: must be positive"},
		{"after years", func(s *dxpuv1.LeaseSpec) { s.StartTime, s.StartAfter = nil, durationpb.New(maxPromiseAhead+time.Hour) }, connect.CodeInvalidArgument, "92 days ahead"},
		{"far ahead", func(s *dxpuv1.LeaseSpec) {
			s.StartTime = timestamppb.New(w.clock.now().Add(maxPromiseAhead + time.Hour))
		}, connect.CodeInvalidArgument, "92 days ahead"},
		{"a gang", func(s *dxpuv1.LeaseSpec) { s.Gang, s.Wait = &dxpuv1.Gang{Name: "g", Size: 2}, true }, connect.CodeInvalidArgument, "gang"},
		{"a part", func(s *dxpuv1.LeaseSpec) { s.Part = &dxpuv1.Part{MemoryBytes: 1 << 30, Compute: 100} }, connect.CodeInvalidArgument, "part"},
		{"a limit of the wait", func(s *dxpuv1.LeaseSpec) { s.Wait, s.WaitTimeout = true, durationpb.New(time.Hour) }, connect.CodeInvalidArgument, "spec.wait_timeout"},
		{"more than there is", func(s *dxpuv1.LeaseSpec) { s.Model = "H200" }, connect.CodeResourceExhausted, "no capacity for this lease from"},
		{"beyond the quota", func(s *dxpuv1.LeaseSpec) { s.Count, s.Tenant = 4, "a" }, connect.CodeInvalidArgument, "quota of 3"},
	} {
		s := w.later(1, time.Hour, time.Hour)
		c.change(s)
		if _, err := w.tryCreate(s); connect.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	for _, tenant := range []string{"a", "default"} {
		for n := 0; ; n++ {
			s := w.later(1, time.Hour, time.Hour)
			s.Tenant = tenant
			if _, err := w.tryCreate(s); err != nil {
				want := map[string]int{"a": 3, "default": 15}[tenant]
				if n != want || connect.CodeOf(err) != connect.CodeResourceExhausted {
					t.Errorf("tenant %s has %d reservations, want %d: %v", tenant, n, want, err)
				}
				break
			}
		}
	}
	w.m.state.alike = false
	_, err := w.tryCreate(w.later(1, time.Hour, time.Hour))
	wantErr(t, err, connect.CodeFailedPrecondition, "several versions")
}

// TestReservationIsListed lists leases that begin later, and previews and explains one.
func TestReservationIsListed(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 2))
	w.create(&dxpuv1.LeaseSpec{Count: 1})
	id := w.create(w.later(1, time.Hour, time.Hour))
	w.settle()
	res, err := w.api().ListLeases(operatorContext(), connect.NewRequest(&dxpuv1.ListLeasesRequest{Reserved: true}))
	if err != nil || len(res.Msg.Leases) != 1 || res.Msg.Leases[0].Id != id {
		t.Errorf("listed: %v, %v", res, err)
	}
	if got := w.preview(leaseChange(w.later(1, 3*time.Hour, time.Hour)), leaseChange(w.later(2, 3*time.Hour, time.Hour))); got[0] != "pending, 1 GPUs" || !strings.HasPrefix(got[1], "resource_exhausted") {
		t.Errorf("preview: %q", got)
	}
	for count, want := range map[uint32]bool{1: true, 2: false} {
		res, err := w.api().ExplainLease(context.Background(), connect.NewRequest(&dxpuv1.ExplainLeaseRequest{What: &dxpuv1.ExplainLeaseRequest_Spec{Spec: w.later(count, 3*time.Hour, time.Hour)}}))
		if err != nil || res.Msg.Satisfied != want {
			t.Errorf("explained, %d GPUs: %v, %v", count, res, err)
		}
	}
	w.delete(id, true)
	w.settle()
	if n, r := len(w.m.state.promises), w.lease(id).Reservation; n != 0 || r != nil {
		t.Errorf("%d promises are left, and of the deleted lease: %v", n, r)
	}
}

// TestRepeatedReservation repeats a request for a lease that begins some time from now, also
// after it was resized: the time is that of the first request.
func TestRepeatedReservation(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 4))
	create := func(after time.Duration) (*dxpuv1.Lease, error) {
		s := &dxpuv1.LeaseSpec{Count: 2, StartAfter: durationpb.New(after), ExpiresAfter: durationpb.New(time.Hour)}
		res, err := w.api().CreateLease(context.Background(), connect.NewRequest(&dxpuv1.CreateLeaseRequest{RequestId: "x", Spec: s}))
		if err != nil {
			return nil, err
		}
		return res.Msg.Lease, nil
	}
	begins := w.clock.now().Add(2 * time.Minute)
	first, err := create(2 * time.Minute)
	if err != nil || !first.Spec.StartTime.AsTime().Equal(begins) || !first.ExpireTime.AsTime().Equal(begins.Add(time.Hour)) {
		t.Fatalf("begins at %v, want %v: %v", first.GetSpec().GetStartTime().AsTime(), begins, err)
	}
	repeat := func() {
		t.Helper()
		if l, err := create(2 * time.Minute); err != nil || l.Id != first.Id || !l.Spec.StartTime.AsTime().Equal(begins) {
			t.Errorf("repeated: %v, %v", l, err)
		}
	}
	w.passReporting(time.Minute)
	repeat()
	w.passReporting(2 * time.Minute)
	w.wantLease(first.Id, leaseActive)
	if err := w.resize(first.Id, 1, 0); err != nil {
		t.Fatal(err)
	}
	w.settle()
	repeat()
	_, err = create(time.Minute)
	wantErr(t, err, connect.CodeAlreadyExists, "used for another spec")
}
