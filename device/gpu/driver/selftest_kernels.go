package driver

import (
	"context"
	"fmt"
	"math"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// kernels returns a check for each kernel and element type that the device has.
func (t *tester) kernels() []item {
	var items []item
	for _, typ := range []reg.ElementType{reg.FP16, reg.FP32, reg.FP64} {
		if typ == reg.FP16 && t.dev.info.Caps&reg.CapFP16 == 0 || typ == reg.FP64 && t.dev.info.Caps&reg.CapFP64 == 0 {
			continue
		}
		items = append(items,
			item{fmt.Sprintf("kernel gemm %v", typ), func(ctx context.Context, c *Check) error { return t.gemm(ctx, c, typ) }},
			item{fmt.Sprintf("kernel fft %v", typ), func(ctx context.Context, c *Check) error { return t.fft(ctx, c, typ) }},
			item{fmt.Sprintf("kernels of streams %v", typ), func(ctx context.Context, c *Check) error { return t.streamKernels(ctx, c, typ) }},
		)
	}
	return items
}

// numbers returns n numbers from -1 to 1 that the type can hold exactly.
func (t *tester) numbers(typ reg.ElementType, n int) []float64 {
	values := make([]float64, n)
	for i := range values {
		values[i] = 2*t.rng.Float64() - 1
	}
	return elements(appendElements(nil, typ, values), typ, n)
}

// launch uploads the operands, runs a kernel and returns n results. A, B and C
// are placed here; c is what is in C before.
func (t *tester) launch(ctx context.Context, l reg.Launch, a, b, c []float64, n int, result reg.ElementType) ([]float64, error) {
	at := t.scratch
	for _, operand := range []struct {
		addr   *uint64
		values []float64
		size   int
	}{{&l.A, a, len(a) * l.Type.Size()}, {&l.B, b, len(b) * l.Type.Size()}, {&l.C, c, n * result.Size()}} {
		*operand.addr = uint64(at)
		next := at + Ptr(max(operand.size, 1)+mallocAlign-1)&^(mallocAlign-1)
		if int(next-t.scratch) > t.size {
			return nil, fmt.Errorf("operands need %d bytes, there are %d", next-t.scratch, t.size)
		}
		if len(operand.values) > 0 {
			if err := t.stream.Upload(ctx, at, appendElements(nil, l.Type, operand.values)); err != nil {
				return nil, err
			}
		}
		at = next
	}
	if err := t.stream.Launch(ctx, l); err != nil {
		return nil, err
	}
	raw := make([]byte, n*result.Size())
	if err := t.stream.Download(ctx, raw, Ptr(l.C)); err != nil {
		return nil, fmt.Errorf("%v: %w", l.Kernel, err)
	}
	return elements(raw, result, n), nil
}

func (t *tester) gemm(ctx context.Context, c *Check, typ reg.ElementType) error {
	shapes := []reg.Launch{
		{M: 1, N: 1, K: 1, Alpha: 1},
		{M: 17, N: 5, K: 33, Alpha: 0.5, Beta: 2},
		{M: 12, N: 30, K: 7, Alpha: 1, Flags: reg.KernelTransA},
		{M: 9, N: 8, K: 65, Alpha: -1, Beta: 1, Flags: reg.KernelTransB},
		{M: 64, N: 48, K: 32, Alpha: 1, Flags: reg.KernelTransA | reg.KernelTransB},
	}
	if !t.opts.Quick {
		shapes = append(shapes, reg.Launch{M: 200, N: 200, K: 200, Alpha: 1})
	}
	var work float64
	began := t.dev.bus.Now()
	for _, l := range shapes {
		l.Kernel, l.Type = reg.KernelGEMM, typ
		a, b := t.numbers(typ, int(l.M*l.K)), t.numbers(typ, int(l.K*l.N))
		before := t.numbers(typ, int(l.M*l.N))
		got, err := t.launch(ctx, l, a, b, before, int(l.M*l.N), typ)
		if err != nil {
			return err
		}
		// The sum of K terms of size 1/3 on average; errors grow with it.
		if err := closeTo(got, gemm(l, a, b, before), typ, math.Sqrt(float64(l.K))); err != nil {
			return fmt.Errorf("%dx%dx%d: %w", l.M, l.N, l.K, err)
		}
		work += 2 * float64(l.M) * float64(l.N) * float64(l.K)
	}
	c.Detail = fmt.Sprintf("%d shapes", len(shapes))
	c.Value, c.Unit = work/(t.dev.bus.Now()-began).Seconds()/1e9, "GFLOPS with copies and checks"
	return nil
}

func (t *tester) fft(ctx context.Context, c *Check, typ reg.ElementType) error {
	shapes := [][2]int{{1, 3}, {8, 4}, {60, 2}, {256, 1}}
	for _, shape := range shapes {
		n, count := shape[0], shape[1]
		for _, inverse := range []bool{false, true} {
			l := reg.Launch{Kernel: reg.KernelFFT, Type: typ, M: uint32(n), N: uint32(count)}
			if inverse {
				l.Flags = reg.KernelInverse
			}
			in := t.numbers(typ, 2*n*count)
			got, err := t.launch(ctx, l, in, nil, nil, len(in), typ)
			if err != nil {
				return err
			}
			if err := closeTo(got, dft(in, n, count, inverse), typ, math.Sqrt(float64(n))); err != nil {
				return fmt.Errorf("%d transforms of %d points, inverse %v: %w", count, n, inverse, err)
			}
		}
	}
	c.Detail = fmt.Sprintf("%d shapes, both ways", len(shapes))
	return nil
}

// streamKernels runs copy, scale, add, triad, read and write.
func (t *tester) streamKernels(ctx context.Context, c *Check, typ reg.ElementType) error {
	const n, alpha = 10_007, 0.75
	a, b := t.numbers(typ, n), t.numbers(typ, n)
	each := func(f func(i int) float64) []float64 {
		out := make([]float64, n)
		for i := range out {
			out[i] = f(i)
		}
		return out
	}
	var sum float64
	for _, v := range a {
		sum += v
	}
	for _, k := range []struct {
		kernel reg.KernelID
		result reg.ElementType
		want   []float64
	}{
		{reg.KernelCopy, typ, a},
		{reg.KernelScale, typ, each(func(i int) float64 { return alpha * a[i] })},
		{reg.KernelAdd, typ, each(func(i int) float64 { return a[i] + b[i] })},
		{reg.KernelTriad, typ, each(func(i int) float64 { return a[i] + alpha*b[i] })},
		{reg.KernelRead, reg.FP64, []float64{sum}},
		{reg.KernelWrite, typ, each(func(int) float64 { return alpha })},
	} {
		got, err := t.launch(ctx, reg.Launch{Kernel: k.kernel, Type: typ, M: n, Alpha: alpha}, a, b, nil, len(k.want), k.result)
		if err != nil {
			return err
		}
		if err := closeTo(got, k.want, typ, 1); err != nil {
			return fmt.Errorf("%v: %w", k.kernel, err)
		}
	}
	c.Detail = "copy, scale, add, triad, read, write"
	return nil
}
