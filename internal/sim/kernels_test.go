package sim_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/sim"
	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/dispatch"
)

// Kernels that wait in a queue run one right after another, without an event from
// outside in between; on a slice they take as long as its share says.
func TestQueuedKernels(t *testing.T) {
	const kernels, each = 20, 10 * time.Millisecond
	// A kernel writes 1 MiB.
	whole := gpu.Spec{VRAM: 8 << 20, MemoryBandwidth: (1 << 20) / each.Seconds(), MaxPayload: 256}
	for _, c := range []struct {
		name    string
		percent int // 0: a whole GPU
	}{{"GPU", 0}, {"slice of 100 %", 100}, {"slice of 50 %", 50}, {"slice of 20 %", 20}} {
		t.Run(c.name, func(t *testing.T) {
			spec := sim.PairSpec{GPU: whole, Paths: []sim.Duplex{sim.Delayed(5 * us)}}
			want := kernels * each
			if c.percent > 0 {
				physical, err := gpu.NewPhysical(whole, []int64{8 << 20})
				if err != nil {
					t.Fatal(err)
				}
				d, err := dispatch.ByName(physical.Device(), "mps")
				if err != nil {
					t.Fatal(err)
				}
				spec.Device = physical.Slices()[0]
				spec.Slice = &boxproxy.Slice{Dispatcher: d, Client: 1, Spec: share.ClientSpec{Limit: share.Percent(c.percent), Memory: 8 << 20}}
				want = want * 100 / time.Duration(c.percent)
			}
			p, err := sim.NewPair(spec)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			dev, err := p.OpenGPU(t.Context(), driver.Options{})
			if err != nil {
				t.Fatal(err)
			}
			s, err := dev.NewStream()
			if err != nil {
				t.Fatal(err)
			}
			began := p.Now()
			for range kernels {
				if err := s.Launch(t.Context(), reg.Launch{Kernel: reg.KernelWrite, Type: reg.FP32, M: 1 << 18, Alpha: 1}); err != nil {
					t.Fatal(err)
				}
			}
			if err := s.Sync(t.Context()); err != nil {
				t.Fatal(err)
			}
			took := p.Now() - began
			t.Logf("%d kernels of %v took %v", kernels, each, took)
			if took < want || took > want+want/100+time.Millisecond {
				t.Errorf("%d kernels of %v took %v, want %v", kernels, each, took, want)
			}
		})
	}
}
