package manager

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// boxesOfTwoSizes are boxes of one model with GPUs of 1 GiB and of 2 GiB.
func boxesOfTwoSizes(small, large int) []*fakeNode {
	b2 := dividedBox("b2", large)
	b2.memory = 2 << 30
	return []*fakeNode{hostNode("h1", 12), dividedBox("b1", small), b2}
}

// TestPartGetsAGPUOnWhichItsQuotaCoversIt has GPUs of one model and of two sizes. A part of 900
// MiB counts as 0.9 of the GPUs that it would get first, which is above what the tenant may have,
// and as 0.45 of the others.
func TestPartGetsAGPUOnWhichItsQuotaCoversIt(t *testing.T) {
	for name, q := range map[string]*dxpuv1.Quota{
		"quota": {MaxGpus: 1}, "quota by model": {MaxGpusByModel: map[string]uint32{"DX100": 1}}, "guarantee": {GuaranteedGpus: proto.Uint32(1)},
	} {
		for _, n := range []uint32{1, 2} {
			for _, model := range []string{"", "DX100"} {
				w := newWorld(t, Config{}, boxesOfTwoSizes(3, 4)...)
				s := parts(n, 900, 100)
				s.Model, s.Tenant = model, "a"
				if id := w.create(proto.CloneOf(s)); w.lease(id).Bindings[0].BoxId != "b1" {
					t.Fatalf("without a quota: %v", w.lease(id).Bindings)
				} else {
					w.delete(id, false)
				}
				w.settle()
				w.putTenant("a", q)
				if n == 1 {
					first := part(256, 500)
					first.Tenant = "a"
					w.create(first)
				}
				id, err := w.tryCreate(s)
				if err != nil {
					t.Errorf("%s: %d parts of model %q: %v", name, n, model, err)
					continue
				}
				for _, b := range w.lease(id).Bindings {
					if b.BoxId != "b2" {
						t.Errorf("%s: %d parts of model %q: one is of GPU %s", name, n, model, b.PartOfGpuId)
					}
				}
				if _, err := w.tryCreate(s); err == nil || !strings.Contains(err.Error(), "Tenant a has") {
					t.Errorf("%s: %d more parts of model %q: %v", name, n, model, err)
				}
			}
		}
	}
}

// sizeOfA returns what the parts of tenant a count as.
func (w *world) sizeOfA() (size milliGPU) {
	_ = w.m.view(func(tx *tx) error {
		size = tx.usageOf("a").gpus
		return nil
	})
	return size
}

// TestGrownPartsStayWithinTheQuota grows leases whose new part would count as more, or as less,
// than the parts that they have.
func TestGrownPartsStayWithinTheQuota(t *testing.T) {
	for _, tt := range []struct {
		parts uint32
		mib   uint64
		from  string // the box that has the parts
		quota uint32
		size  milliGPU // in the end
	}{
		{3, 900, "b2", 2, 4 * 440},
		{1, 600, "b1", 1, 586 + 293},
	} {
		w := newWorld(t, Config{}, boxesOfTwoSizes(3, 4)...)
		w.putTenant("a", &dxpuv1.Quota{MaxGpus: tt.quota})
		s := parts(tt.parts, tt.mib, 100)
		s.Tenant = "a"
		if tt.parts > 1 {
			s.SameBox = dxpuv1.Preference_PREFERENCE_AVOID
		}
		away := map[string]string{"b1": "b2", "b2": "b1"}[tt.from]
		w.nodes[away].dead = map[uint32]bool{0: true, 1: true, 2: true, 3: true}
		w.settle()
		id := w.create(s)
		w.settle()
		w.nodes[away].dead = map[uint32]bool{}
		w.settle()
		if err := w.resize(id, tt.parts+1, 0); err != nil {
			t.Errorf("%d parts on %s: %v", tt.parts, tt.from, err)
		}
		w.settle()
		if err := w.resize(id, tt.parts+2, 0); err == nil || !strings.Contains(err.Error(), "that its quota allows") {
			t.Errorf("%d parts on %s, and two more: %v", tt.parts, tt.from, err)
		}
		w.settle()
		if got := w.sizeOfA(); got != tt.size {
			t.Errorf("%d parts on %s, and one more: they count as %v, want %v", tt.parts, tt.from, got, tt.size)
		}
	}
}

// TestReplacedPartStaysWithinTheQuota replaces a part of a GPU that fails, and moves one away from
// a GPU that is drained. It counts as too much on the GPUs that placement prefers; if there are no
// others it gets one of them, since that is better than none.
func TestReplacedPartStaysWithinTheQuota(t *testing.T) {
	for _, large := range []int{1, 5} {
		for how, away := range map[string]func(*world){
			"fails":      func(w *world) { w.nodes["b2"].dead[0] = true },
			"is drained": func(w *world) { w.drain(atGPU("b2/0"), 0) },
		} {
			w := newWorld(t, Config{}, boxesOfTwoSizes(3, large)...)
			w.putTenant("a", &dxpuv1.Quota{MaxGpus: 1})
			w.nodes["b1"].dead = map[uint32]bool{0: true, 1: true, 2: true}
			for i := 1; i < large; i++ {
				w.nodes["b2"].dead[uint32(i)] = true
			}
			w.settle()
			s := part(900, 100)
			s.Tenant = "a"
			id := w.create(s) // of b2/0
			w.settle()
			w.nodes["b1"].dead, w.nodes["b2"].dead = map[uint32]bool{}, map[uint32]bool{}
			w.settle()
			other := part(1, 500)
			other.Tenant, other.GpuIds = "a", []string{"b1/0"}
			w.create(other)
			w.settle()
			away(w)
			w.settle()
			w.wantLease(id, leaseActive)
			want := milliGPU(500 + 440)
			if large == 1 {
				want = 500 + 879
			}
			if got := w.sizeOfA(); got != want {
				t.Errorf("a GPU of %d %s: the parts count as %v, want %v", large, how, got, want)
			}
		}
	}
}
