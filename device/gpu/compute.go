package gpu

import (
	"encoding/binary"
	"math"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
	"gonum.org/v1/gonum/dsp/fourier"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// block is the number of elements that a stream kernel works on at a time: small enough
// for the first-level cache, large enough to hide the conversion's call.
const block = 4096

type number interface{ float32 | float64 }

// copyBytes is a COPY inside VRAM.
func (j *job) copyBytes() {
	buf := make([]byte, chunkSize)
	for at := int64(0); at < j.out.n; at += chunkSize {
		b := buf[:min(chunkSize, j.out.n-at)]
		j.a.read(b, at)
		j.out.write(at, b)
	}
}

func (j *job) fill() {
	buf := make([]byte, chunkSize)
	for i := 0; i < len(buf); i += 4 {
		binary.LittleEndian.PutUint32(buf[i:], uint32(j.cmd.Arg1))
	}
	for at := int64(0); at < j.out.n; at += chunkSize {
		j.out.write(at, buf[:min(chunkSize, j.out.n-at)])
	}
}

func runKernel[T number](j *job) {
	switch reg.KernelID(j.cmd.Sub) {
	case reg.KernelGEMM:
		runGEMM[T](j)
	case reg.KernelFFT:
		runFFT[T](j)
	case reg.KernelRead:
		runSum[T](j)
	default:
		runStream[T](j)
	}
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

func runStream[T number](j *job) {
	var a, b, c [block]T
	buf := make([]byte, block*8)
	alpha := T(j.cmd.Alpha)
	id := reg.KernelID(j.cmd.Sub)
	for i := int64(0); i < j.count; i += block {
		n := min(block, j.count-i)
		if j.a.n != 0 {
			load(a[:n], &j.a, i, j.elem, buf)
		}
		if j.b.n != 0 {
			load(b[:n], &j.b, i, j.elem, buf)
		}
		switch id {
		case reg.KernelCopy:
			copy(c[:n], a[:n])
		case reg.KernelScale:
			for k := range c[:n] {
				c[k] = alpha * a[k]
			}
		case reg.KernelAdd:
			for k := range c[:n] {
				c[k] = a[k] + b[k]
			}
		case reg.KernelTriad:
			for k := range c[:n] {
				c[k] = a[k] + alpha*b[k]
			}
		default: // KernelWrite: streamShape refuses all others
			for k := range c[:n] {
				c[k] = alpha
			}
		}
		store(&j.out, i, c[:n], j.elem, buf)
	}
}

func runSum[T number](j *job) {
	var a [block]T
	buf := make([]byte, block*8)
	sum := 0.0
	for i := int64(0); i < j.count; i += block {
		n := min(block, j.count-i)
		load(a[:n], &j.a, i, j.elem, buf)
		for _, x := range a[:n] {
			sum += float64(x)
		}
	}
	store(&j.out, 0, []float64{sum}, reg.FP64, buf)
}

func runGEMM[T number](j *job) {
	m, n, k := int(j.cmd.Dim0), int(j.cmd.Dim1), int(j.cmd.Dim2)
	buf := make([]byte, block*8)
	a, b, c := make([]T, m*k), make([]T, k*n), make([]T, m*n)
	load(a, &j.a, 0, j.elem, buf)
	load(b, &j.b, 0, j.elem, buf)
	if j.c.n != 0 {
		load(c, &j.c, 0, j.elem, buf)
	}
	ta, lda := blas.NoTrans, k
	if j.cmd.Flags&reg.KernelTransA != 0 {
		ta, lda = blas.Trans, m
	}
	tb, ldb := blas.NoTrans, n
	if j.cmd.Flags&reg.KernelTransB != 0 {
		tb, ldb = blas.Trans, k
	}
	var lib gonum.Implementation
	switch a := any(a).(type) {
	case []float32:
		lib.Sgemm(ta, tb, m, n, k, float32(j.cmd.Alpha), a, lda, any(b).([]float32), ldb, float32(j.cmd.Beta), any(c).([]float32), n)
	case []float64:
		lib.Dgemm(ta, tb, m, n, k, j.cmd.Alpha, a, lda, any(b).([]float64), ldb, j.cmd.Beta, any(c).([]float64), n)
	}
	store(&j.out, 0, c, j.elem, buf)
}

func runFFT[T number](j *job) {
	length := int(j.cmd.Dim0)
	buf := make([]byte, block*8)
	re := make([]T, 2*length)
	points := make([]complex128, length)
	fft := fourier.NewCmplxFFT(length)
	inverse := j.cmd.Flags&reg.KernelInverse != 0
	for t := range int64(j.cmd.Dim1) {
		load(re, &j.a, t*int64(2*length), j.elem, buf)
		for i := range points {
			points[i] = complex(float64(re[2*i]), float64(re[2*i+1]))
		}
		scale := 1.0
		if inverse {
			fft.Sequence(points, points)
			scale = 1 / float64(length)
		} else {
			fft.Coefficients(points, points)
		}
		for i, p := range points {
			re[2*i], re[2*i+1] = T(real(p)*scale), T(imag(p)*scale)
		}
		store(&j.out, t*int64(2*length), re, j.elem, buf)
	}
}
