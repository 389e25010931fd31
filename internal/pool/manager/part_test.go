package manager

import (
	"context"
	"strings"
	"testing"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// dividedBox is a box whose GPUs of 1 GiB have four slots for parts each.
func dividedBox(id string, gpus int) *fakeNode {
	b := boxNode(id, gpus)
	b.divided = 4
	return b
}

// part returns the spec of a part of MiB of memory and thousandths of compute.
func part(mib uint64, compute uint32) *dxpuv1.LeaseSpec {
	return &dxpuv1.LeaseSpec{Count: 1, Part: &dxpuv1.Part{MemoryBytes: mib << 20, Compute: compute}}
}

func TestLeaseOfAPart(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 2))
	a := w.create(part(512, 300))
	b := w.create(part(256, 300))
	w.settle()
	ba, bb := w.wantLease(a, leaseActive).Bindings[0], w.wantLease(b, leaseActive).Bindings[0]
	if ba.PartOfGpuId != bb.PartOfGpuId || ba.BoxSlot == bb.BoxSlot || ba.BoxSlot < 2 {
		t.Errorf("parts %s of %s and %s of %s", ba.GpuId, ba.PartOfGpuId, bb.GpuId, bb.PartOfGpuId)
	}
	if got := w.nodes["b1"].has[ba.BoxSlot].Part; got.GetMemoryBytes() != 512<<20 || got.GetCompute() != 300 {
		t.Errorf("the box was told %v", got)
	}
	g := w.gpu(ba.PartOfGpuId)
	if g.State != dxpuv1.GPUState_GPU_STATE_SHARED || len(g.Parts) != 2 || g.FreeMemoryBytes != 256<<20 || g.FreeCompute != 400 || g.FreeParts != 2 {
		t.Errorf("GPU %v", g)
	}
	p := &dxpuv1.Pool{}
	_ = w.m.view(func(t *tx) error { t.addTotals(p); return nil })
	if p.Gpus != 2 || p.GpusFree != 1 || p.GpusBound != 1 || p.GpusShared != 1 {
		t.Errorf("pool: %d GPUs, %d free, %d bound, %d shared", p.Gpus, p.GpusFree, p.GpusBound, p.GpusShared)
	}
	w.delete(a, true)
	w.delete(b, true)
	w.settle()
	if g := w.gpu(ba.PartOfGpuId); g.State != dxpuv1.GPUState_GPU_STATE_FREE || len(g.Parts) != 0 || g.FreeCompute != 1000 {
		t.Errorf("after the release: %v", g)
	}
	w.create(&dxpuv1.LeaseSpec{Count: 2})
}

func TestPartsAreNeverOverCommitted(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), dividedBox("b1", 1))
	w.create(part(1, 999))
	for name, s := range map[string]*dxpuv1.LeaseSpec{"a thousandth": part(1, 2), "a byte": {Count: 1, Part: &dxpuv1.Part{MemoryBytes: 1023<<20 + 1, Compute: 1}}, "the whole GPU": {Count: 1}} {
		if _, err := w.tryCreate(s); connect.CodeOf(err) != connect.CodeResourceExhausted {
			t.Errorf("%s too much: %v", name, err)
		}
	}
	w.create(part(1023, 1))
	if _, err := w.tryCreate(part(1, 1)); err == nil || !strings.Contains(err.Error(), "1 lack the compute") {
		t.Errorf("a full GPU: %v", err)
	}
}

func TestFailedGPUTakesItsPartsAlong(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 1), dividedBox("b2", 1))
	a, b := w.create(part(256, 300)), w.create(part(256, 300))
	w.settle()
	was := w.lease(a).Bindings[0]
	w.nodes[was.BoxId].dead[0] = true
	w.settle()
	for _, id := range []string{a, b} {
		l := w.lease(id)
		now := l.Bindings[len(l.Bindings)-1]
		if l.State != leaseActive || now.BoxId == was.BoxId {
			t.Errorf("lease %s is %v on %s", id, l.State, now.GpuId)
		}
	}
}

func TestDrainOfAGPUMovesItsParts(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 1), dividedBox("b2", 1))
	a := w.create(part(256, 300))
	w.settle()
	was := w.lease(a).Bindings[0]
	if _, err := w.api().Drain(context.Background(), connect.NewRequest(&dxpuv1.DrainRequest{Target: &dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: was.PartOfGpuId}}})); err != nil {
		t.Fatal(err)
	}
	w.settle()
	l := w.lease(a)
	if now := l.Bindings[len(l.Bindings)-1]; now.BoxId == was.BoxId || l.State != leaseActive {
		t.Errorf("lease is %v on %s", l.State, now.GpuId)
	}
	if g := w.gpu(was.PartOfGpuId); !g.Drained {
		t.Errorf("GPU %v is not drained", g)
	}
}

func TestSpecsOfPartsAreChecked(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 1))
	for field, s := range map[string]*dxpuv1.LeaseSpec{
		"spec.count":               {Count: 2, Part: &dxpuv1.Part{MemoryBytes: 1, Compute: 1}},
		"spec.part.memory_bytes":   {Count: 1, Part: &dxpuv1.Part{Compute: 1}},
		"spec.part.compute":        {Count: 1, Part: &dxpuv1.Part{MemoryBytes: 1, Compute: 1001}},
		"spec.part.class":          {Count: 1, Part: &dxpuv1.Part{MemoryBytes: 1, Compute: 1, Class: 9}},
		"spec.part.share":          {Count: 1, Part: &dxpuv1.Part{MemoryBytes: 1, Compute: 1, Share: -1}},
		"spec.part_rules":          {Count: 1, PartRules: &dxpuv1.PartRules{Affinity: "x"}},
		"spec.part_rules.affinity": {Count: 1, Part: &dxpuv1.Part{MemoryBytes: 1, Compute: 1}, PartRules: &dxpuv1.PartRules{Affinity: "a b"}},
		"spec.gang":                {Count: 1, Wait: true, Part: &dxpuv1.Part{MemoryBytes: 1, Compute: 1}, Gang: &dxpuv1.Gang{Name: "g", Size: 2}},
	} {
		if _, err := w.tryCreate(s); connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), field+":") && !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
