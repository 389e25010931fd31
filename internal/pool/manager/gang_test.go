package manager

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func gangSpec(name string, size, count uint32) *dxpuv1.LeaseSpec {
	return &dxpuv1.LeaseSpec{Count: count, Wait: true, Gang: &dxpuv1.Gang{Name: name, Size: size}}
}

// A lease that cannot be one of its gang is refused, and says why.
func TestGangAdmission(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 8))
	w.putTenant("a", &dxpuv1.Quota{MaxGpus: 6})
	w.create(&dxpuv1.LeaseSpec{Count: 4, Wait: true, Tenant: "a", Gang: &dxpuv1.Gang{Name: "g", Size: 3}})
	with := func(change func(*dxpuv1.LeaseSpec)) *dxpuv1.LeaseSpec {
		s := gangSpec("g", 3, 1)
		s.Tenant = "a"
		change(s)
		return s
	}
	for _, tt := range []struct {
		spec *dxpuv1.LeaseSpec
		want string
	}{
		{with(func(s *dxpuv1.LeaseSpec) { s.Wait = false }), "spec.wait: leases of a gang wait for each other"},
		{with(func(s *dxpuv1.LeaseSpec) { s.Gang.Size = 1 }), "spec.gang.size: 1 is not 2 to 64"},
		{with(func(s *dxpuv1.LeaseSpec) { s.Gang.Size = 65 }), "spec.gang.size: 65 is not 2 to 64"},
		{with(func(s *dxpuv1.LeaseSpec) { s.Gang.Name = "Größe" }), "spec.gang.name: \"Größe\" is not 1 to 63"},
		{with(func(s *dxpuv1.LeaseSpec) { s.Gang.Size = 2 }), "spec.gang.size: 2, but lease l-1 says that gang g has 3 leases"},
		{with(func(s *dxpuv1.LeaseSpec) { s.Priority = -1 }), "spec.priority: -1, but lease l-1 of gang g has 0"},
		{with(func(s *dxpuv1.LeaseSpec) { s.Preemptible = true }), "spec.preemptible: true, but not for lease l-1"},
		{with(func(s *dxpuv1.LeaseSpec) { s.Count = 3 }), "spec.count: 7 GPUs exceed the quota of 6 of tenant a"},
	} {
		_, err := w.tryCreate(tt.spec)
		wantErr(t, err, connect.CodeInvalidArgument, tt.want)
	}
	w.putTenant("b", &dxpuv1.Quota{MaxLeases: 2})
	s := gangSpec("g", 3, 1)
	s.Tenant = "b"
	_, err := w.tryCreate(s)
	wantErr(t, err, connect.CodeInvalidArgument, "spec.gang.size: 3 leases exceed the quota of 2 of tenant b")
	// Another tenant's gang of that name is another gang.
	other := w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true, Gang: &dxpuv1.Gang{Name: "g", Size: 2}})
	if l := w.lease(other); !strings.Contains(l.StateReason, "Gang g has 1 of its 2 leases") {
		t.Errorf("%s", l.StateReason)
	}
	for i := range 16 {
		if _, err := w.tryCreate(gangSpec("big", 64, 64)); err != nil {
			t.Fatalf("lease %d: %v", i, err)
		}
	}
	_, err = w.tryCreate(gangSpec("big", 64, 1))
	wantErr(t, err, connect.CodeInvalidArgument, "spec.count: gang big would have 1025 GPUs, at most 1024")
}

// Beside managers of another version there are no new gangs: an older leader would place
// the leases of one by themselves.
func TestNoGangBesideAnOlderManager(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 4))
	w.m.state.alike = false
	_, err := w.tryCreate(gangSpec("g", 2, 1))
	wantErr(t, err, connect.CodeFailedPrecondition, "spec.gang: managers of several versions run")
}

// A transaction tries fewer gangs of many leases than single leases.
func TestGangsAreServedInParts(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 4))
	const size = maxAttemptsPerPass/2 + 1
	for gang := range 4 {
		for range size {
			s := gangSpec(fmt.Sprintf("g%d", gang), size, 1)
			s.HostId = "h1" // too few slots
			w.create(s)
		}
	}
	_ = w.m.update(t.Context(), func(tx *tx) error {
		tx.attempts, tx.capacityGrew = 0, true
		if tx.serve(); len(tx.pass.tried) != 2 {
			t.Errorf("%d gangs of %d leases were tried at once, want 2", len(tx.pass.tried), size)
		}
		return nil
	})
	w.settle()
	_ = w.m.view(func(tx *tx) error {
		if tx.pass.active {
			t.Error("the queue is not served to its end")
		}
		return nil
	})
}

