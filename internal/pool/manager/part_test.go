package manager

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
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
	if _, err := w.tryCreate(part(1, 1)); err == nil || !strings.Contains(err.Error(), "1 lacks the memory and lacks the compute") {
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
		"spec.same_box":            {Count: 1, SameBox: dxpuv1.Preference_PREFERENCE_REQUIRED, Part: &dxpuv1.Part{MemoryBytes: 1, Compute: 1}},
		"spec.nvlink":              {Count: 2, Nvlink: dxpuv1.Preference_PREFERENCE_REQUIRED, Part: &dxpuv1.Part{MemoryBytes: 1, Compute: 1}},
		"on one GPU":               {Count: 2, Part: &dxpuv1.Part{MemoryBytes: 1, Compute: 1}, PartRules: &dxpuv1.PartRules{Affinity: "x"}},
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

func (w *world) resizePart(id string, p *dxpuv1.Part, deadline time.Duration) error {
	req := &dxpuv1.ResizeLeaseRequest{LeaseId: id, Part: p}
	if deadline > 0 {
		req.Deadline = durationpb.New(deadline)
	}
	_, err := w.api().ResizeLease(context.Background(), connect.NewRequest(req))
	return err
}

func TestPartGrowsWhileItRuns(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 1))
	a, b := w.create(part(256, 300)), w.create(part(256, 300))
	w.settle()
	was := w.lease(a).Bindings[0]
	if err := w.resizePart(a, &dxpuv1.Part{MemoryBytes: 768 << 20, Compute: 700}, 0); err != nil {
		t.Fatal(err)
	}
	w.settle()
	l := w.wantLease(a, leaseActive)
	if now := l.Bindings[0]; len(l.Bindings) != 1 || now.Id != was.Id || now.Part.MemoryBytes != 768<<20 || now.Part.Compute != 700 {
		t.Errorf("bindings %v", l.Bindings)
	}
	if has := w.nodes["b1"].has[was.BoxSlot]; has.Part.MemoryBytes != 768<<20 {
		t.Errorf("the box has %v", has.Part)
	}
	err := w.resizePart(b, &dxpuv1.Part{MemoryBytes: 256<<20 + 1}, 0)
	if connect.CodeOf(err) != connect.CodeResourceExhausted || !strings.Contains(err.Error(), "other parts must end or shrink") {
		t.Errorf("a byte too much: %v", err)
	}
}

// TestPartShrinksByConsent keeps what a part gives back until its box says that the guest
// does not use it any more.
func TestPartShrinksByConsent(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 1))
	a := w.create(part(768, 900))
	w.settle()
	w.nodes["b1"].keeps = true
	if err := w.resizePart(a, &dxpuv1.Part{MemoryBytes: 256 << 20, Compute: 100}, 0); err != nil {
		t.Fatal(err)
	}
	w.settle()
	if b := w.lease(a).Bindings[0]; b.HeldMemoryBytes != 768<<20 {
		t.Errorf("binding %v does not hold its memory", b)
	}
	if _, err := w.tryCreate(part(512, 100)); err == nil {
		t.Fatal("memory that a guest still uses was given out")
	}
	w.nodes["b1"].keeps = false
	for _, has := range w.nodes["b1"].has {
		has.Part.MemoryBytes = 256 << 20
	}
	w.settle()
	w.create(part(512, 100))
}

// TestPartShrinksByDeadline takes a part away that its guest does not shrink, and attaches
// it again with its new size.
func TestPartShrinksByDeadline(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 1))
	a := w.create(part(768, 300))
	w.settle()
	was := w.lease(a).Bindings[0]
	w.nodes["b1"].keeps = true
	if err := w.resizePart(a, &dxpuv1.Part{MemoryBytes: 256 << 20}, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	w.passReporting(9 * time.Second)
	if b := w.lease(a).Bindings[0]; b.State != attached {
		t.Fatalf("binding %v was taken away before the deadline", b)
	}
	w.passReporting(5 * time.Second)
	w.settle()
	l := w.wantLease(a, leaseActive)
	if now := l.Bindings[len(l.Bindings)-1]; now.Id == was.Id || now.Part.MemoryBytes != 256<<20 || now.HeldMemoryBytes != 0 {
		t.Errorf("binding %v", now)
	}
	w.create(part(512, 300))
}

