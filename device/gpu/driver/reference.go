package driver

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/cmplx"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// appendElements encodes numbers in an element type.
func appendElements(b []byte, t reg.ElementType, values []float64) []byte {
	for _, v := range values {
		switch t {
		case reg.FP16:
			b = binary.LittleEndian.AppendUint16(b, reg.FloatToHalf(float32(v)))
		case reg.FP32:
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(float32(v)))
		case reg.FP64:
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
		}
	}
	return b
}

// elements decodes n numbers.
func elements(b []byte, t reg.ElementType, n int) []float64 {
	values := make([]float64, n)
	for i := range values {
		switch t {
		case reg.FP16:
			values[i] = float64(reg.HalfToFloat(binary.LittleEndian.Uint16(b[2*i:])))
		case reg.FP32:
			values[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
		case reg.FP64:
			values[i] = math.Float64frombits(binary.LittleEndian.Uint64(b[8*i:]))
		}
	}
	return values
}

// tolerance returns the permitted relative error of a result: several units in the
// last place (2^-11, 2^-24, 2^-53), because errors add up.
func tolerance(t reg.ElementType) float64 {
	switch t {
	case reg.FP16:
		return 0x1p-9
	case reg.FP32:
		return 0x1p-20
	case reg.FP64:
	}
	return 0x1p-46
}

// closeTo compares numbers. scale is the magnitude of their operands, for results
// whose terms cancel.
func closeTo(got, want []float64, t reg.ElementType, scale float64) error {
	for i := range want {
		if d := math.Abs(got[i] - want[i]); !(d <= tolerance(t)*max(math.Abs(want[i]), scale)) {
			return fmt.Errorf("element %d of %d is %g, want %g", i, len(want), got[i], want[i])
		}
	}
	return nil
}

// gemm computes C = alpha*op(A)*op(B) + beta*C by the definition.
func gemm(l reg.Launch, a, b, c []float64) []float64 {
	m, n, k := int(l.M), int(l.N), int(l.K)
	out := make([]float64, m*n)
	for i := range m {
		for j := range n {
			var sum float64
			for x := range k {
				ai, bi := i*k+x, x*n+j
				if l.Flags&reg.KernelTransA != 0 {
					ai = x*m + i
				}
				if l.Flags&reg.KernelTransB != 0 {
					bi = j*k + x
				}
				sum += a[ai] * b[bi]
			}
			out[i*n+j] = l.Alpha * sum
			if l.Beta != 0 {
				out[i*n+j] += l.Beta * c[i*n+j]
			}
		}
	}
	return out
}

// dft computes count transforms of n complex points by the definition.
func dft(in []float64, n, count int, inverse bool) []float64 {
	out := make([]float64, len(in))
	sign, scale := -1.0, 1.0
	if inverse {
		sign, scale = 1, 1/float64(n)
	}
	roots := make([]complex128, n)
	for i := range roots {
		roots[i] = cmplx.Rect(scale, sign*2*math.Pi*float64(i)/float64(n))
	}
	for t := range count {
		at := in[2*n*t:]
		for k := range n {
			var sum complex128
			for x := range n {
				sum += complex(at[2*x], at[2*x+1]) * roots[k*x%n]
			}
			out[2*(n*t+k)], out[2*(n*t+k)+1] = real(sum), imag(sum)
		}
	}
	return out
}
