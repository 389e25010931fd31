package hostproxy_test

import (
	"testing"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// A tenant whose kernels compute for minutes delays the kernels of others by no
// more than their turns, and its GPUs are free as soon as they are taken away.
func TestLongKernelsOfNeighbour(t *testing.T) {
	r := newCluster(t, options{gpus: 3, hosts: 2, spec: gpu.Spec{VRAM: 256 << 20}})
	busy := []*binding{r.attach(0, 0, 0, 0), r.attach(0, 1, 0, 1)}
	r.attach(1, 0, 0, 2)
	long := reg.Kernel(0, reg.Launch{
		Kernel: reg.KernelGEMM, Type: reg.FP16, B: 64 << 20, C: 128 << 20, M: 8192, N: 8192, K: 4096, Alpha: 1,
	})
	for i := range busy {
		bus, dev := r.open1(0, i)
		t.Cleanup(func() { closeQuietly(bus, dev) })
		s, err := dev.NewStream()
		if err != nil {
			t.Fatal(err)
		}
		check(t, s.Submit(t.Context(), long, long))
		running := reg.Queue + uint64(s.Queue())*reg.QueueStride + reg.QState
		r.until("the kernel to run", func() bool { return dev.Registers().Read32(running) == uint32(reg.QueueBusy) })
	}
	bus, dev := r.open1(1, 0)
	t.Cleanup(func() { closeBoth(t, bus, dev) })
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		check(t, s.Launch(t.Context(), reg.Launch{Kernel: reg.KernelWrite, Type: reg.FP32, M: 1024, Alpha: 1}))
		check(t, s.Sync(t.Context()))
	}
	check(t, s.Close())
	for _, b := range busy {
		r.detach(b)
	}
}
