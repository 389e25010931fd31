package manager

import (
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// localMachine is a machine that offers its own GPUs: a host, and a box with the GPUs.
func localMachine(name string, gpus int) (host, box *fakeNode) {
	host, box = hostNode(name, 4*gpus), dividedBox(name+"-gpus", gpus)
	host.peer, box.peer = box.id, host.id
	return host, box
}

// at returns a spec for a host.
func at(host string, s *dxpuv1.LeaseSpec) *dxpuv1.LeaseSpec {
	s.HostId = host
	return s
}

func (w *world) wantNoCapacity(what string, s *dxpuv1.LeaseSpec, why string) {
	w.t.Helper()
	id, err := w.tryCreate(s)
	if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), why) {
		w.t.Fatalf("%s: lease %q, %v; want %q", what, id, err, why)
	}
}

// The GPUs of a machine are for leases that name its host, and these get no others.
func TestLocalGPUs(t *testing.T) {
	host, box := localMachine("m1", 2)
	w := newWorld(t, Config{}, hostNode("h1", 8), dividedBox("b1", 1), host, box)
	remote, local, whole := w.create(part(600, 600)), w.create(at("m1", part(600, 600))), w.create(at("m1", &dxpuv1.LeaseSpec{Count: 1}))
	w.settle()
	for id, want := range map[string]string{remote: "b1", local: "m1-gpus", whole: "m1-gpus"} {
		if l := w.wantLease(id, leaseActive); l.Bindings[0].BoxId != want || (l.HostId == "m1") != (want == "m1-gpus") {
			t.Errorf("lease %s is at %s and %s, want %s", id, l.Bindings[0].BoxId, l.HostId, want)
		}
	}
	for gpu, want := range map[string]string{"b1/0": "", "m1-gpus/0": "m1", "m1-gpus/1": "m1"} {
		if g := w.gpu(gpu); g.LocalHost != want {
			t.Errorf("GPU %s is for host %q alone, want %q", gpu, g.LocalHost, want)
		}
	}
	w.wantNoCapacity("a full machine beside a free box", at("m1", part(600, 100)), "lacks the memory")
	everything := []*dxpuv1.Toleration{{AnyValue: true}}
	w.wantNoCapacity("no other host", &dxpuv1.LeaseSpec{Count: 1, Tolerations: everything}, "0 of 3 usable GPUs are free")
	w.wantNoCapacity("its GPU by name", &dxpuv1.LeaseSpec{Count: 1, GpuIds: []string{"m1-gpus/0"}}, "GPU m1-gpus/0 is for its own host alone")
	w.wantNoCapacity("a GPU of the network", at("m1", &dxpuv1.LeaseSpec{Count: 1, GpuIds: []string{"b1/0"}}), "GPU b1/0 is not one of the host's own")
	w.wantNoCapacity("two GPUs by an old agent", at("m1", &dxpuv1.LeaseSpec{Count: 2}), "gives each lease one GPU: upgrade it")
	if _, err := w.tryCreate(at("h1", part(100, 100))); err != nil {
		t.Errorf("the other host: %v", err)
	}
	if err := w.resizePart(local, &dxpuv1.Part{MemoryBytes: 1000 << 20}, 0); err != nil {
		t.Errorf("a part grows: %v", err)
	}
	w.delete(whole, true)
	w.settle()
	w.wantNoCapacity("a free GPU of the machine, with any toleration", &dxpuv1.LeaseSpec{Count: 1, Tolerations: everything}, "Of the free ones, 1 has a sharing agent, which serves leases that name its host")
	w.wantLease(w.create(at("m1", part(900, 900))), leaseBinding)
}

