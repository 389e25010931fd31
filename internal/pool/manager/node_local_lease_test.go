package manager

import (
	"strings"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// A failed GPU of a machine is replaced by another one there, and by no other.
func TestLocalGPUFails(t *testing.T) {
	host, box := localMachine("m1", 2)
	w := newWorld(t, Config{}, dividedBox("b1", 2), host, box)
	id := w.create(at("m1", part(600, 600)))
	w.settle()
	was := w.lease(id).Bindings[0].PartOfGpuId
	_, gpu, _ := strings.Cut(was, "/")
	box.dead[uint32(gpu[0]-'0')] = true
	w.settle()
	if l := w.wantLease(id, leaseActive); l.Bindings[len(l.Bindings)-1].BoxId != "m1-gpus" || l.Bindings[len(l.Bindings)-1].PartOfGpuId == was {
		t.Errorf("bindings %v", l.Bindings)
	}
	box.dead[0], box.dead[1] = true, true
	w.settle()
	if l := w.lease(id); l.State == leaseActive || len(w.nodes["b1"].has) > 0 {
		t.Errorf("lease %v, box b1 has %v", l, w.nodes["b1"].has)
	}
}

// A lease whose GPU has no substitute on its machine says so, whatever is free elsewhere, and
// gets the next one that becomes free there, a spare or not.
func TestLocalGPUHasNoSubstitute(t *testing.T) {
	for name, spec := range map[string]*dxpuv1.LeaseSpec{"a GPU": {Count: 1}, "a part": part(600, 600)} {
		t.Run(name, func(t *testing.T) {
			host, box := localMachine("m1", 2)
			w := newWorld(t, Config{Reserve: placement.Reserve{Count: 2}}, dividedBox("b1", 2), host, box)
			id, other := w.create(at("m1", proto.CloneOf(spec))), w.create(at("m1", &dxpuv1.LeaseSpec{Count: 1}))
			w.settle()
			was := w.lease(id).Bindings[0]
			gpu := was.BoxSlot
			if part := was.PartOfGpuId; part != "" {
				gpu = uint32(part[len(part)-1] - '0')
			}
			box.dead[gpu] = true
			w.settle()
			const why = "no other GPU of host m1 can replace it yet, and a host with GPUs of its own gets no others"
			if l := w.wantLease(id, leaseDegraded); !strings.Contains(l.StateReason, why) {
				t.Errorf("state reason %q", l.StateReason)
			}
			w.wantEvents("is in use")
			if len(w.nodes["b1"].has) > 0 {
				t.Errorf("box b1 has %v", w.nodes["b1"].has)
			}
			w.delete(other, true)
			w.settle()
			if l := w.wantLease(id, leaseActive); l.Bindings[len(l.Bindings)-1].BoxId != "m1-gpus" || l.Bindings[len(l.Bindings)-1].State != attached {
				t.Errorf("bindings %v", l.Bindings)
			}
		})
	}
}

// The quota of a tenant counts the GPUs of a machine as any others.
func TestLocalGPUsInQuota(t *testing.T) {
	host, box := localMachine("m1", 3)
	w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 3), host, box)
	w.putTenant("a", &dxpuv1.Quota{MaxGpus: 2, MaxGpusByModel: map[string]uint32{"DX100": 2}})
	of := func(s *dxpuv1.LeaseSpec) *dxpuv1.LeaseSpec {
		s.Tenant = "a"
		return s
	}
	w.create(of(at("m1", &dxpuv1.LeaseSpec{Count: 1})))
	half := w.create(of(at("m1", part(512, 500))))
	w.settle()
	for what, s := range map[string]*dxpuv1.LeaseSpec{
		"a GPU elsewhere": {Count: 1}, "a GPU of the machine": {Count: 1, HostId: "m1"}, "a part of the machine": at("m1", part(700, 600)), "a part elsewhere": part(700, 600),
	} {
		w.wantNoCapacity(what, of(s), "that its quota allows")
	}
	w.delete(half, true)
	w.settle()
	w.create(of(&dxpuv1.LeaseSpec{Count: 1}))
	w.wantNoCapacity("a GPU of the machine beside one elsewhere", of(at("m1", &dxpuv1.LeaseSpec{Count: 1})), "that its quota allows")
}

