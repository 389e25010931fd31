package manager

import (
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// churn lets small leases of a priority end one after another, each followed by a new
// one, until a lease has its GPUs; it returns how many of them ended.
func churn(w *world, large string, small []string, priority int32) (ended int) {
	for len(small) > 0 && w.lease(large).State == leasePending && ended < 60 {
		if w.lease(small[0]).State == leasePending {
			small = append(small[1:], small[0])
			if w.lease(small[0]).State == leasePending {
				return ended // none of them is served
			}
			continue
		}
		w.delete(small[0], true)
		w.settle()
		ended++
		small = append(small[1:], w.create(&dxpuv1.LeaseSpec{Count: 1, Priority: priority, Wait: true}))
	}
	return ended
}

// A large lease of the highest priority gets its GPUs although small ones of the lowest
// come all the time: when as many of them have ended as it needs.
func TestLargeLeaseIsNotStarved(t *testing.T) {
	for _, tt := range []struct {
		name string
		spec *dxpuv1.LeaseSpec
	}{
		{"anywhere", &dxpuv1.LeaseSpec{Count: 6, Priority: 100, Wait: true}},
		{"in one box", &dxpuv1.LeaseSpec{Count: 4, Priority: 100, Wait: true, SameBox: required}},
		{"on a host", &dxpuv1.LeaseSpec{Count: 6, Priority: 100, Wait: true, HostId: "h1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Config{}, hostNode("h1", 8), hostNode("h2", 8), boxNode("b1", 4), boxNode("b2", 4))
			var small []string
			for range 40 {
				small = append(small, w.create(&dxpuv1.LeaseSpec{Count: 1, Priority: -100, Wait: true}))
			}
			w.settle()
			large := w.create(tt.spec)
			ended := churn(w, large, small, -100)
			w.settle()
			w.wantLease(large, leaseActive)
			if ended > 16 { // in the worst case all of the others end first
				t.Errorf("%d small leases ended before the large one got its GPUs", ended)
			}
		})
	}
}

// A large lease does not hold anything against its own priority until it has aged.
func TestReservationAges(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 16), boxNode("b1", 4))
	var small []string
	for range 8 {
		small = append(small, w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true}))
	}
	w.settle()
	large := w.create(&dxpuv1.LeaseSpec{Count: 4, Wait: true})
	if ended := churn(w, large, small, 0); ended < 60 {
		t.Fatalf("the large lease has its GPUs after %d others", ended)
	}
	for range 41 { // a little more than agingTime
		w.clock.pass(15 * time.Second)
		w.settle()
	}
	var running []string
	_ = w.m.view(func(t *tx) error {
		for id, l := range t.leases.rows {
			if l.State == leaseActive {
				running = append(running, id)
			}
		}
		return nil
	})
	if ended := churn(w, large, running, 0); ended != 4 {
		t.Errorf("%d leases ended before the large one got its GPUs, want 4", ended)
	}
	w.settle()
	w.wantLease(large, leaseActive)
}

// Leases that need nothing of what is held go ahead, and those that do learn why not.
func TestBackfill(t *testing.T) {
	other := boxNode("b2", 2)
	other.model = "T4"
	w := newWorld(t, Config{}, hostNode("h1", 16), boxNode("b1", 4), other)
	first := w.create(&dxpuv1.LeaseSpec{Count: 2, Model: "DX100"})
	w.settle()
	large := w.create(&dxpuv1.LeaseSpec{Count: 4, Model: "DX100", Priority: 1, Wait: true})
	_, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1, Model: "DX100"})
	wantErr(t, err, connect.CodeResourceExhausted, "2 free GPUs and 4 host slots are held for a lease of priority 1 that is first in the queue and needs 4.")
	w.settle()
	w.wantLease(w.create(&dxpuv1.LeaseSpec{Count: 2, Model: "T4"}), leaseBinding)
	urgent := w.create(&dxpuv1.LeaseSpec{Count: 1, Model: "DX100", Priority: 2})
	w.settle()
	w.wantLease(urgent, leaseActive)
	if err := w.resize(first, 3, 0); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("a lease of lower priority grows into what is held: %v", err)
	}
	// The GPUs are free again once the lease leaves the queue.
	small := w.create(&dxpuv1.LeaseSpec{Count: 1, Model: "DX100", Wait: true})
	w.wantLease(small, leasePending)
	if why := w.explain(small); !strings.Contains(why, "are held for a lease of priority 1") {
		t.Errorf("explanation: %s", why)
	}
	w.delete(large, true)
	w.settle()
	w.wantLease(small, leaseActive)
}

