package manager

import (
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func TestPreemption(t *testing.T) {
	spec := func(n uint32, priority int32, preemptible, wait bool) *dxpuv1.LeaseSpec {
		return &dxpuv1.LeaseSpec{Count: n, Priority: priority, Preemptible: preemptible, Wait: wait}
	}
	tests := []struct {
		name    string
		there   []*dxpuv1.LeaseSpec // on four GPUs
		comes   *dxpuv1.LeaseSpec
		gets    bool
		victims []int
	}{
		{"lower and preemptible", []*dxpuv1.LeaseSpec{spec(4, 0, true, false)}, spec(1, 1, false, false), true, []int{0}},
		{"same priority", []*dxpuv1.LeaseSpec{spec(4, 1, true, false)}, spec(1, 1, false, true), false, nil},
		{"not preemptible", []*dxpuv1.LeaseSpec{spec(4, 0, false, false)}, spec(1, 1, false, true), false, nil},
		{"not enough room", []*dxpuv1.LeaseSpec{spec(3, 0, true, false), spec(1, 0, false, false)}, spec(4, 1, false, true), false, nil},
		{"the youngest", []*dxpuv1.LeaseSpec{spec(2, 0, true, true), spec(2, 0, true, true)}, spec(2, 1, false, false), true, []int{1}},
		{"the lowest priority", []*dxpuv1.LeaseSpec{spec(2, -5, true, true), spec(2, 0, true, true)}, spec(2, 1, false, false), true, []int{0}},
		{"the smallest", []*dxpuv1.LeaseSpec{spec(3, -5, true, true), spec(1, 0, true, false)}, spec(1, 1, false, false), true, []int{1}},
		{"what is free counts", []*dxpuv1.LeaseSpec{spec(2, 0, true, true)}, spec(3, 1, false, false), true, []int{0}},
		{"fits without", []*dxpuv1.LeaseSpec{spec(2, 0, true, true)}, spec(2, 1, false, false), true, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Config{}, hostNode("h1", 4), hostNode("h2", 4), boxNode("b1", 4))
			var there []string
			for _, s := range tt.there {
				there = append(there, w.create(proto.CloneOf(s)))
			}
			w.settle()
			id := w.create(tt.comes)
			if !tt.gets {
				w.wantLease(id, leasePending)
				if s := w.explain(id); !strings.Contains(s, "preempt") {
					t.Errorf("explanation: %s", s)
				}
				return
			}
			w.wantLease(id, leaseBinding)
			w.settle()
			w.wantLease(id, leaseActive)
			for i, v := range there {
				want := leaseActive
				if slices.Contains(tt.victims, i) {
					if want = leaseReleased; tt.there[i].Wait {
						want = leasePending
					}
					if r := w.lease(v).Bindings[0].Reason; r != dxpuv1.Reason_REASON_PREEMPTED {
						t.Errorf("binding of %s ended for %v", v, r)
					}
					if !strings.Contains(w.events(), "is preempted: it gives") || !strings.Contains(w.events(), v) {
						t.Errorf("no event names %s", v)
					}
				}
				w.wantLease(v, want)
			}
			// Waiting leases continue once the other has ended.
			w.delete(id, true)
			w.settle()
			w.settle()
			for i, v := range there {
				if tt.there[i].Wait {
					w.wantLease(v, leaseActive)
				}
			}
		})
	}
}

// The GPU of a preempted lease goes only to the preempting one, and the guest gets its
// time.
func TestPreemptedGPUsAreReserved(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), hostNode("h2", 4), boxNode("b1", 1))
	low := w.create(&dxpuv1.LeaseSpec{Count: 1, Preemptible: true, HostId: "h1"})
	w.settle()
	w.nodes["h1"].deaf = true // does not unplug
	high := w.create(&dxpuv1.LeaseSpec{Count: 1, Priority: 1, HostId: "h2"})
	higher := w.create(&dxpuv1.LeaseSpec{Count: 1, Priority: 2, HostId: "h2", Wait: true})
	w.settle()
	w.wantLease(high, leaseBinding)
	w.wantLease(low, leaseReleasing)
	if len(w.nodes["b1"].has) != 1 {
		t.Fatal("the box was told before the GPU was free")
	}
	w.pass(defaultUnplugTimeout + unplugSlack)
	w.settle()
	w.wantLease(high, leaseActive)
	w.wantLease(higher, leasePending)
	w.nodes["h1"].deaf = false
	w.settle()
	w.wantLease(low, leaseReleased)

	// A lease that is deleted while it waits leaves nothing behind.
	w.delete(high, true)
	w.settle()
	w.wantLease(higher, leaseActive)
}

