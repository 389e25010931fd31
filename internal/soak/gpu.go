package soak

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// Device memory: the first quarter belongs to copies, the second to peers, and the upper
// half to stores and loads.
const (
	copiesSize = gpuVRAM / 4
	peersBase  = gpuVRAM / 4
	storesBase = gpuVRAM / 2

	bufferSize = 1 << 20 // of the source and of the destination of copies
	// mostCopy is the largest size of a copy, except for one in sixteen.
	mostCopy = 128 << 10
)

// gpuUser drives a software GPU.
type gpuUser struct {
	*session
	dev    *driver.Device
	regs   registers
	window uint64 // bus address of the aperture
}

func openGPU(ctx context.Context, s *session) (*gpuUser, error) {
	dev, err := driver.Open(ctx, s.bus, driver.Options{})
	if err != nil {
		return nil, err
	}
	u := &gpuUser{session: s, dev: dev}
	if u.window, err = apertureAddress(s.bus); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	u.regs = newRegisters(s, dev.Registers(), reg.Scratch, &s.cluster.gpu(s.slot).numbers, dev.Alive)
	s.peers.join(s.slot, u)
	return u, nil
}

func (u *gpuUser) lanes() []func(r *rand.Rand, over func() bool) {
	return []func(*rand.Rand, func() bool){u.copyLane, u.accessLane, u.peerLane}
}

func (u *gpuUser) interrupts() uint64 {
	arrived, _ := u.dev.Interrupts()
	return arrived
}

func (u *gpuUser) close() error { return u.dev.Close() }

// prepare makes a queue and memory for a lane.
func (u *gpuUser) prepare(size int) (stream *driver.Stream, buf driver.DMA, ok bool) {
	ok = u.operation("prepare", 0, func(context.Context) (err error) {
		if stream, err = u.dev.NewStream(); err == nil {
			buf, err = u.dev.AllocDMA(size)
		}
		return err
	})
	return stream, buf, ok
}

// copyLane copies to the device and back, by DMA, until over returns true.
func (u *gpuUser) copyLane(r *rand.Rand, over func() bool) {
	stream, buf, ok := u.prepare(2 * bufferSize)
	for ok && !over() {
		n := 1 + r.IntN(mostCopy)
		if r.IntN(16) == 0 {
			n = 1 + r.IntN(bufferSize-64)
		}
		from, to := r.IntN(bufferSize-n), bufferSize+r.IntN(bufferSize-n)
		at := driver.Ptr(r.IntN(copiesSize - n))
		seed := r.Uint64()
		ok = u.operation("copy", 2*n, func(ctx context.Context) error {
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
		})
	}
}

// accessLane writes and reads registers and device memory with loads and stores of
// the CPU, until over returns true.
func (u *gpuUser) accessLane(r *rand.Rand, over func() bool) {
	for ok := true; ok && !over(); {
		if r.IntN(4) > 0 {
			ok = u.regs.use(r)
			continue
		}
		n, seed := 1+r.IntN(256), r.Uint64()
		at := driver.Ptr(storesBase + r.IntN(gpuVRAM-storesBase-n))
		ok = u.operation("stores and loads", 2*n, func(context.Context) error { return u.aperture(at, n, seed) })
	}
}

// onlyOnesDiffer reports whether each byte that differs is all ones, as those of a load
// without an answer are, whatever its width.
func onlyOnesDiffer(want, got []byte) bool {
	for i := range want {
		if got[i] != want[i] && got[i] != 0xff {
			return false
		}
	}
	return true
}

// aperture copies to device memory with stores and back with loads.
func (u *gpuUser) aperture(at driver.Ptr, n int, seed uint64) error {
	in, out := make([]byte, n), make([]byte, n)
	fill(in, seed)
	if err := errors.Join(u.dev.WriteAperture(at, in), u.dev.Flush(), u.dev.ReadAperture(out, at)); err != nil {
		return err
	}
	if bytes.Equal(in, out) {
		return nil
	}
	if err := u.dev.Alive(); err != nil {
		return err
	}
	if onlyOnesDiffer(in, out) {
		return errAllOnes // a load that was not answered in time
	}
	return wrong("the aperture at %#x has other bytes than were written, in a range of %d", at, n)
}
