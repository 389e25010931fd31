package gpu

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// Limits of kernels: they bound the time that one command of a hostile guest
// can take and the memory that a job allocates besides VRAM.
const (
	maxGEMM       = 1 << 38 // M*N*K
	maxFFTLength  = 1 << 24
	maxFFTPoints  = 1 << 27
	launchLatency = 5 * time.Microsecond // of a kernel on the paper's V100, about
)

// job is a command that runs outside of the machine: a kernel, a FILL or a copy
// inside VRAM. It reads snapshots and writes a result of its own, so Run shares no
// memory with the machine.
type job struct {
	queue int
	epoch uint64 // of the queue, to ignore jobs from before a reset
	cmd   reg.Command
	elem  reg.ElementType
	count int64 // elements of stream kernels
	a, b  view
	c     view // old content of C, for a GEMM with beta
	out   result
	cost  time.Duration

	work     worker // made by the first Run
	canceled atomic.Bool
}

// worker computes a job part by part.
type worker interface {
	// step computes the next part and reports whether there are more.
	step(j *job) (more bool)
}

// Cost implements device.Job.
func (j *job) Cost() time.Duration { return j.cost }

// Run implements device.Job.
func (j *job) Run() (more bool) {
	if j.canceled.Load() {
		return false
	}
	if j.work == nil {
		j.work = newWorker(j)
	}
	return j.work.step(j)
}

// Restart makes the next Run begin with the first part, for a dispatcher that has taken
// the processor away from the job. A job reads snapshots, so that changes nothing else.
func (j *job) Restart() {
	j.work = nil
	j.out.chunks = nil
}

// blockBytes is the size of the result of one thread block: 256 threads with an FP32
// element each.
const blockBytes = 1024

// Blocks returns the number of thread blocks that a GPU would run.
func (j *job) Blocks() int64 { return max(1, (max(j.out.n, j.a.n)+blockBytes-1)/blockBytes) }

func newWorker(j *job) worker {
	switch {
	case j.cmd.Op == reg.OpCopy:
		return &copying{buf: make([]byte, chunkSize)}
	case j.cmd.Op == reg.OpFill:
		return newFilling(uint32(j.cmd.Arg1))
	case j.elem == reg.FP64:
		return newKernel[float64](j)
	}
	return newKernel[float32](j)
}

func (j *job) release() {
	j.a.release()
	j.b.release()
	j.c.release()
}

// plan checks a FILL, an inner COPY or a KERNEL and makes its job. It returns an
// error with the address at fault.
func (g *GPU) plan(cmd reg.Command) (*job, reg.Error, uint64) {
	switch cmd.Op {
	case reg.OpCopy:
		return g.planCopy(cmd)
	case reg.OpFill:
		return g.planFill(cmd)
	}
	return g.planKernel(cmd)
}

func (g *GPU) planCopy(cmd reg.Command) (*job, reg.Error, uint64) {
	n := cmd.Arg2
	if !g.vram.contains(cmd.Arg1, n) {
		return nil, reg.ErrRange, cmd.Arg1
	}
	if !g.vram.contains(cmd.Arg0, n) {
		return nil, reg.ErrRange, cmd.Arg0
	}
	if g.vram.tooLarge(n) {
		return nil, reg.ErrParameter, cmd.Arg0
	}
	return &job{
		cmd: cmd, a: g.vram.snapshot(int64(cmd.Arg1), int64(n)), out: newResult(int64(cmd.Arg0), int64(n)),
		cost: g.transferTime(2 * n),
	}, reg.NoError, 0
}

func (g *GPU) planFill(cmd reg.Command) (*job, reg.Error, uint64) {
	n := cmd.Arg2
	switch {
	case cmd.Flags != 0 || n == 0 || n%4 != 0 || cmd.Arg0%4 != 0 || cmd.Arg1>>32 != 0:
		return nil, reg.ErrParameter, cmd.Arg0
	case !g.vram.contains(cmd.Arg0, n):
		return nil, reg.ErrRange, cmd.Arg0
	case g.vram.tooLarge(n):
		return nil, reg.ErrParameter, cmd.Arg0
	}
	return &job{cmd: cmd, out: newResult(int64(cmd.Arg0), int64(n)), cost: g.transferTime(n)}, reg.NoError, 0
}

// shape is the size of the operands, the result and the computation of a kernel.
type shape struct {
	a, b, c uint64 // elements
	readC   bool
	flops   float64
	outElem int // bytes of an element of C
	count   int64
}