// TestQuotaCountsParts counts a part as the larger one of its shares.
func TestQuotaCountsParts(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), dividedBox("b1", 4))
	w.putTenant("a", &dxpuv1.Quota{MaxGpus: 1})
	own := func(mib uint64, compute uint32) *dxpuv1.LeaseSpec {
		s := part(mib, compute)
		s.Tenant = "a"
		return s
	}
	x := w.create(own(512, 100)) // half a GPU, by its memory
	y := own(16, 300)
	y.GpuIds = []string{"b1/1"}
	w.create(y)
	if got := w.tenant("a"); got.Gpus != 1 || got.Parts != 2 || got.PartCompute != 400 || got.PartMemoryBytes != 528<<20 {
		t.Errorf("tenant %v", got)
	}
	if _, err := w.tryCreate(own(300, 1)); err == nil || !strings.Contains(err.Error(), "0.8 of the 1 GPUs") {
		t.Errorf("a part beyond the quota: %v", err)
	}
	w.settle()
	if err := w.resizePart(x, &dxpuv1.Part{Compute: 701}, 0); err == nil || !strings.Contains(err.Error(), "quota") {
		t.Errorf("a part grows beyond the quota: %v", err)
	}
	if err := w.resizePart(x, &dxpuv1.Part{Compute: 700}, 0); err != nil {
		t.Errorf("a part cannot grow within the quota: %v", err)
	}
}

// TestQuotaByModelCountsTheMemoryOfParts refuses a part whose compute is within the quota of a
// model and whose memory is not, and gives no GPU of a model that was not requested instead.
func TestQuotaByModelCountsTheMemoryOfParts(t *testing.T) {
	other := dividedBox("b2", 2)
	other.model = "T4"
	w := newWorld(t, Config{}, hostNode("h1", 8), dividedBox("b1", 2), other)
	w.putTenant("a", &dxpuv1.Quota{MaxGpusByModel: map[string]uint32{"DX100": 1, "T4": 1}})
	for _, tt := range []struct {
		model   string
		mib     uint64
		compute uint32
		gets    string // the box, or the refusal
	}{
		{"DX100", 256, 600, "b1"},
		{"DX100", 900, 300, "DX100 that its quota allows"},
		{"", 900, 300, "b2"},
		{"", 900, 100, "T4 that its quota allows"},
		{"T4", 900, 100, "T4 that its quota allows"},
	} {
		s := part(tt.mib, tt.compute)
		s.Tenant, s.Model = "a", tt.model
		id, err := w.tryCreate(s)
		if err != nil {
			if !strings.Contains(err.Error(), tt.gets) {
				t.Errorf("%d MiB of model %q: %v, want %s", tt.mib, tt.model, err, tt.gets)
			}
			continue
		}
		if got := w.lease(id).Bindings[0].PartOfGpuId; !strings.HasPrefix(got, tt.gets) {
			t.Errorf("%d MiB of model %q: a part of %s, want one of %s", tt.mib, tt.model, got, tt.gets)
		}
	}
}

// TestPreemptionTakesTheSmallestParts takes back no more than is needed: of the sets of
// parts that make room the smallest, for a part and for a whole GPU.
func TestPreemptionTakesTheSmallestParts(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), dividedBox("b1", 2))
	low := func(compute uint32, gpu string) string {
		s := part(1, compute)
		s.Preemptible, s.Priority, s.GpuIds = true, -1, []string{gpu}
		return w.create(s)
	}
	a1, a2 := low(400, "b1/0"), low(500, "b1/0")
	b1, b2, b3 := low(300, "b1/1"), low(250, "b1/1"), low(350, "b1/1")
	w.settle()
	l := w.create(part(1, 450)) // b1/0 has 100 free: 400 must go; b1/1 has 100: 350 must go
	w.settle()
	w.wantLease(l, leaseActive)
	w.wantLease(b3, leaseReleased)
	for _, id := range []string{a1, a2, b1, b2} {
		w.wantLease(id, leaseActive)
	}
	whole := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	if got := w.wantLease(whole, leaseActive).Bindings[0]; got.GpuId != "b1/0" || got.Part != nil {
		t.Errorf("the whole GPU is %v", got)
	}
	for _, id := range []string{b1, b2, l} {
		w.wantLease(id, leaseActive)
	}
}

