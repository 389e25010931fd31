package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfio"
)

// Registers of test/conformance/libvfio-user/device.c.
const (
	deviceScratch = 0x04
	deviceSource  = 0x08
	deviceTarget  = 0x10
	deviceLength  = 0x18
	deviceCommand = 0x1c
	deviceCopies  = 0x20
	deviceError   = 0x24
	deviceID      = 0x44585054
)

// copies makes the device copy memory, checks what arrived when the interrupt came, and
// resets the device.
func copies(ctx context.Context, args []string) (err error) {
	bus, err := vfio.Open(args[0], vfio.Options{Bind: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bus.Close()) }()
	regs, err := bus.BAR(0)
	if err != nil {
		return err
	}
	bus.ConfigWrite32(4, 6) // Memory Space and Bus Master Enable
	if err := bus.EnableMSIX(1); err != nil {
		return err
	}
	if id := regs.Read32(0); id != deviceID {
		return fmt.Errorf("identity %#x, want %#x", id, deviceID)
	}
	const rounds = 50
	for i := range rounds {
		if err := copyOnce(ctx, bus, regs, 4096*(i%16)+100+i, byte(i)); err != nil {
			return fmt.Errorf("copy %d: %w", i, err)
		}
	}
	if n := regs.Read32(deviceCopies); n != rounds {
		return fmt.Errorf("the device counted %d copies, want %d", n, rounds)
	}
	regs.Write32(deviceScratch, 0x12345678)
	if v := regs.Read32(deviceScratch); v != 0x12345678 {
		return fmt.Errorf("scratch register %#x", v)
	}
	if err := bus.Reset(); err != nil {
		return err
	}
	if v := regs.Read32(deviceScratch); v != 0 {
		return fmt.Errorf("scratch register %#x after a reset", v)
	}
	fmt.Printf("%s: %d copies and interrupts, %v, reset\n", args[0], rounds, bus.Mode())
	return nil
}

func copyOnce(ctx context.Context, bus *vfio.Bus, regs driver.Region, n int, seed byte) error {
	memory, err := bus.AllocDMA(2 << 16)
	if err != nil {
		return err
	}
	in, out := memory.Bytes()[:n], memory.Bytes()[1<<16:][:n]
	for i := range in {
		in[i] = seed + byte(i*7)
	}
	at := memory.Segments()[0]
	if at.Len < 2<<16 {
		return fmt.Errorf("memory in segments of %d bytes", at.Len)
	}
	write64 := func(off, v uint64) {
		regs.Write32(off, uint32(v))
		regs.Write32(off+4, uint32(v>>32))
	}
	write64(deviceSource, at.Addr)
	write64(deviceTarget, at.Addr+1<<16)
	regs.Write32(deviceLength, uint32(n))
	regs.Write32(deviceCommand, 1)
	if count, err := bus.WaitInterrupt(ctx, 0, time.Minute); err != nil || count != 1 {
		return fmt.Errorf("%d interrupts, %w", count, err)
	}
	if !bytes.Equal(in, out) {
		return fmt.Errorf("other bytes arrived, device error %d", regs.Read32(deviceError))
	}
	return memory.Free()
}