// A lease that the pool could never satisfy holds nothing, and neither does one whose
// quota keeps it waiting.
func TestHopelessLeaseHoldsNothing(t *testing.T) {
	for _, tt := range []struct {
		name string
		spec *dxpuv1.LeaseSpec
	}{
		{"more than there are", &dxpuv1.LeaseSpec{Count: 5, Priority: 1, Wait: true}},
		{"no host has the slots", &dxpuv1.LeaseSpec{Count: 4, Priority: 1, Wait: true, HostId: "h2"}},
		{"quota", &dxpuv1.LeaseSpec{Count: 2, Priority: 1, Wait: true, Tenant: "a"}},
		{"quota by model", &dxpuv1.LeaseSpec{Count: 2, Priority: 1, Wait: true, Tenant: "b"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Config{}, hostNode("h1", 16), hostNode("h2", 2), boxNode("b1", 4))
			w.putTenant("a", &dxpuv1.Quota{MaxGpus: 2})
			w.putTenant("b", &dxpuv1.Quota{MaxGpusByModel: map[string]uint32{"DX100": 1}})
			w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a"})
			w.settle()
			w.wantLease(w.create(tt.spec), leasePending)
			w.settle()
			w.wantLease(w.create(&dxpuv1.LeaseSpec{Count: 3}), leaseBinding)
		})
	}
}

// A lease that waits for capacity of a host holds it too.
func TestHostSlotsAreHeld(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 16))
	var small []string
	for range 8 {
		small = append(small, w.create(&dxpuv1.LeaseSpec{Count: 1, Priority: -1, Wait: true, ExpiresAfter: durationpb.New(time.Hour)}))
	}
	w.settle()
	large := w.create(&dxpuv1.LeaseSpec{Count: 4, Wait: true})
	if ended := churn(w, large, small, -1); ended != 4 {
		t.Errorf("%d small leases ended before the large one got its slots, want 4", ended)
	}
	w.settle()
	w.wantLease(large, leaseActive)
}

// TestPromiseLeavesTheFirstOfTheQueueAlone has a lease that is first in the queue: a promise
// for later neither takes what it has gathered nor makes it wait for longer.
func TestPromiseLeavesTheFirstOfTheQueueAlone(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 4))
	w.create(&dxpuv1.LeaseSpec{Count: 1})
	ends := w.create(&dxpuv1.LeaseSpec{Count: 2, ExpiresAfter: durationpb.New(10 * time.Minute)})
	first := w.create(&dxpuv1.LeaseSpec{Count: 3, Priority: 1, Wait: true})
	w.settle()
	_, err := w.tryCreate(w.later(1, time.Hour, time.Hour))
	wantErr(t, err, connect.CodeResourceExhausted, "is first in the queue and needs 3")
	higher := w.later(1, time.Hour, time.Hour)
	higher.Priority = 2
	w.delete(w.create(higher), true)
	w.passReporting(11 * time.Minute)
	w.wantLease(ends, leaseReleased)
	w.wantLease(first, leaseActive)
	w.delete(first, true)
	// It needs two of three, or is over by then.
	for _, lasts := range []time.Duration{0, 30 * time.Minute} {
		w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 3))
		w.create(&dxpuv1.LeaseSpec{Count: 2, ExpiresAfter: durationpb.New(10 * time.Minute)})
		s := &dxpuv1.LeaseSpec{Count: 2, Priority: 1, Wait: true}
		count := uint32(1)
		if lasts != 0 {
			s.ExpiresAfter, count = durationpb.New(lasts), 3
		}
		first := w.create(s)
		w.settle()
		id := w.create(w.later(count, time.Hour, time.Hour))
		w.passReporting(11 * time.Minute)
		w.wantLease(first, leaseActive)
		w.passReporting(50 * time.Minute)
		w.wantLease(id, leaseActive)
	}
}

// Slots of a host that have failed, or are cordoned, do not make a lease possible: nothing is
// held for it until they can be used again, also if another lease has them still.
func TestHostSlotsThatFailMakeNothingPossible(t *testing.T) {
	for _, gang := range []bool{false, true} {
		w := newWorld(t, Config{}, hostNode("h1", 4), hostNode("h2", 1), boxNode("b1", 5))
		w.create(&dxpuv1.LeaseSpec{Count: 1, HostId: "h1"})
		w.settle()
		s := &dxpuv1.LeaseSpec{Count: 4, HostId: "h1", Priority: 1, Wait: true}
		if gang {
			s = gangSpec("g", 2, 2)
			s.HostId, s.Priority = "h1", 1
			w.create(s)
		}
		w.create(s)
		_, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1, HostId: "h1"})
		wantErr(t, err, connect.CodeResourceExhausted, "3 host slots are held")
		w.nodes["h1"].dead[0] = true // that of the first lease
		w.settle()
		w.settle()
		small, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1, HostId: "h1"})
		if err != nil {
			t.Fatalf("gang %t: something is held for a lease that is not possible: %v", gang, err)
		}
		w.delete(small, true)
		w.settle()
		w.nodes["h1"].dead[0] = false
		w.settle()
		_, err = w.tryCreate(&dxpuv1.LeaseSpec{Count: 2, HostId: "h1"})
		wantErr(t, err, connect.CodeResourceExhausted, "are held")
	}
}

