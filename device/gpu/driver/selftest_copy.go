package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

func (t *tester) registers(_ context.Context, c *Check) error {
	regs := t.dev.regs
	for i := range uint64(reg.ScratchCount) {
		for _, v := range []uint32{0, 0x5555_5555, 0xaaaa_aaaa, t.rng.Uint32()} {
			regs.Write32(reg.Scratch+4*i, v)
			if got := regs.Read32(reg.Scratch + 4*i); got != v {
				return fmt.Errorf("scratch register %d is %#x, want %#x", i, got, v)
			}
		}
	}
	v := t.rng.Uint64()
	regs.Write64(reg.Scratch, v)
	if got := regs.Read64(reg.Scratch); got != v {
		return fmt.Errorf("8 bytes of scratch registers are %#x, want %#x", got, v)
	}
	c.Detail = fmt.Sprintf("%d scratch registers", reg.ScratchCount)
	return nil
}

// guardBytes surround each copy: they must stay as they are.
const guardBytes = 16

// copies moves data up and down again at many sizes and alignments, and looks
// at the bytes around.
func (t *tester) copies(ctx context.Context, c *Check) error {
	sizes := []int{1, 2, 3, 4, 7, 63, 64, 65, 127, 128, 129, 511, 513, 4095, 4096, 4097, 12289, 65536, 1<<18 + 1}
	if !t.opts.Quick {
		sizes = append(sizes, 1<<20+1, 8<<20-3)
	}
	m, err := t.dev.AllocDMA(sizes[len(sizes)-1] + pageSize)
	if err != nil {
		return err
	}
	defer m.Free() //nolint:errcheck // the bus frees at its Close what could not be freed here
	n, total := 0, 0
	for _, size := range sizes {
		for _, align := range [][2]int{{0, 0}, {1, 0}, {0, 1}, {3, 5}, {4, 60}, {4093, 2}} {
			if size > 1<<16 && align[0] != 0 && align[0] != 3 {
				continue
			}
			if err := t.copyOnce(ctx, m, size, guardBytes+align[0]%(pageSize-2*guardBytes), guardBytes+align[1]); err != nil {
				return fmt.Errorf("%d bytes, host offset %d, device offset %d: %w", size, align[0], align[1], err)
			}
			n++
			total += 2 * size
		}
	}
	c.Detail = fmt.Sprintf("%d copies, %d bytes", 2*n, total)
	return nil
}

func (t *tester) copyOnce(ctx context.Context, m DMA, size, hostOff, devOff int) error {
	dev := t.scratch + Ptr(devOff)
	host := m.Bytes()[hostOff-guardBytes : hostOff+size+guardBytes]
	want := t.data(len(host))
	// The device's bytes around the copy are known too.
	if err := t.stream.Upload(ctx, dev-guardBytes, want); err != nil {
		return err
	}
	data := t.data(size)
	copy(host[guardBytes:], data)
	copy(want[guardBytes:], data)
	if err := t.stream.CopyToDevice(ctx, dev, m, hostOff, size); err != nil {
		return err
	}
	if err := t.stream.Sync(ctx); err != nil {
		return err
	}
	if err := t.expect(ctx, "device memory", dev-guardBytes, want); err != nil {
		return err
	}
	around := t.data(len(host))
	copy(host, around)
	if err := t.stream.CopyToHost(ctx, m, hostOff, dev, size); err != nil {
		return err
	}
	if err := t.stream.Sync(ctx); err != nil {
		return err
	}
	copy(around[guardBytes:], data)
	return differs("host memory", host, around)
}

