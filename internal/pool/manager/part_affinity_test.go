package manager

import (
	"context"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// affine returns the spec of a part that is on one GPU with the others of its label.
func affine(mib uint64, compute uint32) *dxpuv1.LeaseSpec {
	s := part(mib, compute)
	s.PartRules = &dxpuv1.PartRules{Affinity: "pair"}
	return s
}

// wantPair fails the test unless two leases are active on one GPU of a box.
func (w *world) wantPair(t *testing.T, box string, leases ...string) {
	t.Helper()
	gpus := map[string]bool{}
	for _, id := range leases {
		l := w.wantLease(id, leaseActive)
		for _, b := range l.Bindings {
			if b.State == dxpuv1.BindingState_BINDING_STATE_ATTACHED {
				gpus[b.PartOfGpuId] = true
				if b.BoxId != box {
					t.Errorf("lease %s has GPU %s, want one of %s", id, b.PartOfGpuId, box)
				}
			}
		}
	}
	if len(gpus) != 1 {
		t.Errorf("the leases have GPUs %v, want one", gpus)
	}
}

// Parts with an affinity leave a GPU that fails together.
func TestFailedGPUOfPartsWithAffinity(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 1), dividedBox("b2", 1))
	a, b := w.create(affine(256, 300)), w.create(affine(256, 300))
	w.settle()
	w.wantPair(t, "b1", a, b)
	w.nodes["b1"].dead[0] = true
	w.settle()
	w.wantPair(t, "b2", a, b)
}

// Parts with an affinity that leave a GPU pass one by that has the room for all of them, but not
// the slots.
func TestFailedGPUOfPartsWithAffinityNeedsSlots(t *testing.T) {
	few := dividedBox("b2", 1)
	few.divided = 2
	w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 1), few, dividedBox("b3", 1))
	a, b := w.create(affine(256, 300)), w.create(affine(256, 300))
	w.settle()
	w.wantPair(t, "b1", a, b)
	other := part(64, 50)
	other.GpuIds = []string{"b2/0"}
	w.wantLease(w.create(other), dxpuv1.LeaseState_LEASE_STATE_BINDING)
	w.settle()
	w.nodes["b1"].dead[0] = true
	w.settle()
	w.wantPair(t, "b3", a, b)
}

// Parts with an affinity leave a GPU that is drained.
func TestDrainOfPartsWithAffinity(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 1), dividedBox("b2", 1))
	a, b := w.create(affine(256, 300)), w.create(affine(256, 300))
	w.settle()
	w.wantPair(t, "b1", a, b)
	w.drain(&dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: "b1/0"}}, 0)
	w.settle()
	w.settle()
	w.wantPair(t, "b2", a, b)
	if g := w.gpu("b1/0"); !g.Drained {
		t.Errorf("GPU %v is not drained", g)
	}
}

// A part that is alone with its affinity leaves a GPU that is drained.
func TestDrainOfOnePartWithAffinity(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 1), dividedBox("b2", 1))
	a := w.create(affine(256, 300))
	w.settle()
	w.drain(&dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: "b1/0"}}, 0)
	w.settle()
	w.wantPair(t, "b2", a)
}

// Parts with an affinity move where all of them have room, and not one by one where they
// would part.
func TestDrainNeedsRoomForAllWithAffinity(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 6), dividedBox("b1", 1), dividedBox("b2", 1), dividedBox("b3", 1))
	a, b := w.create(affine(256, 300)), w.create(affine(512, 400))
	o := w.create(part(512, 400)) // no room for it beside them
	w.settle()
	w.wantPair(t, "b1", a, b)
	away := map[string]string{"b2": "b3", "b3": "b2"}[w.lease(o).Bindings[0].BoxId]
	w.drain(atBox(away), 0)
	w.settle()
	w.drain(atGPU("b1/0"), 0)
	w.settle()
	w.wantPair(t, "b1", a, b) // there is room for one of them
	if _, err := w.api().Uncordon(context.Background(), connect.NewRequest(&dxpuv1.UncordonRequest{Target: atBox(away)})); err != nil {
		t.Fatal(err)
	}
	w.settle()
	w.settle()
	w.wantPair(t, away, a, b)
}

