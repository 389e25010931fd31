package hostproxy_test

import (
	"bytes"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
)

// withGPU does something with a GPU of a box.
func (r *cluster) withGPU(box, slot int, f func(*gpu.GPU)) {
	r.t.Helper()
	check(r.t, r.boxes[box].With(r.t.Context(), slot, func(d device.Device) { f(d.(*gpu.GPU)) }))
}

// A box counts the errors of its GPUs for the manager, whether they are bound or not.
func TestBoxCountsErrors(t *testing.T) {
	r := newCluster(t, options{})
	b := r.attach(0, 0, 0, 0)
	suffers := func(code uint32) func(*gpu.GPU) {
		return func(g *gpu.GPU) { g.InjectXID(code) }
	}
	r.withGPU(0, 0, suffers(31))
	r.withGPU(0, 0, suffers(31))
	r.detach(b) // with a reset, which is no pardon
	r.withGPU(0, 0, suffers(45))
	r.until("the errors are reported", func() bool {
		errs := r.boxes[0].Observe().Slots[0].Errors
		return len(errs) == 2 && errs[0].Code == 31 && errs[0].Count == 2 && errs[1].Code == 45 && errs[1].Count == 1
	})
	if h := r.boxes[0].Observe().Slots[0].Health; h != dxpuv1.Health_HEALTH_OK {
		t.Errorf("the GPU is %v", h)
	}
}

// A GPU whose memory is damaged is of no use until the manager has it reset;
// the reset is made once, and nothing of the memory is left.
func TestResetOnDemand(t *testing.T) {
	r := newCluster(t, options{})
	b := r.attach(0, 0, 0, 0)
	bus, dev := r.open1(0, 0)
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	check(t, s.Upload(t.Context(), 0, bytes.Repeat([]byte{0xa5}, 4096)))
	closeBoth(t, bus, dev)
	r.withGPU(0, 0, func(g *gpu.GPU) { g.InjectXID(48) })
	r.await(b, lost)
	health := func() dxpuv1.Health { return r.boxes[0].Observe().Slots[0].Health }
	r.until("the box reports the GPU as failed", func() bool { return health() == dxpuv1.Health_HEALTH_FAILED })
	r.detach(b)
	for range 2 { // the second time it is not news
		r.revision++
		r.boxes[0].Apply(&dxpuv1.DesiredState{
			NodeNumber: r.boxes[0].number, Revision: r.revision, Resets: []*dxpuv1.DesiredReset{{Slot: 0, Sequence: 3}},
		})
		r.until("the box confirms the reset", func() bool { return r.boxes[0].Observe().Slots[0].ResetSequence == 3 })
		if health() != dxpuv1.Health_HEALTH_OK {
			t.Fatalf("after the reset the GPU is %v", health())
		}
		r.withGPU(0, 0, func(g *gpu.GPU) { g.InjectXID(31) })
	}
	if n := r.boxes[0].Observe().Slots[0].Errors[0].Count; n != 2 {
		t.Errorf("%d errors of the application, want 2: the counters only grow", n)
	}
	r.attach(0, 0, 0, 0)
	bus, dev = r.open1(0, 0)
	if s, err = dev.NewStream(); err != nil {
		t.Fatal(err)
	}
	out := make([]byte, 4096)
	check(t, s.Download(t.Context(), out, 0))
	if !bytes.Equal(out, make([]byte, 4096)) {
		t.Error("the memory was not erased")
	}
	closeBoth(t, bus, dev)
}
