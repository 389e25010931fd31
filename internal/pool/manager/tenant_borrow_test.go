package manager

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

func guaranteed(n, weight uint32) *dxpuv1.Quota {
	return &dxpuv1.Quota{GuaranteedGpus: proto.Uint32(n), Weight: weight}
}

func (w *world) tenant(id string) *dxpuv1.Tenant {
	w.t.Helper()
	res, err := w.api().GetTenant(context.Background(), connect.NewRequest(&dxpuv1.GetTenantRequest{TenantId: id}))
	if err != nil {
		w.t.Fatalf("tenant %s: %v", id, err)
	}
	return res.Msg.Tenant
}

// A tenant below its guarantee goes first in its priority, though another one has fewer
// GPUs and waits for longer.
func TestGuaranteeGoesFirst(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 4))
	w.putTenant("a", guaranteed(4, 0))
	w.putTenant("other", nil)
	w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: "a"})
	rest := w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: "other"})
	other := w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: "other", Wait: true})
	own := w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: "a", Wait: true})
	w.settle()
	if p, q := w.lease(own).QueuePosition, w.lease(other).QueuePosition; p != 1 || q != 2 {
		t.Errorf("positions %d and %d", p, q)
	}
	if s := w.explain(own); !strings.Contains(s, "tenant a has 2 GPUs, with a guarantee of 4") || !strings.Contains(s, "or borrowed GPUs") {
		t.Errorf("explanation: %s", s)
	}
	w.delete(rest, true)
	w.settle()
	w.wantLease(own, leaseActive)
	w.wantLease(other, leasePending)
}

// A tenant that gets a GPU above its guarantee borrows with its older leases by that, and one in
// the queue takes back what it borrows.
func TestReclaimFromTheOneThatGrew(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 3))
	w.putTenant("a", guaranteed(2, 0))
	w.putTenant("b", guaranteed(2, 0))
	old := w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: "b", Preemptible: true})
	waits := w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: "a", Priority: -1, Wait: true})
	w.settle()
	w.wantLease(waits, leasePending)
	more := w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "b"})
	w.settle()
	w.wantLease(more, leaseActive)
	w.wantLease(old, dxpuv1.LeaseState_LEASE_STATE_RELEASED)
	w.wantLease(waits, leaseActive)
}

// A tenant takes back GPUs on the host that it needs, though the leases there are the oldest
// of those that borrow. No tenant loses more than it borrows by that.
func TestReclaimOnTheHost(t *testing.T) {
	for _, c := range []struct {
		host  string
		count uint32
		lost  []int // of the leases of b, in their order
	}{
		{"h1", 2, []int{0, 1}},
		{"h1", 1, []int{1}},
		{"h2", 2, []int{4, 5}},
	} {
		w := newWorld(t, Config{}, hostNode("h1", 2), hostNode("h2", 4), hostNode("h3", 8), boxNode("b1", 8))
		w.putTenant("a", guaranteed(4, 0))
		w.putTenant("b", guaranteed(3, 0))
		var ids []string
		for i := range 6 {
			host := "h1"
			if i > 1 {
				host = "h2"
			}
			ids = append(ids, w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "b", HostId: host, Preemptible: true}))
		}
		w.settle()
		own := w.create(&dxpuv1.LeaseSpec{Count: c.count, Tenant: "a", HostId: c.host})
		w.settle()
		w.wantLease(own, leaseActive)
		for i, id := range ids {
			if lost := w.lease(id).State != leaseActive; lost != slices.Contains(c.lost, i) {
				t.Errorf("%d on %s: lease %d of the tenant that borrows is lost: %v", c.count, c.host, i, lost)
			}
		}
	}
}

// A tenant takes back GPUs of the model that it needs, though the leases that have them are
// the oldest of those that borrow.
func TestReclaimTheModel(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 4), modelBox("b2", "T4"))
	w.putTenant("a", guaranteed(1, 0))
	w.putTenant("b", guaranteed(3, 0))
	w.create(&dxpuv1.LeaseSpec{Count: 1, Model: "T4"}) // the other GPU of the model
	old := w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "b", Model: "T4", Preemptible: true})
	var others []string
	for range 3 {
		others = append(others, w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "b", Model: "DX100", Preemptible: true}))
	}
	w.settle()
	own := w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a", Model: "T4"})
	w.settle()
	w.wantLease(own, leaseActive)
	if w.lease(old).State == leaseActive {
		t.Error("the borrowed GPU of the model is kept")
	}
	for _, id := range others {
		w.wantLease(id, leaseActive)
	}
}

