package manager

import (
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// parts returns the spec of n parts.
func parts(n uint32, mib uint64, compute uint32) *dxpuv1.LeaseSpec {
	s := part(mib, compute)
	s.Count = n
	return s
}

// gpusOfParts returns the GPUs whose parts serve a lease. It fails if two are the same one.
func (w *world) gpusOfParts(id string) (out []string) {
	w.t.Helper()
	seen := map[string]bool{}
	for _, b := range w.lease(id).Bindings {
		if b.State != attached {
			continue
		}
		if seen[b.PartOfGpuId] {
			w.t.Fatalf("lease %s has two parts of GPU %s", id, b.PartOfGpuId)
		}
		seen[b.PartOfGpuId] = true
		out = append(out, b.PartOfGpuId)
	}
	return out
}

func TestLeaseOfSeveralParts(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), dividedBox("b1", 3), dividedBox("b2", 3))
	a := w.create(parts(2, 512, 300))
	b := w.create(parts(2, 256, 300))
	w.settle()
	w.wantLease(a, leaseActive)
	w.wantLease(b, leaseActive)
	first, second := w.gpusOfParts(a), w.gpusOfParts(b)
	if len(first) != 2 || len(second) != 2 || first[0][:2] != first[1][:2] || first[0][:2] != second[0][:2] {
		t.Errorf("GPUs %v and %v are not of one box", first, second)
	}
	if u := w.tenant("default"); u.Parts != 4 || u.PartMemoryBytes != 2*(512+256)<<20 || u.PartCompute != 1200 || u.Gpus != 2 {
		t.Errorf("tenant %v", u)
	}
	w.wantNoCapacity("more than a box has", func() *dxpuv1.LeaseSpec {
		s := parts(4, 1, 1)
		s.SameBox = dxpuv1.Preference_PREFERENCE_REQUIRED
		return s
	}(), "on each of 4 GPUs of one box. 6 GPUs have room for one, at most 3 of them in one box.")
	w.delete(a, true)
	w.delete(b, true)
	w.settle()
	w.create(&dxpuv1.LeaseSpec{Count: 6})
}

// Beside managers of another version no lease gets parts of several GPUs: an older leader
// might replace one by another part of the same GPU.
func TestNoSeveralPartsBesideAnOlderManager(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), dividedBox("b1", 3))
	id := w.create(parts(1, 512, 300))
	w.settle()
	w.m.state.alike = false
	_, err := w.tryCreate(parts(2, 512, 300))
	wantErr(t, err, connect.CodeFailedPrecondition, "spec.count: managers of several versions run")
	w.m.state.alike = false // the clock's ticks set it
	_, err = w.api().ResizeLease(t.Context(), connect.NewRequest(&dxpuv1.ResizeLeaseRequest{LeaseId: id, Count: 2}))
	wantErr(t, err, connect.CodeFailedPrecondition, "managers of several versions run")
}

// All parts of a lease are resized, or none.
func TestSeveralPartsAreResizedTogether(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), dividedBox("b1", 2))
	a := w.create(parts(2, 256, 300))
	one := part(512, 100)
	one.GpuIds = []string{"b1/1"}
	w.create(one)
	w.settle()
	err := w.resizePart(a, &dxpuv1.Part{MemoryBytes: 768 << 20}, 0)
	if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "GPU b1/1 has room") {
		t.Errorf("one of two GPUs lacks the room: %v", err)
	}
	if err := w.resizePart(a, &dxpuv1.Part{MemoryBytes: 512 << 20, Compute: 500}, 0); err != nil {
		t.Fatal(err)
	}
	w.settle()
	for _, b := range w.wantLease(a, leaseActive).Bindings {
		if has := w.nodes["b1"].has[b.BoxSlot].Part; has.MemoryBytes != 512<<20 || has.Compute != 500 {
			t.Errorf("the box has %v", has)
		}
	}
	if u := w.tenant("default"); u.Gpus != 2 {
		t.Errorf("the tenant has %v GPUs, of 2 halves and a half", u.Gpus)
	}
	w.nodes["b1"].keeps = true
	if err := w.resizePart(a, &dxpuv1.Part{MemoryBytes: 128 << 20}, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	w.passReporting(15 * time.Second)
	w.settle()
	w.wantLease(a, leaseActive)
	if got := w.gpusOfParts(a); len(got) != 2 {
		t.Errorf("parts after the deadline are on %v", got)
	}
}