// TestOldRecordsHaveWholeGPUs reads records that an earlier version wrote.
func TestOldRecordsHaveWholeGPUs(t *testing.T) {
	var b bindingRecord
	if err := json.Unmarshal([]byte(`{"id":"b-1","box_id":"b1","box_slot":1,"state":3}`), &b); err != nil {
		t.Fatal(err)
	}
	if b.Part != nil || b.gpu() != (placement.Ref{Box: "b1", Slot: 1}) {
		t.Errorf("binding %+v", b)
	}
	l := leaseRecord{spec: &dxpuv1.LeaseSpec{Count: 3}}
	if l.size() != wholeGPUs(3) {
		t.Errorf("size %v", l.size())
	}
}

// TestInterferenceOfThePool keeps a part away from a program that slows it down.
func TestInterferenceOfThePool(t *testing.T) {
	w := newWorld(t, Config{Interference: placement.Interference{{"a", "b"}: 900, {"b", "a"}: 900}}, hostNode("h1", 4), dividedBox("b1", 2))
	program := func(name string) string {
		s := part(300, 400)
		s.PartRules = &dxpuv1.PartRules{Workload: name}
		return w.create(s)
	}
	x, y := w.lease(program("a")).Bindings[0], w.lease(program("b")).Bindings[0]
	if x.PartOfGpuId == y.PartOfGpuId {
		t.Errorf("both are on GPU %s", x.PartOfGpuId)
	}
}

// TestSlotsOfABoxThatIsDividedDifferently divides a box in another way while a binding is in one of
// its slots. The slot is not given out a second time.
func TestSlotsOfABoxThatIsDividedDifferently(t *testing.T) {
	check := func(w *world) {
		t.Helper()
		_ = w.m.view(func(tx *tx) error {
			slots := map[placement.Ref]string{}
			for _, id := range tx.bindings.ids() {
				if b := tx.bindings.get(id); b.holdsGPU() {
					if other := slots[b.ref()]; other != "" {
						t.Errorf("slot %s has the bindings %s and %s", b.ref(), other, id)
					}
					slots[b.ref()] = id
				}
			}
			return nil
		})
	}
	w := newWorld(t, Config{}, hostNode("h1", 12), dividedBox("b1", 2))
	a := w.lease(w.create(part(256, 300))).Bindings[0]
	w.settle()
	b1 := w.nodes["b1"]
	b1.slots, b1.divided = 10, 0
	w.settle()
	if _, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1, GpuIds: []string{a.GpuId}}); err == nil {
		t.Errorf("GPU %s was given out", a.GpuId)
	}
	check(w)

	w = newWorld(t, Config{}, hostNode("h1", 12), boxNode("b1", 10))
	w.create(&dxpuv1.LeaseSpec{Count: 1, GpuIds: []string{"b1/2"}})
	w.settle()
	b1 = w.nodes["b1"]
	b1.slots, b1.divided = 2, 4
	w.settle()
	if _, err := w.tryCreate(part(256, 300)); err != nil {
		t.Error(err)
	}
	check(w)
}

// TestSlotThatAPartOfAnotherGPUHas divides a box in another way, so that a part is in the only slot
// for parts of another GPU. That GPU cannot be divided then.
func TestSlotThatAPartOfAnotherGPUHas(t *testing.T) {
	b1 := dividedBox("b1", 3)
	b1.divided = 2
	w := newWorld(t, Config{}, hostNode("h1", 12), b1)
	s := part(256, 300)
	s.GpuIds = []string{"b1/0"}
	if a := w.lease(w.create(s)).Bindings[0]; a.BoxSlot != 3 {
		t.Fatalf("the part is in slot %d, want 3", a.BoxSlot)
	}
	w.settle()
	b1.slots, b1.divided = 2, 1 // slot 3 is for parts of GPU 1
	w.settle()
	w.create(part(256, 300))
	for _, s := range []*dxpuv1.LeaseSpec{part(256, 300), parts(2, 256, 300)} {
		if id, err := w.tryCreate(s); err == nil {
			t.Errorf("lease %s has a part of a GPU without a slot for it: %v", id, w.lease(id).Bindings)
		}
	}
}