// A lease of several GPUs of a machine has them all there. It grows and shrinks, and waits for
// a GPU that it has lost while it keeps the others.
func TestSeveralLocalGPUs(t *testing.T) {
	host, box := localMachine("m1", 3)
	box.several = true
	w := newWorld(t, Config{}, hostNode("h1", 8), dividedBox("b1", 4), host, box)
	w.wantNoCapacity("more than there are", at("m1", &dxpuv1.LeaseSpec{Count: 4}), "The request is for 4 GPUs, and 3 are named or the host's own")
	id := w.create(at("m1", &dxpuv1.LeaseSpec{Count: 2}))
	w.settle()
	l := w.wantLease(id, leaseActive)
	if len(l.Bindings) != 2 || l.Bindings[0].BoxId != "m1-gpus" || l.Bindings[1].BoxId != "m1-gpus" {
		t.Errorf("bindings %v", l.Bindings)
	}
	w.wantNoCapacity("two of one that is left", at("m1", &dxpuv1.LeaseSpec{Count: 2}), "is in use")
	resize := func(count uint32) {
		t.Helper()
		if _, err := w.api().ResizeLease(t.Context(), connect.NewRequest(&dxpuv1.ResizeLeaseRequest{LeaseId: id, Count: count})); err != nil {
			t.Fatal(err)
		}
		w.settle()
	}
	resize(3)
	if n := len(w.nodes["m1-gpus"].has); n != 3 {
		t.Errorf("%d GPUs are bound", n)
	}
	resize(2)
	other := w.create(at("m1", &dxpuv1.LeaseSpec{Count: 1}))
	w.settle()
	lost := w.lease(id).Bindings[0].BoxSlot
	box.dead[lost] = true
	w.settle()
	if l := w.wantLease(id, leaseDegraded); !strings.Contains(l.StateReason, "no other GPU of host m1") || len(w.nodes["b1"].has) > 0 {
		t.Errorf("state reason %q", l.StateReason)
	}
	w.delete(other, true)
	w.settle()
	w.wantLease(id, leaseActive)
}

// Both nodes of a machine name each other: no host reaches the GPUs of another machine.
func TestLocalGPUsOfAnother(t *testing.T) {
	host, box := localMachine("m1", 1)
	thief := hostNode("m2", 4)
	thief.peer = box.id
	lonely := dividedBox("b9", 1)
	lonely.peer = "h1"
	w := newWorld(t, Config{}, hostNode("h1", 4), host, box, thief, lonely)
	w.wantNoCapacity("the box of m1", at("m2", part(100, 100)), "GPU m1-gpus/0 has a sharing agent")
	w.wantNoCapacity("a box that a host does not name", at("h1", part(100, 100)), "a sharing agent")
	w.wantLease(w.create(at("m1", part(100, 100))), leaseBinding)
}

// The GPUs of a machine are no spares for others, and none of them is held back for its host.
func TestLocalGPUsAreNoSpares(t *testing.T) {
	host, box := localMachine("m1", 2)
	alone, own := localMachine("m2", 1)
	own.model = "L4"
	w := newWorld(t, Config{Reserve: placement.Reserve{Count: 1}}, hostNode("h1", 8), dividedBox("b1", 2), host, box, alone, own)
	const why = "1 of each model, by the manager's settings."
	want := []*dxpuv1.SpareStatus{{Model: "DX100", Usable: 2, Free: 2, Held: 1, Wanted: 1, Explanation: why, Local: 2}, {Model: "L4", Local: 1}}
	p := w.m.totals()
	if diff := cmp.Diff(want, p.Spares, protocmp.Transform()); diff != "" || p.SparesHeld != 1 || p.GpusFree != 5 {
		t.Errorf("%d spares held, %d free (-want +got)\n%s", p.SparesHeld, p.GpusFree, diff)
	}
	w.create(&dxpuv1.LeaseSpec{Count: 1, HostId: "h1"})
	w.wantNoCapacity("the spare", &dxpuv1.LeaseSpec{Count: 1, HostId: "h1"}, "1 of them held back as spares")
	w.wantNoCapacity("a part of the spare", at("h1", part(100, 100)), "1 of them held back as spares")
	w.create(at("m1", &dxpuv1.LeaseSpec{Count: 1}))
	w.create(at("m1", part(100, 100)))
	w.create(at("m2", &dxpuv1.LeaseSpec{Count: 1}))
	w.settle()
	p = w.m.totals()
	want[0].Free = 1
	if diff := cmp.Diff(want, p.Spares, protocmp.Transform()); diff != "" || p.GpusFree != 1 {
		t.Errorf("%d free (-want +got)\n%s", p.GpusFree, diff)
	}
}