// A part joins those of its affinity only, also while their box takes no bindings.
func TestAffinityToABoxThatTakesNoBindings(t *testing.T) {
	for how, away := range map[string]func(*world){
		"cordoned": func(w *world) {
			if _, err := w.api().Cordon(context.Background(), connect.NewRequest(&dxpuv1.CordonRequest{Target: atBox("b1")})); err != nil {
				t.Fatal(err)
			}
		},
		"silent": func(w *world) {
			w.nodes["b1"].down = true
			w.passReporting(time.Minute)
		},
	} {
		w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 1), dividedBox("b2", 1))
		w.create(affine(256, 300))
		w.settle()
		away(w)
		if id, err := w.tryCreate(affine(256, 300)); err == nil || !strings.Contains(err.Error(), "1 is cordoned, has failed or does not report") {
			t.Errorf("%s: lease %s, error %v", how, id, err)
		}
	}
}

// Parts with an affinity leave a box that does not report once their host has lost them.
func TestLostBoxOfPartsWithAffinity(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 1), dividedBox("b2", 1))
	a, b := w.create(affine(256, 300)), w.create(affine(256, 300))
	w.settle()
	w.nodes["b1"].down = true
	w.passReporting(time.Minute)
	w.nodes["h1"].linkDown = true
	w.rounds(1)
	w.nodes["h1"].linkDown = false
	w.passReporting(time.Minute)
	w.wantPair(t, "b2", a, b)
}

// Parts with an affinity that lose their GPU together go where all of them have room, and not one
// by one where they would part, also if the GPU has been pulled.
func TestFailedGPUNeedsRoomForAllWithAffinity(t *testing.T) {
	for how, breaks := range map[string]func(*fakeNode){
		"failed": func(n *fakeNode) { n.dead[0] = true },
		"pulled": func(n *fakeNode) { n.models = map[uint32]string{0: ""} },
	} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t, Config{}, hostNode("h1", 6), dividedBox("b1", 1), dividedBox("b2", 1), dividedBox("b3", 1))
			a, b := w.create(affine(256, 300)), w.create(affine(512, 400))
			o := w.create(part(512, 400)) // no room for it beside them
			w.settle()
			w.wantPair(t, "b1", a, b)
			away := map[string]string{"b2": "b3", "b3": "b2"}[w.lease(o).Bindings[0].BoxId]
			breaks(w.nodes["b1"])
			w.settle()
			w.wantPair(t, away, a, b)
		})
	}
}

// A part that must join another one is attached there again if that fails: other GPUs are none
// for it.
func TestAttachFailsBesideAPartWithAffinity(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 1), dividedBox("b2", 1))
	a := w.create(affine(256, 300))
	w.settle()
	w.nodes["b1"].refuses = true
	b := w.create(affine(256, 300))
	w.rounds(2)
	w.nodes["b1"].refuses = false
	w.settle()
	w.wantPair(t, "b1", a, b)
	w.nodes["b1"].refuses = true
	c := w.create(affine(256, 300))
	w.settle()
	w.wantLease(c, leaseFailed)
}

// Parts with an affinity may have lost several GPUs, one after the other, and ask for more than
// one GPU together: placement looks for no such part.
func TestLostPartsWithAffinityBeyondOneGPU(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 6), dividedBox("b1", 1), dividedBox("b2", 1))
	a := w.create(affine(256, 600))
	w.create(part(256, 500)) // so that the other GPU has no room for it
	w.settle()
	w.wantPair(t, "b1", a)
	w.nodes["b1"].dead[0] = true
	w.settle()
	b := w.create(affine(256, 500))
	w.settle()
	w.wantPair(t, "b2", b)
	w.nodes["b2"].dead[0] = true
	w.settle()
	_ = w.m.peek(func(tx *tx) error {
		if all, _ := tx.lostPart(tx.leases.get(a)); all != nil {
			t.Errorf("a part of %d thousandths is sought", all.Compute)
		}
		return nil
	})
}