// The number of parts changes like that of GPUs.
func TestLeaseGetsMoreParts(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), dividedBox("b1", 3))
	w.putTenant("a", &dxpuv1.Quota{MaxGpus: 1})
	spec := part(256, 300)
	spec.Tenant = "a"
	id := w.create(spec)
	w.settle()
	resize := func(count uint32) error {
		_, err := w.api().ResizeLease(t.Context(), connect.NewRequest(&dxpuv1.ResizeLeaseRequest{LeaseId: id, Count: count}))
		w.settle()
		return err
	}
	if err := resize(3); err != nil {
		t.Fatal(err)
	}
	w.wantLease(id, leaseActive)
	if got := w.gpusOfParts(id); len(got) != 3 {
		t.Errorf("GPUs %v", got)
	}
	if err := w.resizePart(id, &dxpuv1.Part{Compute: 400}, 0); err == nil || !strings.Contains(err.Error(), "quota") {
		t.Errorf("3 times 0.4 of 1 GPU: %v", err)
	}
	if err := resize(2); err != nil {
		t.Fatal(err)
	}
	if got := w.gpusOfParts(id); len(got) != 2 {
		t.Errorf("GPUs %v", got)
	}
	if err := w.resizePart(id, &dxpuv1.Part{Compute: 500}, 0); err != nil {
		t.Error(err)
	}
	w.settle()
	if err := resize(3); connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "1.5 GPUs exceed the quota") {
		t.Errorf("3 halves of 1 GPU: %v", err)
	}
}

// A part whose GPU fails is replaced on a GPU where the lease has no other one, in the box of the
// others if that has one.
func TestOneOfSeveralPartsIsReplaced(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), dividedBox("b1", 3), dividedBox("b2", 3))
	id := w.create(parts(2, 256, 300))
	w.settle()
	box := w.lease(id).Bindings[0].BoxId
	for _, want := range []string{box, map[string]string{"b1": "b2", "b2": "b1"}[box]} {
		lost := w.gpusOfParts(id)[0]
		w.nodes[box].dead[uint32(lost[3]-'0')] = true
		w.settle()
		l := w.wantLease(id, leaseActive)
		now := l.Bindings[len(l.Bindings)-1]
		if now.BoxId != want || len(w.gpusOfParts(id)) != 2 {
			t.Errorf("%s was lost: the lease is on %v", lost, w.gpusOfParts(id))
		}
	}
}

// A lease preempts others for parts of several GPUs.
func TestSeveralPartsPreempt(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), dividedBox("b1", 2))
	low := parts(2, 256, 700)
	low.Preemptible, low.Priority = true, -1
	victim := w.create(low)
	w.settle()
	id := w.create(parts(2, 256, 400))
	w.settle()
	w.wantLease(id, leaseActive)
	w.wantLease(victim, leaseReleased)
}

// A machine's own GPUs give a lease several parts, if its agent can.
func TestSeveralLocalParts(t *testing.T) {
	host, box := localMachine("m1", 2)
	w := newWorld(t, Config{}, hostNode("h1", 8), dividedBox("b1", 4), host, box)
	w.wantNoCapacity("an old agent", at("m1", parts(2, 128, 300)), "gives each lease one GPU: upgrade it")
	box.several = true
	w.settle()
	id := w.create(at("m1", parts(2, 128, 300)))
	w.settle()
	w.wantLease(id, leaseActive)
	if got := w.gpusOfParts(id); len(got) != 2 || !strings.HasPrefix(got[0], "m1-gpus/") || !strings.HasPrefix(got[1], "m1-gpus/") {
		t.Errorf("GPUs %v", got)
	}
	w.wantNoCapacity("parts of three", at("m1", parts(3, 1, 1)), "on each of 3 GPUs")
}