// A tenant takes back the GPU, or the slots of the host, that it asks for by other properties,
// though the lease that has it is the oldest of those that borrow.
func TestReclaimWhatIsAsked(t *testing.T) {
	for name, s := range map[string]*dxpuv1.LeaseSpec{
		"box label":   {BoxLabels: map[string]string{"site": "x"}},
		"memory":      {MinMemoryBytes: 2 << 30},
		"GPU":         {GpuIds: []string{"b2/0"}},
		"kind of box": {BoxKind: dxpuv1.BoxKind_BOX_KIND_NVLINK},
		"host label":  {HostLabels: map[string]string{"site": "x"}},
	} {
		t.Run(name, func(t *testing.T) {
			b2, h2 := boxNode("b2", 1), hostNode("h2", 1)
			b2.labels, b2.memory, b2.boxKind = map[string]string{"site": "x"}, 2<<30, dxpuv1.BoxKind_BOX_KIND_NVLINK
			h2.labels = b2.labels
			w := newWorld(t, Config{}, hostNode("h1", 8), h2, boxNode("b1", 3), b2)
			w.putTenant("a", guaranteed(1, 0))
			w.putTenant("b", guaranteed(3, 0))
			old := w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "b", GpuIds: []string{"b2/0"}, HostId: "h2", Preemptible: true})
			var others []string
			for range 3 {
				others = append(others, w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "b", HostId: "h1", Preemptible: true}))
			}
			w.settle()
			s.Count, s.Tenant = 1, "a"
			own := w.create(s)
			w.settle()
			w.wantLease(own, leaseActive)
			if w.lease(old).State == leaseActive {
				t.Error("the borrowed GPU that was asked for is kept")
			}
			for _, id := range others {
				w.wantLease(id, leaseActive)
			}
		})
	}
}

// Of two tenants that borrow, the one that has more for its weight gives GPUs back.
func TestReclaimFollowsTheWeights(t *testing.T) {
	for _, tt := range []struct {
		weight uint32 // of b, which borrows three; c borrows two
		want   string
	}{{1, "b"}, {2, "c"}} {
		t.Run(fmt.Sprint(tt.weight), func(t *testing.T) {
			w := newWorld(t, Config{}, hostNode("h1", 16), boxNode("b1", 5))
			w.putTenant("a", guaranteed(5, 0))
			w.putTenant("b", guaranteed(0, tt.weight))
			w.putTenant("c", guaranteed(0, 1))
			borrowed := map[string][]string{}
			for _, tenant := range []string{"c", "c", "b", "b", "b"} {
				borrowed[tenant] = append(borrowed[tenant], w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: tenant, Preemptible: true, Wait: true}))
			}
			w.settle()
			w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a", Priority: -9})
			w.settle()
			for tenant, ids := range borrowed {
				waiting := 0
				for _, id := range ids {
					if w.lease(id).State == leasePending {
						waiting++
					}
				}
				if want := map[bool]int{true: 1}[tenant == tt.want]; waiting != want {
					t.Errorf("tenant %s lost %d leases, want %d", tenant, waiting, want)
				}
			}
		})
	}
}

// A tenant at its guarantee keeps its GPUs whatever the priority of others, and loses
// those above it to the ordinary rules.
func TestGuaranteeHoldsAgainstPriority(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 4))
	w.putTenant("a", guaranteed(2, 0))
	w.putTenant("other", &dxpuv1.Quota{MaxPriority: proto.Int32(50)})
	old := w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: "a", Preemptible: true})
	young := w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: "a", Preemptible: true, Wait: true})
	w.settle()
	if n := w.tenant("a"); n.BorrowedGpus != 2 || n.Quota.GetGuaranteedGpus() != 2 {
		t.Errorf("%v", n)
	}
	if _, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 3, Tenant: "other", Priority: 50}); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("three GPUs: %v", err)
	}
	high := w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: "other", Priority: 50})
	w.settle()
	w.wantLease(high, leaseActive)
	w.wantLease(old, leaseActive)
	w.wantLease(young, leasePending)
	_, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1, Tenant: "other", Priority: 50})
	wantErr(t, err, connect.CodeResourceExhausted, "Of the preemptible leases of lower priority, 1 has GPUs within the guarantee of another tenant.")
}

