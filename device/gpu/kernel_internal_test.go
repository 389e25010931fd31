package gpu

import (
	"runtime"
	"testing"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// A computation is made of parts, between which other devices have their turn.
func TestJobsRunInParts(t *testing.T) {
	const n = 1 << 22 // elements
	for _, c := range []struct {
		name string
		cmd  reg.Command
		want int // parts
	}{
		{"copy", reg.CopyVRAM(0, 0, 64<<20, 32<<20), 8},
		{"fill", reg.Fill(0, 0, 0, 32<<20), 8},
		{"triad", reg.Kernel(0, reg.Launch{Kernel: reg.KernelTriad, Type: reg.FP16, B: 64 << 20, C: 128 << 20, M: n}), n / block / partBlocks},
		{"read", reg.Kernel(0, reg.Launch{Kernel: reg.KernelRead, Type: reg.FP16, C: 128 << 20, M: n}), n / block / partBlocks},
		{"gemm", reg.Kernel(0, reg.Launch{Kernel: reg.KernelGEMM, Type: reg.FP32, B: 64 << 20, C: 128 << 20, M: 256, N: 384, K: 1024, Alpha: 1}), 4 * 2 * 2},
		{"small gemm", reg.Kernel(0, reg.Launch{Kernel: reg.KernelGEMM, Type: reg.FP32, B: 64 << 20, C: 128 << 20, M: 2, N: 2, K: 2, Alpha: 1}), 1},
		{"long fft", reg.Kernel(0, reg.Launch{Kernel: reg.KernelFFT, Type: reg.FP32, C: 64 << 20, M: 1 << 20, N: 1}), 4 * (1 << 20) / partPoints},
		{"many short ffts", reg.Kernel(0, reg.Launch{Kernel: reg.KernelFFT, Type: reg.FP32, C: 64 << 20, M: 1 << 10, N: 1 << 10}), 3 * (1 << 20) / partPoints},
	} {
		t.Run(c.name, func(t *testing.T) {
			j, e, _ := newTestGPU(t).plan(c.cmd)
			if e != reg.NoError {
				t.Fatal(e)
			}
			parts := 1
			for j.Run() {
				parts++
			}
			if parts < c.want || parts > c.want+1 {
				t.Errorf("%d parts, want %d", parts, c.want)
			}
		})
	}
}

// No part of a computation allocates much: the system takes its time to clear pages,
// and other devices wait meanwhile.
func TestPartsAllocateLittle(t *testing.T) {
	const most = 4 << 20 // bytes; the rows and the result of a part
	for _, c := range []struct {
		name  string
		cmd   reg.Command
		parts int // that the test runs
	}{
		{"longest fft", reg.Kernel(0, reg.Launch{Kernel: reg.KernelFFT, Type: reg.FP16, C: 128 << 20, M: maxFFTLength, N: 1}), 8},
		{"whole fft", reg.Kernel(0, reg.Launch{Kernel: reg.KernelFFT, Type: reg.FP64, C: 128 << 20, M: 1 << 18, N: 1}), 1 << 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			j, e, _ := newTestGPU(t).plan(c.cmd)
			if e != reg.NoError {
				t.Fatal(e)
			}
			var before, after runtime.MemStats
			for n, more := 0, true; more && n < c.parts; n++ {
				runtime.ReadMemStats(&before)
				more = j.Run()
				if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > most {
					t.Errorf("part %d allocated %d bytes", n, after.TotalAlloc-before.TotalAlloc)
				}
			}
		})
	}
}

// Everything that makes a result useless ends the computation.
func TestJobsAreCanceled(t *testing.T) {
	for _, c := range []struct {
		name   string
		cancel func(g *GPU)
	}{
		{"reset", func(g *GPU) { g.Reset(0, device.ConventionalReset) }},
		{"function level reset", func(g *GPU) { g.Reset(0, device.FunctionLevelReset) }},
		{"the queue is disabled", func(g *GPU) { g.stop(&g.queues[1]) }},
		{"the queue fails", func(g *GPU) { g.halt(&g.queues[1], reg.ErrRing, 0, 0) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			g := newTestGPU(t)
			j, e, _ := g.plan(reg.Kernel(0, reg.Launch{Kernel: reg.KernelGEMM, Type: reg.FP16, C: 128 << 20, M: 4096, N: 4096, K: 4096, Alpha: 1}))
			if e != reg.NoError {
				t.Fatal(e)
			}
			q := &g.queues[1]
			j.queue, q.job = 1, j
			if out, ok := g.NextJob(); !ok || out != device.Job(j) || !j.Run() || !j.Run() {
				t.Fatal("the job does not run")
			}
			g.stop(&g.queues[0]) // another queue
			if !j.Run() {
				t.Error("the end of another queue ended the job")
			}
			if c.cancel(g); j.Run() {
				t.Error("the job goes on")
			}
			g.FinishJob(0, j)
			if g.jobOut != nil {
				t.Error("the next job has no place")
			}
		})
	}
}

func newTestGPU(t *testing.T) *GPU {
	t.Helper()
	g, err := New(Spec{VRAM: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return g
}