// A GPU that fails while a binding waits for it is replaced.
func TestPreemptedGPUFails(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 2))
	w.create(&dxpuv1.LeaseSpec{Count: 2, Preemptible: true})
	w.settle()
	high := w.create(&dxpuv1.LeaseSpec{Count: 1, Priority: 1, Wait: true})
	w.nodes["b1"].dead[w.lease(high).Bindings[0].BoxSlot] = true
	w.settle()
	w.settle()
	w.wantLease(high, leaseActive)
}

// The wait timeout starts again when a lease returns to the queue.
func TestRequeuedLeaseWaits(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 1))
	low := w.create(&dxpuv1.LeaseSpec{Count: 1, Preemptible: true, Wait: true, WaitTimeout: durationpb.New(time.Minute)})
	w.settle()
	w.pass(time.Hour)
	w.settle()
	w.create(&dxpuv1.LeaseSpec{Count: 1, Priority: 1})
	w.settle()
	w.wantLease(low, leasePending)
	w.pass(time.Minute)
	w.wantLease(low, leaseFailed)
}

// A lease gets the slot of one with a GPU of another model, where only slots of hosts lack.
func TestPreemptionForASlot(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1), modelBox("b2", "T4"))
	low := w.create(&dxpuv1.LeaseSpec{Count: 1, Model: "DX100", Preemptible: true})
	w.settle()
	high := w.create(&dxpuv1.LeaseSpec{Count: 1, Model: "T4", Priority: 1})
	w.settle()
	w.wantLease(high, leaseActive)
	w.wantLease(low, leaseReleased)
}

// A slot that has failed goes to no other lease when that of it is preempted, so it is not.
func TestPreemptionLeavesFailedSlots(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
	low := w.create(&dxpuv1.LeaseSpec{Count: 1, Preemptible: true})
	w.settle()
	w.nodes["h1"].dead[0] = true
	w.settle()
	w.wantLease(w.create(&dxpuv1.LeaseSpec{Count: 1, Priority: 1, Wait: true}), leasePending)
	w.wantLease(low, leaseActive)
}

// A lease that names no model preempts others for a model that the quota of its tenant allows.
func TestPreemptionKeepsToTheQuotaByModel(t *testing.T) {
	free := boxNode("b2", 2)
	free.model = "T4"
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 1), free)
	w.putTenant("a", &dxpuv1.Quota{MaxGpusByModel: map[string]uint32{"T4": 0}})
	low := w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a", Priority: -1, Preemptible: true})
	w.settle()
	high := w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a"})
	w.settle()
	if b := w.wantLease(high, leaseActive).Bindings[0]; b.BoxId != "b1" {
		t.Errorf("the lease has GPU %s", b.GpuId)
	}
	w.wantLease(low, leaseReleased)
}

// A tenant preempts its own leases for a part by the size that it has on its GPU, not by its
// compute alone: never to borrow more, and also where the guarantee does not cover that size.
func TestPreemptionOfOwnParts(t *testing.T) {
	for _, tt := range []struct {
		name  string
		other uint32 // thousandths that another lease of the tenant has
		gets  bool
	}{
		{"the guarantee covers its compute, and its memory only in place of the other", 0, true},
		{"it would borrow more", 600, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 2))
			w.putTenant("a", guaranteed(1, 0))
			w.create(&dxpuv1.LeaseSpec{Count: 1, GpuIds: []string{"b1/1"}})
			s := part(200, 400)
			s.Tenant, s.Priority, s.Preemptible, s.GpuIds = "a", -1, true, []string{"b1/0"}
			low := w.create(s)
			if tt.other > 0 {
				s = part(100, tt.other)
				s.Tenant, s.Preemptible = "a", true
				w.create(s)
			}
			w.settle()
			s = part(900, 350)
			s.Tenant, s.Preemptible, s.Wait = "a", true, true
			high := w.create(s)
			w.settle()
			if !tt.gets {
				w.wantLease(high, leasePending)
				w.wantLease(low, leaseActive)
				return
			}
			w.wantLease(high, leaseActive)
			w.wantLease(low, leaseReleased)
		})
	}
}