// The last lease of a gang gives all of them their GPUs in its own transaction, or none:
// the parts of a gang that does not fit stay free for others.
func TestGangIsPlacedAtOnce(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), hostNode("h2", 4), boxNode("b1", 4), boxNode("b2", 4))
	busy := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	var gang []string
	for range 2 {
		gang = append(gang, w.create(gangSpec("g", 2, 4)))
	}
	w.settle()
	for _, id := range gang {
		if l := w.wantLease(id, leasePending); len(l.Bindings) > 0 || l.QueuePosition != 1 {
			t.Errorf("lease %s at %d has %d bindings", id, l.QueuePosition, len(l.Bindings))
		}
	}
	if s := w.explain(gang[0]); !strings.Contains(s, "of the 2 leases of gang g found a place before it.") {
		t.Errorf("explanation: %s", s)
	}
	w.delete(busy, true)
	w.settle()
	var at []string
	for _, id := range gang {
		at = append(at, w.wantLease(id, leaseActive).HostId)
	}
	if at[0] == at[1] {
		t.Errorf("both leases are at %s", at[0])
	}
}

// A gang holds what it needs of the queue like a large lease, and its leases do not hold
// anything against each other.
func TestGangIsNotStarved(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), hostNode("h2", 4), boxNode("b1", 4), boxNode("b2", 4))
	var small []string
	for range 40 {
		small = append(small, w.create(&dxpuv1.LeaseSpec{Count: 1, Priority: -1, Wait: true}))
	}
	w.settle()
	first := w.create(gangSpec("g", 2, 3))
	second := w.create(gangSpec("g", 2, 3))
	ended := churn(w, second, small, -1)
	w.settle()
	w.wantLease(first, leaseActive)
	w.wantLease(second, leaseActive)
	if ended > 16 {
		t.Errorf("%d small leases ended before the gang got its GPUs", ended)
	}
}

// A gang that could never fit holds nothing.
func TestHopelessGangHoldsNothing(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 4))
	for range 2 {
		w.create(&dxpuv1.LeaseSpec{Count: 3, Wait: true, Priority: 1, Gang: &dxpuv1.Gang{Name: "g", Size: 2}})
	}
	w.wantLease(w.create(&dxpuv1.LeaseSpec{Count: 4}), leaseBinding)
}

// A gang counts as waiting from when it is complete, so its age does not come from a
// lease that waited for the others.
func TestGangAgesOnceComplete(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 4))
	w.create(&dxpuv1.LeaseSpec{Count: 4})
	early := w.create(gangSpec("g", 2, 1))
	w.passReporting(agingTime + time.Minute)
	single := w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true})
	w.pass(time.Second)
	late := w.create(gangSpec("g", 2, 1))
	for id, want := range map[string]uint32{single: 1, early: 2, late: 2} {
		if l := w.lease(id); l.QueuePosition != want {
			t.Errorf("lease %s is at %d, want %d", id, l.QueuePosition, want)
		}
	}
}

// A gang that is preempted returns to the queue as a whole, as one victim.
func TestGangIsPreemptedAsOne(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), hostNode("h2", 4), boxNode("b1", 4))
	var gang []string
	for range 2 {
		s := gangSpec("g", 2, 2)
		s.Preemptible = true
		gang = append(gang, w.create(s))
	}
	w.settle()
	high := w.create(&dxpuv1.LeaseSpec{Count: 1, Priority: 1})
	w.settle()
	w.wantLease(high, leaseActive)
	for _, id := range gang {
		w.wantLease(id, leasePending)
	}
	if s := w.events(); strings.Count(s, "is preempted: it gives 2 GPUs to lease "+high) != 2 {
		t.Errorf("events: %s", s)
	}
	w.delete(high, true)
	w.settle()
	for _, id := range gang {
		w.wantLease(id, leaseActive)
	}
}