// A lease preempts for a GPU of its own machine only leases there, and leases elsewhere
// preempt none there.
func TestLocalGPUsArePreemptedByTheirHost(t *testing.T) {
	low := func(s *dxpuv1.LeaseSpec) *dxpuv1.LeaseSpec {
		s.Preemptible = true
		return s
	}
	for name, tt := range map[string]struct {
		there []*dxpuv1.LeaseSpec // on b1, m1 and m2, with a GPU each; nil: a GPU that is not preemptible
		comes *dxpuv1.LeaseSpec
		gone  int // the one that is preempted; -1: none
	}{
		"a GPU of its machine":                {[]*dxpuv1.LeaseSpec{low(at("h1", part(900, 900))), low(at("m1", part(900, 900))), low(at("m2", part(900, 900)))}, &dxpuv1.LeaseSpec{Count: 1, HostId: "m1"}, 1},
		"a part of its machine":               {[]*dxpuv1.LeaseSpec{low(&dxpuv1.LeaseSpec{Count: 1}), low(at("m1", &dxpuv1.LeaseSpec{Count: 1})), nil}, at("m1", part(100, 100)), 1},
		"a GPU of the pool":                   {[]*dxpuv1.LeaseSpec{low(&dxpuv1.LeaseSpec{Count: 1}), low(at("m1", part(500, 500))), low(at("m2", part(100, 100)))}, &dxpuv1.LeaseSpec{Count: 1}, 0},
		"only leases elsewhere":               {[]*dxpuv1.LeaseSpec{low(&dxpuv1.LeaseSpec{Count: 1}), nil, low(at("m2", &dxpuv1.LeaseSpec{Count: 1}))}, &dxpuv1.LeaseSpec{Count: 1, HostId: "m1"}, -1},
		"only leases on machines":             {[]*dxpuv1.LeaseSpec{nil, low(at("m1", &dxpuv1.LeaseSpec{Count: 1})), low(at("m2", part(900, 900)))}, &dxpuv1.LeaseSpec{Count: 1}, -1},
		"only leases on machines, for a part": {[]*dxpuv1.LeaseSpec{nil, low(at("m1", part(900, 900))), low(at("m2", part(900, 900)))}, at("h1", part(500, 500)), -1},
	} {
		t.Run(name, func(t *testing.T) {
			m1, gpus1 := localMachine("m1", 1)
			m2, gpus2 := localMachine("m2", 1)
			w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 1), m1, gpus1, m2, gpus2)
			there := make([]string, len(tt.there))
			for i, s := range tt.there {
				if s == nil {
					s = at([]string{"h1", "m1", "m2"}[i], &dxpuv1.LeaseSpec{Count: 1})
				}
				there[i] = w.create(proto.CloneOf(s))
			}
			w.settle()
			s := proto.CloneOf(tt.comes)
			s.Priority, s.Wait = 5, true
			id := w.create(s)
			w.settle()
			want := leaseActive
			if tt.gone < 0 {
				want = leasePending
				if why := w.explain(id); !strings.Contains(why, "nothing that it can use now") {
					t.Errorf("explanation: %s", why)
				}
			}
			w.wantLease(id, want)
			for i, o := range there {
				if want = leaseActive; i == tt.gone {
					want = leaseReleased
				}
				w.wantLease(o, want)
			}
		})
	}
}

// A tenant takes the GPUs back that are guaranteed to it, but not those of machines whose
// hosts it does not name.
func TestLocalGPUsAreNotReclaimedByOthers(t *testing.T) {
	host, box := localMachine("m1", 1)
	w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 1), host, box)
	one, none := uint32(1), uint32(0)
	w.putTenant("owner", &dxpuv1.Quota{GuaranteedGpus: &one})
	w.putTenant("guest", &dxpuv1.Quota{GuaranteedGpus: &none})
	w.create(&dxpuv1.LeaseSpec{Count: 1, HostId: "h1"})
	guest := w.create(at("m1", &dxpuv1.LeaseSpec{Count: 1, Tenant: "guest", Preemptible: true}))
	w.settle()
	if id, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1, Tenant: "owner"}); connect.CodeOf(err) != connect.CodeResourceExhausted {
		t.Errorf("lease %s, %v", id, err)
	}
	w.wantLease(guest, leaseActive)
	id := w.create(at("m1", &dxpuv1.LeaseSpec{Count: 1, Tenant: "owner"}))
	w.settle()
	w.wantLease(id, leaseActive)
	w.wantLease(guest, leaseReleased)
}