// GPUs held for a lease go to others when they cannot help it any more: its tenant has reached
// its quota with another lease, of all GPUs or of the only model, or a taint keeps it from the only host.
func TestNothingIsHeldInVain(t *testing.T) {
	taint := &dxpuv1.Taint{Key: "k", Value: "v", Effect: dxpuv1.TaintEffect_TAINT_EFFECT_NO_SCHEDULE}
	another := func(w *world) { w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a", Priority: 2, HostId: "h1"}) }
	for what, happens := range map[string]func(*world){
		"quota":          another,
		"quota by model": another,
		"host": func(w *world) {
			if _, err := w.api().SetTaints(t.Context(), connect.NewRequest(&dxpuv1.SetTaintsRequest{Target: atHost("h2"), Set: []*dxpuv1.Taint{taint}})); err != nil {
				t.Fatal(err)
			}
		},
	} {
		w := newWorld(t, Config{}, hostNode("h1", 8), hostNode("h2", 4), boxNode("b1", 4))
		quota := &dxpuv1.Quota{MaxGpus: 4, MaxPriority: proto.Int32(2)}
		if what == "quota by model" {
			quota.MaxGpus, quota.MaxGpusByModel = 0, map[string]uint32{"DX100": 4}
		}
		w.putTenant("a", quota)
		w.create(&dxpuv1.LeaseSpec{Count: 1})
		w.create(&dxpuv1.LeaseSpec{Count: 4, Tenant: "a", Priority: 1, HostId: "h2", Wait: true})
		w.settle()
		_, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1, HostId: "h1"})
		wantErr(t, err, connect.CodeResourceExhausted, "are held")
		happens(w)
		w.settle()
		if _, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1, HostId: "h1"}); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// The manager holds GPUs for a lease that needs all of a pool as soon as a busy GPU can be used
// again, and no longer than it can.
func TestBusyGPUsDecideWhatIsHeld(t *testing.T) {
	taint := &dxpuv1.Taint{Key: "k", Value: "v", Effect: dxpuv1.TaintEffect_TAINT_EFFECT_NO_SCHEDULE}
	setTaints := func(w *world, r *dxpuv1.SetTaintsRequest) {
		r.Target = atGPU("b1/0")
		if _, err := w.api().SetTaints(t.Context(), connect.NewRequest(r)); err != nil {
			t.Fatal(err)
		}
	}
	for what, change := range map[string]struct{ away, back func(*world) }{
		"cordon": {
			func(w *world) {
				if _, err := w.api().Cordon(t.Context(), connect.NewRequest(&dxpuv1.CordonRequest{Target: atGPU("b1/0")})); err != nil {
					t.Fatal(err)
				}
			},
			func(w *world) { w.uncordon(atGPU("b1/0")) },
		},
		"taint of a GPU": {
			func(w *world) { setTaints(w, &dxpuv1.SetTaintsRequest{Set: []*dxpuv1.Taint{taint}}) },
			func(w *world) { setTaints(w, &dxpuv1.SetTaintsRequest{Remove: []*dxpuv1.Taint{taint}}) },
		},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 4))
			w.create(&dxpuv1.LeaseSpec{Count: 1, GpuIds: []string{"b1/0"}})
			w.settle()
			w.create(&dxpuv1.LeaseSpec{Count: 4, Priority: 1, Wait: true})
			_, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1})
			wantErr(t, err, connect.CodeResourceExhausted, "are held")
			change.away(w)
			w.settle()
			small, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1})
			if err != nil {
				t.Fatalf("something is held for a lease that is not possible: %v", err)
			}
			w.delete(small, true)
			w.settle()
			change.back(w)
			w.settle()
			_, err = w.tryCreate(&dxpuv1.LeaseSpec{Count: 1})
			wantErr(t, err, connect.CodeResourceExhausted, "are held")
		})
	}
}

// The GPUs that are held go to the lease that becomes the first of the queue by its age.
func TestHeldForTheLeaseThatAges(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 6))
	for _, id := range []string{"a", "b", "c"} {
		w.putTenant(id, &dxpuv1.Quota{})
	}
	w.create(&dxpuv1.LeaseSpec{Count: 3, Tenant: "a"})
	w.settle()
	old := w.create(&dxpuv1.LeaseSpec{Count: 4, Tenant: "a", Wait: true})
	w.passReporting(5 * time.Minute)
	w.create(&dxpuv1.LeaseSpec{Count: 4, Tenant: "b", Wait: true}) // before it, by its share
	w.passReporting(agingTime - 4*time.Minute)
	late := w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "c", Wait: true})
	w.settle()
	w.wantLease(late, leasePending)
	if l := w.lease(old); l.QueuePosition != 1 {
		t.Errorf("lease %s is number %d", old, l.QueuePosition)
	}
}