// A dry run of the last lease of a gang places all of it; of another one it says what is
// missing.
func TestExplainGang(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), hostNode("h2", 4), boxNode("b1", 8))
	explain := func(s *dxpuv1.LeaseSpec) (string, bool) {
		res, err := w.api().ExplainLease(context.Background(), connect.NewRequest(&dxpuv1.ExplainLeaseRequest{What: &dxpuv1.ExplainLeaseRequest_Spec{Spec: s}}))
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(res.Msg.Explanation, len(res.Msg.GpuIds)), res.Msg.Satisfied
	}
	if s, ok := explain(gangSpec("g", 2, 4)); ok || !strings.Contains(s, "Gang g would have 1 of its 2 leases") {
		t.Errorf("the first: %t, %s", ok, s)
	}
	w.create(gangSpec("g", 2, 4))
	if s, ok := explain(gangSpec("g", 2, 4)); !ok || !strings.HasSuffix(s, " 4") {
		t.Errorf("the second: %t, %s", ok, s)
	}
	if s, ok := explain(gangSpec("g", 2, 5)); ok || !strings.Contains(s, "This is about the new lease") {
		t.Errorf("one that does not fit: %t, %s", ok, s)
	}
}

// Leases of a gang keep their state over a change of leader.
func TestGangIsStored(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 4))
	for range 2 {
		w.create(gangSpec("g", 2, 3))
	}
	_ = w.m.view(func(tx *tx) error {
		fresh := rebuilt(tx)
		if n := len(fresh.pendingByShape); n != 1 {
			t.Errorf("%d shapes wait, want one for the gang", n)
		}
		return nil
	})
}

// TestGangPreemptsNoMoreThanItUses has a gang for which few choices of victims are tried,
// and cheap victims that do not help it.
func TestGangPreemptsNoMoreThanItUses(t *testing.T) {
	useless, useful := boxNode("b1", 60), boxNode("b2", 40)
	useless.labels, useful.labels = map[string]string{"fast": "no"}, map[string]string{"fast": "yes"}
	w := newWorld(t, Config{}, hostNode("h1", 140), useless, useful)
	for range 60 {
		w.create(&dxpuv1.LeaseSpec{Count: 1, Priority: -2, Preemptible: true, BoxLabels: useless.labels})
	}
	w.settle()
	for range 40 {
		w.create(&dxpuv1.LeaseSpec{Count: 1, Priority: -1, Preemptible: true, BoxLabels: useful.labels})
	}
	w.settle()
	const size = 32
	for range size {
		s := gangSpec("g", size, 1)
		s.BoxLabels = useful.labels
		w.create(s)
	}
	w.settle()
	if n := strings.Count(w.events(), " is preempted: "); n != size {
		t.Errorf("%d leases were preempted, %d are needed", n, size)
	}
}

// A gang whose quota by model admits no model for all of it gets several, and holds none
// that it may not have.
func TestGangOfSeveralModels(t *testing.T) {
	t4, a100 := boxNode("b1", 2), boxNode("b2", 2)
	t4.model, a100.model = "T4", "A100"
	w := newWorld(t, Config{}, hostNode("h1", 4), hostNode("h2", 4), t4, a100)
	gang := func(name string) (ids []string) {
		for range 2 {
			s := gangSpec(name, 2, 1)
			s.Tenant = "a"
			ids = append(ids, w.create(s))
		}
		w.settle()
		return ids
	}
	models := func(ids []string) (out string) {
		for _, id := range ids {
			out += w.nodes[w.wantLease(id, leaseActive).Bindings[0].BoxId].model + " "
		}
		return out
	}
	w.putTenant("a", &dxpuv1.Quota{MaxGpusByModel: map[string]uint32{"T4": 1, "A100": 1}})
	mixed := gang("mixed")
	if s := models(mixed); s != "A100 T4 " && s != "T4 A100 " {
		t.Errorf("the gang has %s", s)
	}
	w.delete(mixed[0], true)
	w.delete(mixed[1], true)
	w.settle()
	w.putTenant("a", &dxpuv1.Quota{MaxGpusByModel: map[string]uint32{"T4": 1}})
	w.create(&dxpuv1.LeaseSpec{Count: 1, Model: "T4", Tenant: "a"})
	if alike := gang("alike"); models(alike) != "A100 A100 " {
		t.Errorf("a gang that may have one model has %s", models(alike))
	}
	waits := gang("waits")
	if s := w.explain(waits[0]); !strings.Contains(s, "that its quota allows") && !strings.Contains(s, "found a place before it") {
		t.Errorf("the last gang waits: %s", s)
	}
	w.putTenant("b", &dxpuv1.Quota{})
	w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "b", Priority: -1, Model: "T4"})
}