// A tenant keeps its own leases, which it may preempt only together, if others make the room.
func TestPreemptionKeepsOwnLeases(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 2), boxNode("b2", 3))
	w.putTenant("a", guaranteed(3, 0))
	var own, others []string
	for _, gpu := range []string{"b1/0", "b1/1"} {
		own = append(own, w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a", Priority: -2, Preemptible: true, GpuIds: []string{gpu}}))
	}
	for range 3 {
		others = append(others, w.create(&dxpuv1.LeaseSpec{Count: 1, Priority: -1, Preemptible: true}))
	}
	w.settle()
	high := w.create(&dxpuv1.LeaseSpec{Count: 3, Tenant: "a", Preemptible: true, SameBox: dxpuv1.Preference_PREFERENCE_REQUIRED})
	w.settle()
	w.wantLease(high, leaseActive)
	for _, id := range own {
		w.wantLease(id, leaseActive)
	}
	for _, id := range others {
		w.wantLease(id, leaseReleased)
	}
}

// The reason why nothing is preempted counts the leases that are of no use, and says when the
// rules for borrowing are in the way.
func TestWhyNothingIsPreempted(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 2), modelBox("b2", "T4"))
	w.putTenant("a", guaranteed(1, 0))
	w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a", Model: "DX100", Preemptible: true, Priority: -1})
	w.create(&dxpuv1.LeaseSpec{Count: 1, Model: "DX100"})
	w.create(&dxpuv1.LeaseSpec{Count: 2, Model: "T4"})
	w.settle()
	for _, tt := range []struct {
		spec *dxpuv1.LeaseSpec
		want string
	}{
		{&dxpuv1.LeaseSpec{Count: 1, Priority: -1}, "No preemptible lease has a priority below -1."},
		{&dxpuv1.LeaseSpec{Count: 1, Tenant: "a", Model: "T4"}, "Of the preemptible leases of lower priority, 1 has nothing that it can use now."},
		{&dxpuv1.LeaseSpec{Count: 1, Model: "DX100"}, "Of the preemptible leases of lower priority, 1 has GPUs within the guarantee of another tenant."},
		{&dxpuv1.LeaseSpec{Count: 2, Tenant: "a", Preemptible: true}, "Preempting the one lease of lower priority that it may preempt would not make room."},
	} {
		_, err := w.tryCreate(tt.spec)
		wantErr(t, err, connect.CodeResourceExhausted, tt.want)
	}

	w = newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 2))
	w.putTenant("a", guaranteed(0, 0))
	w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a", Preemptible: true, Priority: -1})
	w.settle()
	_, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 2, Tenant: "a", Preemptible: true})
	wantErr(t, err, connect.CodeResourceExhausted, "that it may preempt would make room, but let tenant a borrow more in place of its own leases.")
}

// A lease that has lost its GPU gives the slot that it keeps for another one.
func TestPreemptsALeaseThatLacksItsGPU(t *testing.T) {
	box := boxNode("b1", 3)
	w := newWorld(t, Config{}, hostNode("h1", 2), box)
	low := w.create(&dxpuv1.LeaseSpec{Count: 1, Preemptible: true})
	w.settle()
	box.dead[1], box.dead[2] = true, true
	w.settle()
	box.dead[0] = true
	w.settle()
	w.wantLease(low, leaseDegraded)
	box.refuses, box.dead[1], box.dead[2] = true, false, false
	w.settle() // the attempt with another GPU fails, and the next one comes later
	box.refuses = false
	high := w.create(&dxpuv1.LeaseSpec{Count: 2, Priority: 1, Wait: true})
	w.settle()
	w.wantLease(high, leaseActive)
	if s := w.events(); !strings.Contains(s, "lease "+low+" (priority 0) is preempted: it gives 1 host slot to lease "+high) {
		t.Errorf("events: %s", s)
	}
}
