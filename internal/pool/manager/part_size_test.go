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
