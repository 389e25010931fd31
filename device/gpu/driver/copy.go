package driver

import (
	"context"
	"errors"
	"fmt"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// pieces divides n bytes at off of the memory among COPY commands. It calls emit for
// each command with its segments, at most one list page of them, and their length.
func pieces(m DMA, off, n int, emit func(list []reg.Segment, length uint64) error) error {
	if off < 0 || n <= 0 || off > len(m.Bytes()) || n > len(m.Bytes())-off {
		return fmt.Errorf("driver: copy: %d bytes at offset %d of %d bytes of DMA memory", n, off, len(m.Bytes()))
	}
	var list []reg.Segment
	var length uint64
	for _, seg := range m.Segments() {
		if n == 0 {
			break
		}
		if off >= seg.Len {
			off -= seg.Len
			continue
		}
		take := min(seg.Len-off, n)
		list = append(list, reg.Segment{Addr: seg.Addr + uint64(off), Length: uint32(take)})
		length += uint64(take)
		off, n = 0, n-take
		if len(list) == entriesPerList && n > 0 {
			if err := emit(list, length); err != nil {
				return err
			}
			list, length = list[:0], 0
		}
	}
	return emit(list, length)
}

// CopyToDevice submits a copy of n bytes at off of DMA memory to device
// memory. The device fetches the data (memory reads on the bus).
func (s *Stream) CopyToDevice(ctx context.Context, dst Ptr, src DMA, off, n int) error {
	return s.copyDMA(ctx, src, off, n, func(bus, done, length uint64) reg.Command {
		return reg.CopyToVRAM(0, uint64(dst)+done, bus, length)
	})
}

// CopyToHost submits a copy of n bytes of device memory to DMA memory at off.
// The device sends posted writes.
func (s *Stream) CopyToHost(ctx context.Context, dst DMA, off int, src Ptr, n int) error {
	return s.copyDMA(ctx, dst, off, n, func(bus, done, length uint64) reg.Command {
		return reg.CopyFromVRAM(0, bus, uint64(src)+done, length)
	})
}

func (s *Stream) copyDMA(ctx context.Context, m DMA, off, n int, command func(bus, done, length uint64) reg.Command) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var done uint64
	err := pieces(m, off, n, func(list []reg.Segment, length uint64) error {
		c := command(list[0].Addr, done, length)
		done += length
		if len(list) == 1 {
			list = nil
		}
		return s.putLocked(ctx, c, list)
	})
	if err != nil {
		return err
	}
	s.ringLocked()
	return nil
}

// CopyInside submits a copy inside device memory; the ranges may overlap.
func (s *Stream) CopyInside(ctx context.Context, dst, src Ptr, n uint64) error {
	return s.Submit(ctx, reg.CopyVRAM(0, uint64(dst), uint64(src), n))
}

// Fill submits a fill with a 4-byte pattern; dst and n are multiples of 4.
func (s *Stream) Fill(ctx context.Context, dst Ptr, pattern uint32, n uint64) error {
	return s.Submit(ctx, reg.Fill(0, uint64(dst), pattern, n))
}

// Launch submits a kernel.
func (s *Stream) Launch(ctx context.Context, l reg.Launch) error {
	return s.Submit(ctx, reg.Kernel(0, l))
}

// Signal submits a command that sets a semaphore of the device to value when all
// earlier commands are done.
func (s *Stream) Signal(ctx context.Context, semaphore uint32, value uint64) error {
	return s.Submit(ctx, reg.Signal(0, semaphore, value))
}

// WaitSemaphore submits a command that stops this queue until the semaphore is at
// least value.
func (s *Stream) WaitSemaphore(ctx context.Context, semaphore uint32, value uint64) error {
	return s.Submit(ctx, reg.Wait(0, semaphore, value))
}

// stagingSize is the size of a stream's staging memory in bytes, two halves. The
// transfer of a half takes much longer than its doorbell and fence.
const stagingSize = 2 << 20

// Upload copies p to device memory and waits. It uses the two halves of the stream's
// staging memory in turn: the CPU fills one while the device reads the other.
func (s *Stream) Upload(ctx context.Context, dst Ptr, p []byte) error {
	return s.staged(ctx, len(p), func(m DMA, off, done, n int) error {
		copy(m.Bytes()[off:off+n], p[done:])
		return s.CopyToDevice(ctx, dst+Ptr(done), m, off, n)
	}, nil)
}

// Download copies device memory to p and waits, through DMA memory of the stream.
func (s *Stream) Download(ctx context.Context, p []byte, src Ptr) error {
	return s.staged(ctx, len(p), func(m DMA, off, done, n int) error {
		return s.CopyToHost(ctx, m, off, src+Ptr(done), n)
	}, func(m DMA, off, done, n int) {
		copy(p[done:done+n], m.Bytes()[off:])
	})
}

// staged transfers total bytes through the staging memory: begin starts the transfer
// of a piece, and end, if not nil, runs when it is complete.
func (s *Stream) staged(ctx context.Context, total int, begin func(m DMA, off, done, n int) error, end func(m DMA, off, done, n int)) (err error) {
	m, err := s.takeStaging()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && !errors.Is(err, ErrDeviceLost) && !errors.Is(err, ErrClosed) {
			// Stop the device's access to the staging memory.
			err = errors.Join(err, s.Reset())
		}
		s.giveStaging(m)
	}()
	type piece struct {
		off, done, n int
		fence        Fence
	}
	var flight []piece
	finish := func() error {
		p := flight[0]
		flight = flight[1:]
		if err := s.Wait(ctx, p.fence); err != nil {
			return err
		}
		if end != nil {
			end(m, p.off, p.done, p.n)
		}
		return nil
	}
	half := len(m.Bytes()) / 2
	for done, i := 0, 0; done < total; i++ {
		if len(flight) == 2 {
			if err := finish(); err != nil {
				return err
			}
		}
		p := piece{off: i % 2 * half, done: done, n: min(half, total-done)}
		if err := begin(m, p.off, p.done, p.n); err != nil {
			return err
		}
		if p.fence, err = s.Fence(ctx); err != nil {
			return err
		}
		flight = append(flight, p)
		done += p.n
	}
	for len(flight) > 0 {
		if err := finish(); err != nil {
			return err
		}
	}
	return nil
}

// takeStaging takes the stream's staging memory. While another goroutine has it,
// takeStaging allocates more.
func (s *Stream) takeStaging() (DMA, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usableLocked(); err != nil {
		return nil, err
	}
	if m := s.staging; m != nil {
		s.staging = nil
		return m, nil
	}
	return s.dev.bus.AllocDMA(stagingSize)
}

func (s *Stream) giveStaging(m DMA) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.staging == nil && !s.closed {
		s.staging = m
		return
	}
	_ = m.Free() // after an error the bus frees it in Close
}
