package hostproxy_test

import (
	"strings"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/dispatch"
)

// newParts makes a GPU that bindings divide.
func (r *cluster) newParts() []boxproxy.Slot {
	r.t.Helper()
	whole, err := gpu.New(r.opts.spec)
	if err != nil {
		r.t.Fatal(err)
	}
	physical, err := gpu.NewParts(r.opts.spec, r.opts.parts)
	if err != nil {
		r.t.Fatal(err)
	}
	policy, err := share.Find("mps")
	if err != nil {
		r.t.Fatal(err)
	}
	d, err := dispatch.ByName(physical.Device(), policy.Name)
	if err != nil {
		r.t.Fatal(err)
	}
	return boxproxy.PartSlots(0, whole, physical.Slices(), gpu.MemoryStep, d, policy)
}

// bindPart wants a binding of a part.
func (r *cluster) bindPart(slot int, memory uint64, compute uint32) *binding {
	b := r.plan(0, slot, 0, slot)
	b.part = &dxpuv1.Part{MemoryBytes: memory, Compute: compute}
	r.apply()
	return b
}

// A part has the size that its binding says. Its limits follow the binding; the GPU as a
// whole and its parts are never bound at the same time, nor more memory than there is.
func TestParts(t *testing.T) {
	const step = gpu.MemoryStep
	failed := func(r *cluster, b *binding, why string) {
		t.Helper()
		r.until("refused", func() bool { return r.atBox(b).GetState() == dxpuv1.BindingState_BINDING_STATE_FAILED })
		if d := r.atBox(b).Detail; !strings.Contains(d, why) {
			t.Errorf("refused with %q, want %q", d, why)
		}
		r.detach(b)
	}
	r := newCluster(t, options{parts: 3, spec: gpu.Spec{VRAM: 64 * step}})
	slots := r.boxes[0].Observe().Slots
	if d := slots[0].Device; d.Multiprocessors != 80 || len(d.ShareModes) != 1 || d.ShareModes[0] != dxpuv1.ShareMode_SHARE_MODE_SPACE || slots[0].PartOf != nil {
		t.Errorf("the whole GPU: %v", slots[0])
	}
	if s := slots[2]; s.PartOf == nil || *s.PartOf != 0 || s.Device.MemoryBytes != 0 {
		t.Errorf("a part: %v", s)
	}
	a := r.bindPart(1, 40*step+1, 300)
	r.await(a, attached)
	_, dev := r.open1(0, 1)
	if n := dev.Info().VRAMSize; n != 40*step {
		t.Errorf("%d bytes of memory", n)
	}
	failed(r, r.bindPart(2, 25*step, 300), "the GPU has 1572864 bytes left")
	failed(r, r.bind(0, 0, 0, 0), "bytes left")
	failed(r, r.bind(0, 2, 0, 2), "does not say how large")
	b := r.bindPart(2, 20*step, 500)
	r.await(b, attached)

	a.part = &dxpuv1.Part{MemoryBytes: 44 * step, Compute: 400}
	r.apply()
	r.until("the new limits", func() bool {
		p := r.atBox(a).GetPart()
		return p.GetMemoryBytes() == 44*step && p.GetCompute() == 400
	})
	a.part = &dxpuv1.Part{MemoryBytes: 45 * step, Compute: 450}
	r.apply()
	r.until("the new limit of compute alone", func() bool {
		p := r.atBox(a).GetPart()
		return p.GetMemoryBytes() == 44*step && p.GetCompute() == 450
	})
	copyBothWays(t, dev, 1<<20)
	r.detach(a)
	r.detach(b)
	whole := r.attach(0, 0, 0, 0)
	failed(r, r.bindPart(1, step, 10), "0 bytes left")
	r.detach(whole)
}
