package gpu_test

import (
	"encoding/binary"
	"math"
	"math/cmplx"
	"math/rand/v2"
	"testing"
	"time"

	"gonum.org/v1/gonum/dsp/fourier"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// put stores numbers in VRAM through the aperture, and get reads them.
func (r *gpuHost) put(addr uint64, t reg.ElementType, xs []float64) {
	var b []byte
	for _, x := range xs {
		switch t {
		case reg.FP16:
			b = binary.LittleEndian.AppendUint16(b, reg.FloatToHalf(float32(x)))
		case reg.FP32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(x)))
		case reg.FP64:
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
		}
	}
	r.host.Write(r.bars[reg.BARVRAM].Addr+addr, b)
}

func (r *gpuHost) get(addr uint64, t reg.ElementType, n int) []float64 {
	r.t.Helper()
	b, err := r.host.Read(r.bars[reg.BARVRAM].Addr+addr, n*t.Size())
	if err != nil {
		r.t.Fatal(err)
	}
	xs := make([]float64, n)
	for i := range xs {
		switch t {
		case reg.FP16:
			xs[i] = float64(reg.HalfToFloat(binary.LittleEndian.Uint16(b[2*i:])))
		case reg.FP32:
			xs[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
		case reg.FP64:
			xs[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
		}
	}
	return xs
}

var elementTypes = []struct {
	t   reg.ElementType
	eps float64 // relative to the size of the result
}{{reg.FP16, 2e-3}, {reg.FP32, 1e-5}, {reg.FP64, 1e-12}}

// small are numbers that every type holds exactly.
func small(rnd *rand.Rand, n int) []float64 {
	xs := make([]float64, n)
	for i := range xs {
		xs[i] = float64(rnd.IntN(33)-16) / 8
	}
	return xs
}

func near(t *testing.T, name string, got, want []float64, eps float64) {
	t.Helper()
	scale := 1.0
	for _, w := range want {
		scale = max(scale, math.Abs(w))
	}
	for i := range want {
		if math.IsNaN(got[i]) || math.Abs(got[i]-want[i]) > eps*scale {
			t.Fatalf("%s: element %d is %v, want %v", name, i, got[i], want[i])
		}
	}
}

const (
	atA = 0
	atB = 8 << 20
	atC = 16 << 20
)

func TestStreamKernels(t *testing.T) {
	for _, e := range elementTypes {
		for _, n := range []int{1, 7, 4096, 4097, 70_001} {
			r := newGPUHost(t, gpu.Spec{VRAM: 64 << 20})
			rnd := rand.New(rand.NewPCG(uint64(n), 0))
			a, b := small(rnd, n), small(rnd, n)
			const off = 8 // not at a chunk
			r.put(atA+off, e.t, a)
			r.put(atB+off, e.t, b)
			const alpha = 1.5
			for id, f := range map[reg.KernelID]func(i int) float64{
				reg.KernelCopy:  func(i int) float64 { return a[i] },
				reg.KernelScale: func(i int) float64 { return alpha * a[i] },
				reg.KernelAdd:   func(i int) float64 { return a[i] + b[i] },
				reg.KernelTriad: func(i int) float64 { return a[i] + alpha*b[i] },
				reg.KernelWrite: func(int) float64 { return alpha },
			} {
				r.put(atC+off, e.t, make([]float64, n+1))
				r.do(0, reg.Kernel(1, reg.Launch{Kernel: id, Type: e.t, A: atA + off, B: atB + off, C: atC + off, M: uint32(n), Alpha: alpha}))
				want := make([]float64, n+1) // one more: the kernel leaves it alone
				for i := range n {
					want[i] = f(i)
				}
				near(t, id.String(), r.get(atC+off, e.t, n+1), want, e.eps)
			}
			r.do(0, reg.Kernel(1, reg.Launch{Kernel: reg.KernelRead, Type: e.t, A: atA + off, C: atC, M: uint32(n)}))
			sum := 0.0
			for _, x := range a {
				sum += x
			}
			near(t, "read", r.get(atC, reg.FP64, 1), []float64{sum}, 1e-12)
		}
	}
}

func TestGEMM(t *testing.T) {
	for _, e := range elementTypes {
		for _, d := range []struct{ m, n, k int }{{1, 1, 1}, {3, 5, 7}, {64, 32, 16}, {33, 100, 65}, {65, 200, 520}} {
			for flags := range uint8(4) {
				r := newGPUHost(t, gpu.Spec{VRAM: 64 << 20})
				rnd := rand.New(rand.NewPCG(1, 2))
				a, b, c := small(rnd, d.m*d.k), small(rnd, d.k*d.n), small(rnd, d.m*d.n)
				r.put(atA, e.t, a)
				r.put(atB, e.t, b)
				r.put(atC, e.t, c)
				l := reg.Launch{
					Kernel: reg.KernelGEMM, Type: e.t, A: atA, B: atB, C: atC,
					M: uint32(d.m), N: uint32(d.n), K: uint32(d.k), Alpha: 0.5, Beta: float64(flags),
				}
				if flags&1 != 0 {
					l.Flags |= reg.KernelTransA
				}
				if flags&2 != 0 {
					l.Flags |= reg.KernelTransB
				}
				r.do(0, reg.Kernel(1, l))
				want := make([]float64, d.m*d.n)
				for i := range d.m {
					for j := range d.n {
						sum := 0.0
						for k := range d.k {
							x, y := a[i*d.k+k], b[k*d.n+j]
							if flags&1 != 0 {
								x = a[k*d.m+i]
							}
							if flags&2 != 0 {
								y = b[j*d.k+k]
							}
							sum += x * y
						}
						want[i*d.n+j] = 0.5*sum + float64(flags)*c[i*d.n+j]
					}
				}
				near(t, "gemm", r.get(atC, e.t, d.m*d.n), want, e.eps)
			}
		}
	}
}

func TestFFT(t *testing.T) {
	for _, e := range elementTypes {
		for _, n := range []int{1, 2, 3, 60, 128, 250} {
			const batch = 3
			r := newGPUHost(t, gpu.Spec{VRAM: 64 << 20})
			x := small(rand.New(rand.NewPCG(3, 4)), 2*n*batch)
			r.put(atA, e.t, x)
			r.do(0, reg.Kernel(1, reg.Launch{Kernel: reg.KernelFFT, Type: e.t, A: atA, C: atC, M: uint32(n), N: batch}))
			want := make([]float64, len(x))
			for b := range batch {
				for k := range n {
					sum := complex(0, 0)
					for i := range n {
						at := 2 * (b*n + i)
						sum += complex(x[at], x[at+1]) * cmplx.Exp(complex(0, -2*math.Pi*float64(i*k%n)/float64(n)))
					}
					want[2*(b*n+k)], want[2*(b*n+k)+1] = real(sum), imag(sum)
				}
			}
			near(t, "fft", r.get(atC, e.t, len(x)), want, e.eps)
			r.do(0, reg.Kernel(2, reg.Launch{Kernel: reg.KernelFFT, Flags: reg.KernelInverse, Type: e.t, A: atC, C: atB, M: uint32(n), N: batch}))
			near(t, "inverse", r.get(atB, e.t, len(x)), x, 10*e.eps)
		}
	}
}

// A long transform is cut into parts: the result is that of the transform in one
// piece.
func TestLongFFT(t *testing.T) {
	for _, n := range []int{1<<15 + 1<<13, 1 << 16, 6 * 6 * 6 * 6 * 6 * 6} {
		r := newGPUHost(t, gpu.Spec{VRAM: 64 << 20})
		x := small(rand.New(rand.NewPCG(5, 6)), 2*n)
		r.put(atA, reg.FP64, x)
		r.do(0, reg.Kernel(1, reg.Launch{Kernel: reg.KernelFFT, Type: reg.FP64, A: atA, C: atC, M: uint32(n), N: 1}))
		points := make([]complex128, n)
		for i := range points {
			points[i] = complex(x[2*i], x[2*i+1])
		}
		fourier.NewCmplxFFT(n).Coefficients(points, points)
		want := make([]float64, 2*n)
		for i, p := range points {
			want[2*i], want[2*i+1] = real(p), imag(p)
		}
		near(t, "fft", r.get(atC, reg.FP64, 2*n), want, 1e-12)
		r.do(0, reg.Kernel(2, reg.Launch{Kernel: reg.KernelFFT, Flags: reg.KernelInverse, Type: reg.FP64, A: atC, C: atB, M: uint32(n), N: 1}))
		near(t, "inverse", r.get(atB, reg.FP64, 2*n), x, 1e-12)
	}
}

// A kernel works on a snapshot: accesses of the host meanwhile neither disturb it
// nor race with it. The job runs on another goroutine, for -race.
func TestKernelRunsBesideTheHost(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{VRAM: 4 << 20})
	n := 100_000
	ones := make([]float64, n)
	for i := range ones {
		ones[i] = 1
	}
	r.put(atA, reg.FP32, ones)
	c := reg.Kernel(1, reg.Launch{Kernel: reg.KernelScale, Type: reg.FP32, A: atA, C: 1 << 20, M: uint32(n), Alpha: 3})
	r.host.OnJob = func(run func()) {
		done := make(chan struct{})
		go func() { defer close(done); run() }()
		b := make([]byte, 1000)
		for i := range 100 {
			r.host.Write(r.bars[reg.BARVRAM].Addr+uint64(i)*4000, b)
			r.host.Write(r.bars[reg.BARVRAM].Addr+1<<20+uint64(i)*4000, b)
			if _, err := r.host.Read(r.bars[reg.BARVRAM].Addr+1<<20, 4096); err != nil {
				t.Error(err)
			}
		}
		<-done
	}
	r.do(0, c)
	for i, x := range r.get(1<<20, reg.FP32, n) {
		if x != 3 {
			t.Fatalf("element %d is %v", i, x)
		}
	}
	if r.get(atA, reg.FP32, 1)[0] != 0 {
		t.Error("the host's write to an operand was lost")
	}
}

func TestKernelCost(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{VRAM: 256 << 20, FP32: 1e9, MemoryBandwidth: 1e9})
	for _, tt := range []struct {
		name   string
		launch reg.Launch
		want   time.Duration
	}{
		{"gemm by operations", reg.Launch{Kernel: reg.KernelGEMM, Type: reg.FP32, C: 1 << 22, M: 128, N: 128, K: 128}, 4194304 * time.Nanosecond},
		{"copy by bytes", reg.Launch{Kernel: reg.KernelCopy, Type: reg.FP32, C: 1 << 24, M: 1 << 20}, 8388608 * time.Nanosecond},
	} {
		start := r.host.Now
		r.do(0, reg.Kernel(1, tt.launch))
		if got := r.host.Now - start; got < tt.want || got > tt.want+20*time.Microsecond {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	if r.read64(reg.CountKernels) != 2 {
		t.Error("kernel counter")
	}
}
