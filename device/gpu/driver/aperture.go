package driver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// WriteAperture copies p to device memory with CPU stores. They become posted
// writes, without a round trip (section 5.1 of the DxPU paper proposes it for small
// transfers). Later commands see the data; Flush waits until it has arrived.
func (d *Device) WriteAperture(dst Ptr, p []byte) error {
	return d.throughAperture(dst, len(p), func(off int64, done, n int) error {
		_, err := d.vram.WriteAt(p[done:done+n], off)
		return err
	})
}

// ReadAperture copies device memory to p with CPU loads, a round trip each.
func (d *Device) ReadAperture(p []byte, src Ptr) error {
	err := d.throughAperture(src, len(p), func(off int64, done, n int) error {
		_, err := d.vram.ReadAt(p[done:done+n], off)
		return err
	})
	if err != nil {
		return err
	}
	if len(p) >= 4 && binary.LittleEndian.Uint32(p[len(p)-4:]) == allOnes32 {
		return d.Alive() // data, or the answer of an absent device
	}
	return nil
}

// Flush returns when the posted writes made before have arrived: a read does
// not overtake them.
func (d *Device) Flush() error { return d.Alive() }

// throughAperture calls move for each part of the range that fits the aperture,
// with the aperture in place.
func (d *Device) throughAperture(p Ptr, n int, move func(off int64, done, n int) error) error {
	if d.lost.Load() {
		return ErrDeviceLost
	}
	if uint64(p) > d.info.VRAMSize || uint64(n) > d.info.VRAMSize-uint64(p) {
		return fmt.Errorf("driver: aperture: %d bytes at %#x are outside device memory", n, uint64(p))
	}
	d.window.Lock()
	defer d.window.Unlock()
	for done := 0; done < n; {
		off := d.showLocked(uint64(p) + uint64(done))
		part := int(min(uint64(n-done), d.info.ApertureSize-off))
		if err := move(int64(off), done, part); err != nil {
			return fmt.Errorf("driver: aperture: %w", err)
		}
		done += part
	}
	return nil
}

// showLocked moves the aperture if it does not show addr, and returns the offset of
// addr in it. The caller holds d.window.
func (d *Device) showLocked(addr uint64) uint64 {
	if addr-d.base < d.info.ApertureSize && addr >= d.base {
		return addr - d.base
	}
	d.base = addr &^ (reg.ApertureAlign - 1)
	d.regs.Write64(reg.ApertureBase, d.base)
	return addr - d.base
}

// CopyPeer copies n bytes from the memory of another device and waits. This device
// reads the peer's aperture directly, not through host memory.
func (s *Stream) CopyPeer(ctx context.Context, dst Ptr, peer *Device, src Ptr, n uint64) error {
	if s.dev.info.Caps&reg.CapPeer == 0 {
		return fmt.Errorf("driver: peer copy: device cannot: %w", errors.ErrUnsupported)
	}
	bus, err := peer.apertureBus()
	if err != nil {
		return err
	}
	return peer.throughAperture(src, int(n), func(off int64, done, part int) error {
		// The aperture moves by a posted write: it must arrive before this device reads.
		if err := peer.Alive(); err != nil {
			return err
		}
		if err := s.Submit(ctx, reg.CopyToVRAM(0, uint64(dst)+uint64(done), bus+uint64(off), uint64(part))); err != nil {
			return err
		}
		err := s.Sync(ctx)
		if err != nil && ctx.Err() != nil {
			err = errors.Join(err, s.Reset()) // the window may move now
		}
		return err
	})
}

// apertureBus returns the bus address of the aperture.
func (d *Device) apertureBus() (uint64, error) {
	low := d.bus.ConfigRead32(cfgspace.OffBAR0 + 4*reg.BARVRAM)
	high := d.bus.ConfigRead32(cfgspace.OffBAR0 + 4*reg.BARVRAM + 4)
	if low == allOnes32 {
		return 0, d.markLost()
	}
	return uint64(high)<<32 | uint64(low&^0xf), nil
}