// The GPUs held for a lease of another tenant do not keep a tenant from its guarantee.
func TestGuaranteeIgnoresReservations(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 4))
	w.putTenant("a", guaranteed(2, 0))
	w.putTenant("b", guaranteed(0, 0))
	w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.create(&dxpuv1.LeaseSpec{Count: 4, Tenant: "b", Priority: 0, Preemptible: true, Wait: true})
	w.settle()
	w.wantLease(w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: "a", Priority: -50}), leaseBinding)
}

// An unlimited guarantee, and the bounds of it.
func TestGuaranteeIsChecked(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), boxNode("b1", 8))
	_, err := w.api().PutTenant(context.Background(), connect.NewRequest(&dxpuv1.PutTenantRequest{
		Tenant: &dxpuv1.Tenant{Id: "a", Quota: &dxpuv1.Quota{GuaranteedGpus: proto.Uint32(5), MaxGpus: 4}},
	}))
	wantErr(t, err, connect.CodeInvalidArgument, "tenant.quota.guaranteed_gpus: 5 is above max_gpus, which is 4")
	w.putTenant("a", guaranteed(2, 0))
	l := w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: "a"})
	w.settle()
	if err := w.resize(l, 3, 0); connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "needs spec.preemptible") {
		t.Errorf("a lease grows above the guarantee: %v", err)
	}
	w.putTenant("a", guaranteed(1<<32-1, 0))
	if err := w.resize(l, 3, 0); err != nil {
		t.Errorf("a guarantee of all GPUs there are: %v", err)
	}
}

// TestGuaranteeAfterAHandOver has a lease within a guarantee that waits while the GPUs go from
// one borrowing lease to another: it gets them from the second one as soon as that has them.
func TestGuaranteeAfterAHandOver(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 1))
	w.putTenant("a", guaranteed(1, 0))
	q := guaranteed(0, 0)
	q.MaxPriority = proto.Int32(1)
	w.putTenant("b", q)
	w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "b", Preemptible: true, Wait: true})
	w.settle()
	w.nodes["h1"].holds = "a driver has it"
	second := w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "b", Preemptible: true, Wait: true, Priority: 1})
	w.settle()
	w.wantLease(second, leaseBinding)
	id := w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "a", Wait: true})
	w.settle()
	w.wantLease(id, leasePending)
	w.nodes["h1"].holds = ""
	w.settle()
	w.settle()
	w.wantLease(id, leaseActive)
}

// Whatever tenants with guarantees do: GPUs above a guarantee are in preemptible leases,
// and at rest no tenant waits for GPUs within its guarantee while others borrow.
func TestGuaranteesHold(t *testing.T) {
	if raceEnabled {
		fewerChecks(t)
	}
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t, Config{}, hostNode("h1", 16), boxNode("b1", 4), boxNode("b2", 4))
		guarantees := map[string]uint32{"a": 4, "b": 3, "c": 1} // all GPUs
		for id, n := range guarantees {
			q := guaranteed(n, rapid.Uint32Range(0, 3).Draw(t, "weight"))
			q.MaxPriority = proto.Int32(2)
			w.putTenant(id, q)
		}
		var leases []string
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				id, err := w.tryCreate(&dxpuv1.LeaseSpec{
					Count: rapid.Uint32Range(1, 2).Draw(t, "count"), Tenant: rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant"),
					Priority: rapid.Int32Range(-2, 2).Draw(t, "priority"), Preemptible: rapid.IntRange(0, 3).Draw(t, "preemptible") > 0, Wait: true,
				})
				if err == nil {
					leases = append(leases, id)
				}
			},
			"reserve": func(t *rapid.T) {
				s := w.later(rapid.Uint32Range(1, 4).Draw(t, "count"), time.Duration(rapid.IntRange(2, 60).Draw(t, "min"))*time.Minute, time.Hour)
				s.Tenant, s.Preemptible = rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "tenant"), rapid.Bool().Draw(t, "preemptible")
				if id, err := w.tryCreate(s); err == nil {
					leases = append(leases, id)
				}
			},
			"pass": func(t *rapid.T) { w.passReporting(time.Duration(rapid.IntRange(1, 120).Draw(t, "s")) * time.Second) },
			"delete": func(t *rapid.T) {
				if len(leases) > 0 {
					w.delete(rapid.SampledFrom(leases).Draw(t, "lease"), true)
				}
			},
			"settle": func(*rapid.T) { w.settle() },
			"": func(t *rapid.T) {
				_ = w.m.view(func(tx *tx) error {
					for id, n := range guarantees {
						if u := tx.usageOf(id); u.firm > wholeGPUs(n) {
							t.Fatalf("tenant %s has %v GPUs of %d in leases that are not preemptible", id, u.firm, n)
						}
					}
					return nil
				})
			},
		})
		for range 4 {
			w.settle()
		}
		for w.someBegan() {
			w.rounds(1)
			w.pass(900 * time.Millisecond) // less than the time after which a node is lost
		}
		w.settle()
		w.checkGuarantees(t, leases)
	})
}

