package gpu

import (
	"math"
	"math/cmplx"

	"gonum.org/v1/gonum/dsp/fourier"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// partPoints is the number of points that a step of an FFT works on. A transform
// of more points is cut into rows and columns.
const partPoints = 1 << 15

// fft computes transforms of rows*cols points each. Of a long transform (Bailey's
// four steps), the points stand in a matrix: it transforms the columns, multiplies
// by the twiddle factors, transforms the rows, and stores the columns of the
// result. A short transform is a matrix of one row.
type fft[T number] struct {
	length, rows, cols int
	inverse            bool
	byRow, byCol       *fourier.CmplxFFT
	points             [][]complex128 // the rows; the first load makes each, so no part waits for a large allocation
	column             []complex128
	pair               []T // of numbers: real and imaginary part
	buf                []byte

	transform int64 // the present one
	phase     fftPhase
	at        int // points, columns or rows that the phase has passed
}

type fftPhase uint8

const (
	fftLoad fftPhase = iota
	fftColumns
	fftRows
	fftStore
)

func newFFT[T number](j *job, buf []byte) *fft[T] {
	w := &fft[T]{length: int(j.cmd.Dim0), inverse: j.cmd.Flags&reg.KernelInverse != 0, buf: buf}
	w.rows = divisor(w.length)
	w.cols = w.length / w.rows
	w.byRow = fourier.NewCmplxFFT(w.cols)
	if w.rows > 1 {
		w.byCol = fourier.NewCmplxFFT(w.rows)
	}
	w.points, w.column = make([][]complex128, w.rows), make([]complex128, w.rows)
	w.pair = make([]T, 2*block)
	return w
}

// divisor returns the number of rows for a length without prime factors above 5:
// 1 for a short transform, otherwise the largest divisor up to the square root.
func divisor(length int) int {
	if length <= partPoints {
		return 1
	}
	d := int(math.Sqrt(float64(length)))
	for length%d != 0 {
		d--
	}
	return d
}

// step computes transforms, or parts of one, of partPoints points.
func (w *fft[T]) step(j *job) (more bool) {
	for left := partPoints; left > 0; {
		switch w.phase {
		case fftLoad:
			left -= w.load(j)
			w.next(w.length, fftColumns)
		case fftColumns:
			if w.rows == 1 {
				w.at = w.cols
			} else {
				w.transformColumn()
				left -= w.rows
			}
			w.next(w.cols, fftRows)
		case fftRows:
			w.apply(w.byRow, w.points[w.at])
			w.at++
			left -= w.cols
			w.next(w.rows, fftStore)
		case fftStore:
			left -= w.store(j)
			if w.next(w.length, fftLoad); w.phase == fftLoad {
				if w.transform++; w.transform == int64(j.cmd.Dim1) {
					return false
				}
			}
		}
	}
	return true
}

// next begins another phase when the present one has passed all of n.
func (w *fft[T]) next(n int, then fftPhase) {
	if w.at == n {
		w.at, w.phase = 0, then
	}
}

func (w *fft[T]) apply(f *fourier.CmplxFFT, x []complex128) {
	if w.inverse {
		f.Sequence(x, x)
	} else {
		f.Coefficients(x, x)
	}
}

// load reads up to block points of a row and returns their number.
func (w *fft[T]) load(j *job) int {
	row, col := w.at/w.cols, w.at%w.cols
	if w.points[row] == nil {
		w.points[row] = make([]complex128, w.cols)
	}
	n := min(block, w.cols-col)
	load(w.pair[:2*n], &j.a, 2*(w.transform*int64(w.length)+int64(w.at)), j.elem, w.buf)
	for i := range n {
		w.points[row][col+i] = complex(float64(w.pair[2*i]), float64(w.pair[2*i+1]))
	}
	w.at += n
	return n
}

// transformColumn transforms a column and multiplies it by its twiddle factors.
func (w *fft[T]) transformColumn() {
	for r := range w.rows {
		w.column[r] = w.points[r][w.at]
	}
	w.apply(w.byCol, w.column)
	angle := -2 * math.Pi * float64(w.at) / float64(w.length)
	if w.inverse {
		angle = -angle
	}
	for r := range w.rows {
		// The product of r and the column is below 2^24, so the angle is exact enough.
		w.points[r][w.at] = w.column[r] * cmplx.Rect(1, angle*float64(r))
	}
	w.at++
}

// store writes up to block points of the result, which stands in the matrix column
// by column, and returns their number.
func (w *fft[T]) store(j *job) int {
	scale := 1.0
	if w.inverse {
		scale = 1 / float64(w.length)
	}
	n := min(block, w.length-w.at)
	for i := range n {
		at := w.at + i
		p := w.points[at%w.rows][at/w.rows]
		w.pair[2*i], w.pair[2*i+1] = T(real(p)*scale), T(imag(p)*scale)
	}
	store(&j.out, 2*(w.transform*int64(w.length)+int64(w.at)), w.pair[:2*n], j.elem, w.buf)
	w.at += n
	return n
}