func (g *GPU) planKernel(cmd reg.Command) (*job, reg.Error, uint64) {
	elem := reg.ElementType(cmd.Flags & reg.KernelTypeMask)
	size := elem.Size()
	if size == 0 {
		return nil, reg.ErrKernel, 0
	}
	s, ok := kernelShape(cmd, size)
	if !ok {
		return nil, reg.ErrKernel, 0
	}
	for _, o := range []struct {
		addr, n uint64
		size    int
	}{{cmd.Arg0, s.a, size}, {cmd.Arg1, s.b, size}, {cmd.Arg2, s.c, s.outElem}} {
		if o.n == 0 {
			continue
		}
		hi, bytes := bits.Mul64(o.n, uint64(o.size))
		switch {
		case o.addr%uint64(o.size) != 0:
			return nil, reg.ErrParameter, o.addr
		case hi != 0 || !g.vram.contains(o.addr, bytes):
			return nil, reg.ErrRange, o.addr
		case g.vram.tooLarge(bytes):
			return nil, reg.ErrParameter, o.addr
		}
	}
	j := &job{cmd: cmd, elem: elem, count: s.count}
	j.a = g.vram.snapshot(int64(cmd.Arg0), int64(s.a)*int64(size))
	j.b = g.vram.snapshot(int64(cmd.Arg1), int64(s.b)*int64(size))
	outBytes := int64(s.c) * int64(s.outElem)
	if s.readC {
		j.c = g.vram.snapshot(int64(cmd.Arg2), outBytes)
	}
	j.out = newResult(int64(cmd.Arg2), outBytes)
	moved := uint64(j.a.n + j.b.n + j.c.n + outBytes)
	j.cost = launchLatency + max(g.transferTime(moved), seconds(s.flops/g.rate(elem)))
	return j, reg.NoError, 0
}

// kernelShape computes the operands in elements; false for an unknown kernel,
// a flag that the kernel does not have, or dimensions out of bounds.
func kernelShape(cmd reg.Command, size int) (s shape, ok bool) {
	m, n, k := uint64(cmd.Dim0), uint64(cmd.Dim1), uint64(cmd.Dim2)
	flags := cmd.Flags &^ reg.KernelTypeMask
	s.outElem = size
	switch id := reg.KernelID(cmd.Sub); id {
	case reg.KernelGEMM:
		hi, mnk := bits.Mul64(m*n, k)
		if flags&^(reg.KernelTransA|reg.KernelTransB) != 0 || hi != 0 || mnk == 0 || mnk > maxGEMM {
			return s, false
		}
		s.a, s.b, s.c = m*k, k*n, m*n
		s.readC = cmd.Beta != 0
		s.flops = 2 * float64(mnk)
		return s, true
	case reg.KernelFFT:
		if flags&^reg.KernelInverse != 0 || n == 0 || m > maxFFTLength || m*n > maxFFTPoints || !smooth(m) {
			return s, false
		}
		s.a, s.c = 2*m*n, 2*m*n
		s.flops = 5 * float64(m*n) * math.Log2(float64(max(m, 2)))
		return s, true
	default:
		count := m | n<<32
		if flags != 0 || count == 0 || count > maxVRAM {
			return s, false
		}
		s.count = int64(count)
		return streamShape(id, s)
	}
}

func streamShape(id reg.KernelID, s shape) (shape, bool) {
	n := uint64(s.count)
	s.a, s.c = n, n
	switch id {
	case reg.KernelCopy:
	case reg.KernelScale:
		s.flops = float64(n)
	case reg.KernelAdd:
		s.b, s.flops = n, float64(n)
	case reg.KernelTriad:
		s.b, s.flops = n, 2*float64(n)
	case reg.KernelRead:
		s.c, s.outElem, s.flops = 1, 8, float64(n)
	case reg.KernelWrite:
		s.a = 0
	default:
		return s, false
	}
	return s, true
}

// smooth reports whether n has no prime factor above 5. Any other length
// would cost the square of its largest factor.
func smooth(n uint64) bool {
	for _, p := range []uint64{2, 3, 5} {
		for n > 0 && n%p == 0 {
			n /= p
		}
	}
	return n == 1
}

func (g *GPU) transferTime(n uint64) time.Duration {
	return seconds(float64(n) / g.spec.MemoryBandwidth)
}

func (g *GPU) rate(t reg.ElementType) float64 {
	return [...]float64{reg.FP16: g.spec.FP16, reg.FP32: g.spec.FP32, reg.FP64: g.spec.FP64}[t]
}

// seconds converts with saturation: a Spec may have absurdly low rates.
func seconds(s float64) time.Duration {
	const most = time.Hour
	if s >= most.Seconds() {
		return most
	}
	return time.Duration(s * float64(time.Second))
}