// someBegan reports whether the pool is not at rest because promised GPUs wait for a lease
// that has begun. They wait for some minutes if the quota of its tenant does not admit it.
func (w *world) someBegan() (waits bool) {
	_ = w.m.view(func(tx *tx) error {
		for id := range tx.promises {
			waits = waits || tx.hasBegun(id)
		}
		return nil
	})
	return waits
}

// checkGuarantees checks that no tenant waits for GPUs within its guarantee which are free or
// borrowed, and neither promised nor held for the first of the queue.
func (w *world) checkGuarantees(t *rapid.T, leases []string) {
	_ = w.m.view(func(tx *tx) error {
		taken := map[placement.Ref]string{}
		for _, id := range tx.bindings.ids() {
			if b := tx.bindings.get(id); b.holdsGPU() {
				taken[b.ref()] = b.LeaseID
			}
		}
		for _, id := range leases {
			l := tx.leases.get(id)
			if l == nil || l.State != leasePending || l.sleeps() || !tx.withinGuarantee(l.spec.Tenant, l.size()) {
				continue
			}
			kept, _ := tx.promised(id, l.spec, tx.now, tx.endsBy(l.spec))
			if r := tx.reservedFrom(id, l.spec, l.size()); r != nil {
				kept = append(kept, r.gpus...)
			}
			var has []string
			for i := range uint32(8) {
				r := placement.Ref{Box: fmt.Sprint("b", 1+i/4), Slot: i % 4}
				o := tx.leases.get(taken[r])
				if !slices.Contains(kept, r) && (o == nil || o.spec.Tenant != l.spec.Tenant && tx.borrowing(o.spec.Tenant)[o.ID]) {
					has = append(has, r.String())
				}
			}
			if len(has) >= int(l.spec.Count) {
				t.Fatalf("lease %s of %d GPUs waits within the guarantee of tenant %s, and %q are free or borrowed: %s\n%s",
					id, l.spec.Count, l.spec.Tenant, has, tx.whyPending(l), w.events())
			}
		}
		return nil
	})
}

// The reservation of the first of the queue binds a gang of which only the first lease is
// within the guarantee of its tenant, and not a lease that grows within it.
func TestReservationCountsWholeGang(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 16), boxNode("b1", 8))
	w.putTenant("a", guaranteed(3, 0))
	busy := w.create(&dxpuv1.LeaseSpec{Count: 3})
	grows := w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: "a"})
	w.settle()
	w.create(&dxpuv1.LeaseSpec{Count: 8, Priority: 1, Wait: true})
	for _, n := range []uint32{1, 2} {
		s := gangSpec("g", 2, n)
		s.Tenant, s.Preemptible = "a", true
		id := w.create(s)
		w.settle()
		w.wantLease(id, leasePending)
	}
	if err := w.resize(grows, 3, 0); err != nil {
		t.Errorf("a lease grows within the guarantee: %v", err)
	}
	w.wantLease(busy, leaseActive)
}

// Two tenants with a small lease within the guarantee and a large one of higher priority
// that would borrow come to rest: the large ones wait.
func TestBorrowersComeToRest(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 16), boxNode("b1", 2))
	for _, id := range []string{"a", "b"} {
		q := guaranteed(1, 0)
		q.MaxPriority = proto.Int32(2)
		w.putTenant(id, q)
	}
	var small, large []string
	for _, id := range []string{"a", "b"} {
		large = append(large, w.create(&dxpuv1.LeaseSpec{Count: 2, Tenant: id, Priority: 2, Preemptible: true, Wait: true}))
	}
	w.settle()
	for _, id := range []string{"b", "a"} {
		small = append(small, w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: id, Priority: -1, Preemptible: true, Wait: true}))
	}
	for range 4 {
		w.settle()
	}
	for i := range small {
		w.wantLease(small[i], leaseActive)
		w.wantLease(large[i], leasePending)
	}
}
