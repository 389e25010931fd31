package gpu

import (
	"encoding/binary"
	"math"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// Sizes of the parts into which computations are cut, see device.Job.
const (
	// block is the number of elements that a stream kernel works on at a time:
	// small enough for the first-level cache, large enough to hide the
	// conversion's call.
	block = 4096
	// partBlocks and partChunks make parts of some milliseconds.
	partBlocks = 64
	partChunks = 64 // 4 MiB
)

type number interface{ float32 | float64 }

// copying is a COPY inside VRAM, filling a FILL.
type copying struct {
	buf []byte
	at  int64
}

func (w *copying) step(j *job) (more bool) {
	for range partChunks {
		b := w.buf[:min(chunkSize, j.out.n-w.at)]
		j.a.read(b, w.at)
		j.out.write(w.at, b)
		if w.at += int64(len(b)); w.at == j.out.n {
			return false
		}
	}
	return true
}

type filling struct {
	buf []byte
	at  int64
}

func newFilling(word uint32) *filling {
	w := &filling{buf: make([]byte, chunkSize)}
	for i := 0; i < len(w.buf); i += 4 {
		binary.LittleEndian.PutUint32(w.buf[i:], word)
	}
	return w
}

func (w *filling) step(j *job) (more bool) {
	for range partChunks {
		b := w.buf[:min(chunkSize, j.out.n-w.at)]
		j.out.write(w.at, b)
		if w.at += int64(len(b)); w.at == j.out.n {
			return false
		}
	}
	return true
}

func newKernel[T number](j *job) worker {
	buf := make([]byte, block*8)
	switch reg.KernelID(j.cmd.Sub) {
	case reg.KernelGEMM:
		return newGEMM[T](j, buf)
	case reg.KernelFFT:
		return newFFT[T](j, buf)
	case reg.KernelRead:
		return &summing[T]{buf: buf}
	}
	return &streaming[T]{buf: buf}
}

// load converts len(dst) elements from element i of the view.
func load[T number](dst []T, v *view, i int64, t reg.ElementType, buf []byte) {
	size := t.Size()
	per := len(buf) / size
	for len(dst) > 0 {
		n := min(len(dst), per)
		b := buf[:n*size]
		v.read(b, i*int64(size))
		switch t {
		case reg.FP16:
			for k := range n {
				dst[k] = T(reg.HalfToFloat(binary.LittleEndian.Uint16(b[2*k:])))
			}
		case reg.FP32:
			for k := range n {
				dst[k] = T(math.Float32frombits(binary.LittleEndian.Uint32(b[4*k:])))
			}
		case reg.FP64:
			for k := range n {
				dst[k] = T(math.Float64frombits(binary.LittleEndian.Uint64(b[8*k:])))
			}
		}
		dst, i = dst[n:], i+int64(n)
	}
}

// store converts src to elements from element i of the result.
func store[T number](r *result, i int64, src []T, t reg.ElementType, buf []byte) {
	size := t.Size()
	per := len(buf) / size
	for len(src) > 0 {
		n := min(len(src), per)
		b := buf[:n*size]
		switch t {
		case reg.FP16:
			for k := range n {
				binary.LittleEndian.PutUint16(b[2*k:], reg.FloatToHalf(float32(src[k])))
			}
		case reg.FP32:
			for k := range n {
				binary.LittleEndian.PutUint32(b[4*k:], math.Float32bits(float32(src[k])))
			}
		case reg.FP64:
			for k := range n {
				binary.LittleEndian.PutUint64(b[8*k:], math.Float64bits(float64(src[k])))
			}
		}
		r.write(i*int64(size), b)
		src, i = src[n:], i+int64(n)
	}
}

// streaming is a kernel that computes element by element.
type streaming[T number] struct {
	a, b, c [block]T
	buf     []byte
	at      int64
}

func (w *streaming[T]) step(j *job) (more bool) {
	for range partBlocks {
		n := min(block, j.count-w.at)
		w.block(j, int(n))
		if w.at += n; w.at == j.count {
			return false
		}
	}
	return true
}

// block computes the next n elements.
func (w *streaming[T]) block(j *job, n int) {
	a, b, c, alpha := w.a[:n], w.b[:n], w.c[:n], T(j.cmd.Alpha)
	if j.a.n != 0 {
		load(a, &j.a, w.at, j.elem, w.buf)
	}
	if j.b.n != 0 {
		load(b, &j.b, w.at, j.elem, w.buf)
	}
	switch reg.KernelID(j.cmd.Sub) {
	case reg.KernelCopy:
		copy(c, a)
	case reg.KernelScale:
		for k := range c {
			c[k] = alpha * a[k]
		}
	case reg.KernelAdd:
		for k := range c {
			c[k] = a[k] + b[k]
		}
	case reg.KernelTriad:
		for k := range c {
			c[k] = a[k] + alpha*b[k]
		}
	default: // KernelWrite: streamShape refuses all others
		for k := range c {
			c[k] = alpha
		}
	}
	store(&j.out, w.at, c, j.elem, w.buf)
}

// summing is the READ kernel.
type summing[T number] struct {
	a   [block]T
	buf []byte
	at  int64
	sum float64
}

func (w *summing[T]) step(j *job) (more bool) {
	for range partBlocks {
		n := min(block, j.count-w.at)
		load(w.a[:n], &j.a, w.at, j.elem, w.buf)
		for _, x := range w.a[:n] {
			w.sum += float64(x)
		}
		if w.at += n; w.at == j.count {
			store(&j.out, 0, []float64{w.sum}, reg.FP64, w.buf)
			return false
		}
	}
	return true
}