func (t *tester) aperture(ctx context.Context, c *Check) error {
	sizes := []int{1, 4, 8, 13, 64, 255, 4096}
	if !t.opts.Quick {
		sizes = append(sizes, 1<<18+5)
	}
	total := 0
	for _, size := range sizes {
		for _, off := range []Ptr{0, 1, 6} {
			want := t.data(size)
			if err := t.dev.WriteAperture(t.scratch+off, want); err != nil {
				return err
			}
			if err := t.expect(ctx, fmt.Sprintf("%d bytes at offset %d", size, off), t.scratch+off, want); err != nil {
				return err
			}
			total += size
		}
	}
	want, got := t.data(300), make([]byte, 300)
	if err := t.stream.Upload(ctx, t.scratch+1, want); err != nil {
		return err
	}
	if err := t.dev.ReadAperture(got, t.scratch+1); err != nil {
		return err
	}
	c.Detail = fmt.Sprintf("%d bytes", total+len(got))
	return differs("read", got, want)
}

func (t *tester) inside(ctx context.Context, c *Check) error {
	const n = 100_000
	for _, shift := range []int{-4096, -1, 1, 4096, 2 * n} {
		want := t.data(5 * n)
		if err := t.stream.Upload(ctx, t.scratch, want); err != nil {
			return err
		}
		src, dst := n, n+shift
		if err := t.stream.CopyInside(ctx, t.scratch+Ptr(dst), t.scratch+Ptr(src), n); err != nil {
			return err
		}
		copy(want[dst:dst+n], want[src:])
		if err := t.expect(ctx, fmt.Sprintf("shift %d", shift), t.scratch, want); err != nil {
			return err
		}
	}
	c.Detail = "overlapping both ways"
	return nil
}

func (t *tester) fill(ctx context.Context, _ *Check) error {
	const n = 10_000
	want := t.data(n + 8)
	if err := t.stream.Upload(ctx, t.scratch, want); err != nil {
		return err
	}
	if err := t.stream.Fill(ctx, t.scratch+4, 0x04030201, n); err != nil {
		return err
	}
	for i := range n {
		want[4+i] = byte(i%4 + 1)
	}
	return t.expect(ctx, "fill", t.scratch, want)
}

// semaphores lets one stream wait for another.
func (t *tester) semaphores(ctx context.Context, _ *Check) error {
	if t.dev.info.Queues < 2 {
		return nil
	}
	other, err := t.dev.NewStream()
	if err != nil {
		return err
	}
	defer other.Close() //nolint:errcheck // the device closes at its Close what could not be closed here
	const semaphore = reg.SemaphoreCount - 1
	t.dev.regs.Write64(reg.Semaphore+8*semaphore, 0)
	if err := t.stream.WaitSemaphore(ctx, semaphore, 5); err != nil {
		return err
	}
	waiting, err := t.stream.Fence(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(other.Signal(ctx, semaphore, 4), other.Sync(ctx)); err != nil {
		return err
	}
	if t.stream.Done(waiting) {
		return errors.New("a wait for 5 ended at 4")
	}
	if err := errors.Join(other.Signal(ctx, semaphore, 5), other.Sync(ctx)); err != nil {
		return err
	}
	return t.stream.Wait(ctx, waiting)
}

// concurrent copies on several streams at one time.
func (t *tester) concurrent(ctx context.Context, c *Check) error {
	n := min(4, t.dev.info.Queues-1)
	part := min(t.size/max(n, 1), 2<<20)
	if t.opts.Quick {
		part = min(part, 256<<10)
	}
	results := make(chan error, n)
	for i := range n {
		s, err := t.dev.NewStream()
		if err != nil {
			return err
		}
		want := t.data(part - i)
		at := t.scratch + Ptr(i*part)
		go func() {
			got := make([]byte, len(want))
			var err error
			for range 3 {
				err = errors.Join(err, s.Upload(ctx, at, want), s.Download(ctx, got, at))
				if err == nil {
					err = differs(fmt.Sprintf("stream %d", s.queue), got, want)
				}
			}
			results <- errors.Join(err, s.Close())
		}()
	}
	var errs []error
	for range n {
		errs = append(errs, <-results)
	}
	c.Detail = fmt.Sprintf("%d streams", n)
	return errors.Join(errs...)
}
