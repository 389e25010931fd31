package gpu

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// Size of a tile: the part of a GEMM that one step multiplies, some milliseconds.
// The library computes up to three of its blocks of 64 by 64 in one goroutine,
// and more of them in several, which would take the processors of other tenants.
const (
	tileRows  = 64
	tileCols  = 192
	tileDepth = 512
)

// gemm multiplies tile by tile: for each tile of C, all those of A's rows and B's
// columns.
type gemm[T number] struct {
	m, n, k        int // dimensions
	row, col, deep int // first elements of the next tile
	transA, transB bool
	a, b, c        []T
	buf            []byte
}

func newGEMM[T number](j *job, buf []byte) *gemm[T] {
	return &gemm[T]{
		m: int(j.cmd.Dim0), n: int(j.cmd.Dim1), k: int(j.cmd.Dim2),
		transA: j.cmd.Flags&reg.KernelTransA != 0, transB: j.cmd.Flags&reg.KernelTransB != 0,
		a: make([]T, tileRows*tileDepth), b: make([]T, tileDepth*tileCols), c: make([]T, tileRows*tileCols),
		buf: buf,
	}
}

func (w *gemm[T]) step(j *job) (more bool) {
	rows, cols, depth := min(tileRows, w.m-w.row), min(tileCols, w.n-w.col), min(tileDepth, w.k-w.deep)
	beta := 1.0
	if w.deep == 0 {
		beta = j.cmd.Beta
		if j.c.n != 0 {
			w.eachRow(rows, cols, func(c []T, at int64) { load(c, &j.c, at, j.elem, w.buf) })
		}
	}
	ta, lda := w.operand(j, w.a, &j.a, w.transA, tile{w.row, w.deep, rows, depth, w.m, w.k})
	tb, ldb := w.operand(j, w.b, &j.b, w.transB, tile{w.deep, w.col, depth, cols, w.k, w.n})
	var lib gonum.Implementation
	switch a := any(w.a).(type) {
	case []float32:
		lib.Sgemm(ta, tb, rows, cols, depth, float32(j.cmd.Alpha), a, lda, any(w.b).([]float32), ldb, float32(beta), any(w.c).([]float32), cols)
	case []float64:
		lib.Dgemm(ta, tb, rows, cols, depth, j.cmd.Alpha, a, lda, any(w.b).([]float64), ldb, beta, any(w.c).([]float64), cols)
	}
	if w.deep += depth; w.deep < w.k {
		return true
	}
	w.eachRow(rows, cols, func(c []T, at int64) { store(&j.out, at, c, j.elem, w.buf) })
	w.deep = 0
	if w.col += cols; w.col < w.n {
		return true
	}
	w.col = 0
	w.row += rows
	return w.row < w.m
}

// eachRow calls f with each row of the tile of C and the element where it starts.
func (w *gemm[T]) eachRow(rows, cols int, f func(c []T, at int64)) {
	for i := range rows {
		f(w.c[i*cols:][:cols], int64(w.row+i)*int64(w.n)+int64(w.col))
	}
}

// tile is a part of a matrix: its place, its size, and the size of the matrix.
type tile struct{ row, col, rows, cols, allRows, allCols int }

// operand loads a tile of A or B in the order in which the matrix is stored. It
// returns that order and the length of a stored row.
func (w *gemm[T]) operand(j *job, dst []T, from *view, transposed bool, t tile) (blas.Transpose, int) {
	order := blas.NoTrans
	if transposed {
		t = tile{t.col, t.row, t.cols, t.rows, t.allCols, t.allRows}
		order = blas.Trans
	}
	for i := range t.rows {
		load(dst[i*t.cols:][:t.cols], from, int64(t.row+i)*int64(t.allCols)+int64(t.col), j.elem, w.buf)
	}
	return order, t.cols
}