// TestTaintOfAGPUEvictsItsParts moves a part away from a GPU that gets a taint.
func TestTaintOfAGPUEvictsItsParts(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), dividedBox("b1", 2))
	a := w.create(part(256, 300))
	w.settle()
	was := w.lease(a).Bindings[0]
	if _, err := w.api().SetTaints(context.Background(), connect.NewRequest(&dxpuv1.SetTaintsRequest{
		Target: &dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: was.PartOfGpuId}},
		Set:    []*dxpuv1.Taint{{Key: "burn-in", Effect: dxpuv1.TaintEffect_TAINT_EFFECT_NO_EXECUTE}},
	})); err != nil {
		t.Fatal(err)
	}
	w.settle()
	l := w.wantLease(a, leaseActive)
	if now := l.Bindings[len(l.Bindings)-1]; now.PartOfGpuId == was.PartOfGpuId {
		t.Errorf("the part is still on GPU %s", now.PartOfGpuId)
	}
}

// TestGuaranteesCountTheMemoryOfParts borrows by the memory of a part, whose compute is
// within the guarantee: firm leases may not, and no lease takes GPUs back by it.
func TestGuaranteesCountTheMemoryOfParts(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 8), dividedBox("b1", 3))
	one := uint32(1)
	for _, tenant := range []string{"a", "b"} {
		w.putTenant(tenant, &dxpuv1.Quota{GuaranteedGpus: &one})
	}
	own := func(tenant, gpu string, mib uint64, preemptible bool) *dxpuv1.LeaseSpec {
		s := part(mib, 100)
		s.Tenant, s.GpuIds, s.Preemptible = tenant, []string{gpu}, preemptible
		return s
	}
	w.create(own("a", "b1/0", 700, false))
	if _, err := w.tryCreate(own("a", "b1/2", 512, false)); err == nil || !strings.Contains(err.Error(), "guaranteed") {
		t.Errorf("a firm part borrows: %v", err)
	}
	w.create(own("b", "b1/1", 900, false))
	lent := w.create(own("b", "b1/2", 900, true)) // b borrows
	w.settle()
	if _, err := w.tryCreate(own("a", "b1/2", 400, true)); err == nil {
		t.Error("a part beyond the guarantee took back what another tenant borrows")
	}
	w.wantLease(lent, leaseActive)
	w.create(own("a", "b1/2", 200, true)) // within the guarantee
	w.settle()
	w.wantLease(lent, leaseReleased)
}

// TestPartTakesBackTheModelOfItsSize takes back a GPU of the model on which a part is within
// the guarantee: on those of the other one, which is tried first, it is larger.
func TestPartTakesBackTheModelOfItsSize(t *testing.T) {
	for _, preemptible := range []bool{false, true} {
		checkPartTakesBack(t, preemptible)
	}
}

func checkPartTakesBack(t *testing.T, preemptible bool) {
	large := dividedBox("b2", 1)
	large.model, large.memory = "T4", 2<<30
	w := newWorld(t, Config{}, hostNode("h1", 8), dividedBox("b1", 2), large, dividedBox("b3", 1))
	w.putTenant("a", guaranteed(1, 0))
	w.putTenant("b", guaranteed(0, 0))
	for tenant, s := range map[string]*dxpuv1.LeaseSpec{"a": part(100, 500), defaultTenant: part(800, 100)} {
		s.Tenant, s.GpuIds = tenant, []string{"b3/0"}
		w.create(s)
	}
	borrowed := map[string]string{}
	for _, gpu := range []string{"b1/0", "b1/1", "b2/0"} {
		borrowed[gpu] = w.create(&dxpuv1.LeaseSpec{Count: 1, Tenant: "b", GpuIds: []string{gpu}, Preemptible: true})
	}
	w.settle()
	s := part(900, 100)
	s.Tenant, s.Priority, s.Preemptible = "a", -1, preemptible
	id := w.create(s)
	w.settle()
	w.wantLease(id, leaseActive)
	for gpu, lease := range borrowed {
		if lost := w.lease(lease).State != leaseActive; lost != (gpu == "b2/0") {
			t.Errorf("lease %s of GPU %s is lost: %v", lease, gpu, lost)
		}
	}
}
