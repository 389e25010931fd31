package soak

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// wrongError is an error that no fault of the network excuses.
type wrongError struct{ error }

func wrong(format string, args ...any) error { return wrongError{fmt.Errorf(format, args...)} }

// errAllOnes is the result of a read without an answer.
var errAllOnes = errors.New("all ones")

// operation calls do, which moves n bytes, and adds the result to the account. It
// returns false at the end of the session.
func (s *session) operation(what string, n int, do func(ctx context.Context) error) bool {
	began := time.Now()
	s.ledger.add(func(a *Account) {
		a.Operations++
		a.Asked += uint64(n)
	})
	ctx, cancel := context.WithTimeout(context.Background(), operationLimit)
	defer cancel()
	err := do(ctx)
	s.ledger.add(func(a *Account) {
		if err == nil {
			a.Done += uint64(n)
			return
		}
		a.Lost += uint64(n)
		a.LostOperations++
	})
	if err == nil {
		return true
	}
	s.ended.Store(true)
	var w wrongError
	switch {
	case errors.As(err, &w):
		s.ledger.violate("slot %d: %s: %v", s.slot, what, err)
	case ctx.Err() != nil:
		s.ledger.violate("slot %d: %s: neither finished nor lost after %v", s.slot, what, operationLimit)
	default:
		s.ledger.lose(began, "slot %d: %s of %d bytes: %v: %s", s.slot, what, n, err, s.ends(s.want))
	}
	return false
}

const (
	bufferSize = 1 << 20 // of the source and of the destination of copies
	// mostCopy is the largest size of a copy, except for one in sixteen.
	mostCopy = 128 << 10
)

// copyLane copies to the device and back, by DMA, until over returns true.
func (s *session) copyLane(r *rand.Rand, over func() bool) {
	var stream *driver.Stream
	var buf driver.DMA
	if !s.operation("prepare", 0, func(context.Context) (err error) {
		if stream, err = s.dev.NewStream(); err == nil {
			buf, err = s.dev.AllocDMA(2 * bufferSize)
		}
		return err
	}) {
		return
	}
	for !over() {
		n := 1 + r.IntN(mostCopy)
		if r.IntN(16) == 0 {
			n = 1 + r.IntN(bufferSize-64)
		}
		from, to := r.IntN(bufferSize-n), bufferSize+r.IntN(bufferSize-n)
		at := driver.Ptr(r.IntN(gpuVRAM/2 - n))
		seed := r.Uint64()
		if !s.operation("copy", 2*n, func(ctx context.Context) error {
			fill(buf.Bytes()[from:from+n], seed)
			clear(buf.Bytes()[to : to+n])
			if err := errors.Join(
				stream.CopyToDevice(ctx, at, buf, from, n),
				stream.CopyToHost(ctx, buf, to, at, n),
				stream.Sync(ctx),
			); err != nil {
				return err
			}
			if i := differs(buf.Bytes()[to:to+n], seed); i >= 0 {
				return wrong("byte %d of %d is wrong (from %#x to %#x, device %#x)", i, n, from, to, at)
			}
			return nil
		}) {
			return
		}
	}
}

// accessLane writes and reads registers and device memory with loads and stores of
// the CPU, until over returns true.
func (s *session) accessLane(r *rand.Rand, over func() bool) {
	for !over() {
		var ok bool
		switch n := 1 + r.IntN(256); r.IntN(4) {
		case 0, 1:
			ok = s.operation("posted writes", 4*n+4, func(context.Context) error { return s.posted(n) })
		case 2:
			n = 1 + n/16
			seed := r.Uint64()
			ok = s.operation("register accesses", 8*n, func(context.Context) error { return s.registers(n, seed) })
		default:
			at := driver.Ptr(gpuVRAM/2 + r.IntN(gpuVRAM/2-n))
			seed := r.Uint64()
			ok = s.operation("stores and loads", 2*n, func(context.Context) error { return s.aperture(at, n, seed) })
		}
		if !ok {
			return
		}
	}
}

// posted writes the next n numbers to the register that checks their order, and
// reads it: the read does not pass the writes.
func (s *session) posted(n int) error {
	regs := s.dev.Registers()
	for range n {
		regs.Write32(reg.Scratch, uint32(s.writes))
		s.writes++
	}
	if err := s.expect(regs.Read32(reg.Scratch), uint32(s.writes-1)); err != nil {
		return err
	}
	if seen, bad := s.gpu.seen.Load(), s.gpu.wrong.Load(); seen != s.writes || bad != 0 {
		return wrong("of %d posted writes %d arrived, %d of them out of order", s.writes, seen, bad)
	}
	s.ledger.add(func(a *Account) { a.PostedWrites += uint64(n) })
	return nil
}

// registers writes other registers and reads them back.
func (s *session) registers(n int, seed uint64) error {
	regs := s.dev.Registers()
	for i := range uint64(n) {
		off, v := reg.Scratch+4*(1+i%(reg.ScratchCount-1)), uint32(seed*(i+1))>>1 // never all ones
		regs.Write32(off, v)
		if err := s.expect(regs.Read32(off), v); err != nil {
			return err
		}
	}
	return nil
}

// expect compares the value of a register read. All ones mean that the device is
// gone, or that this read was not answered in time.
func (s *session) expect(got, want uint32) error {
	switch {
	case got == want:
		return nil
	case got != 0xffff_ffff:
		return wrong("a register reads %#x, want %#x", got, want)
	}
	return errors.Join(errAllOnes, s.dev.Alive())
}

// aperture copies to device memory with stores and back with loads.
func (s *session) aperture(at driver.Ptr, n int, seed uint64) error {
	in, out := make([]byte, n), make([]byte, n)
	fill(in, seed)
	if err := errors.Join(s.dev.WriteAperture(at, in), s.dev.Flush(), s.dev.ReadAperture(out, at)); err != nil {
		return err
	}
	if bytes.Equal(in, out) {
		return nil
	}
	if err := s.dev.Alive(); err != nil {
		return err
	}
	if bytes.Contains(out, []byte{0xff, 0xff, 0xff, 0xff}) {
		return errAllOnes // a load that was not answered in time
	}
	return wrong("the aperture at %#x has other bytes than were written, in a range of %d", at, n)
}

// fill fills p with a byte sequence that is unique to the seed.
func fill(p []byte, seed uint64) {
	r := rand.NewPCG(seed, 0x50a4)
	for len(p) >= 8 {
		binary.LittleEndian.PutUint64(p, r.Uint64())
		p = p[8:]
	}
	for i := range p {
		p[i] = byte(r.Uint64())
	}
}

// differs returns the index of the first byte that differs from those of fill; -1:
// none.
func differs(p []byte, seed uint64) int {
	want := make([]byte, len(p))
	fill(want, seed)
	for i := range p {
		if p[i] != want[i] {
			return i
		}
	}
	return -1
}
