package driver

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

const (
	allOnes32 = 0xffff_ffff

	// mallocAlign suits the operands of every kernel and gives each buffer its
	// own cache lines.
	mallocAlign = 256

	// heartbeat is the interval at which a wait for an interrupt checks whether
	// the device still answers and whether the interrupt was lost.
	heartbeat = 50 * time.Millisecond
)

// Options of a device. The zero value is a good choice.
type Options struct {
	// Polling turns interrupts off even if the bus has them.
	Polling bool
	// RingEntries is the length of a queue's ring, a power of two. Default 64:
	// one page, which is contiguous on every bus.
	RingEntries int
	// Reset does a function level reset before the device is used.
	Reset bool
}

// Info describes a device.
type Info struct {
	Model        string
	Serial       uint64
	Version      uint32 // major 31:16, minor 15:0
	Caps         uint32 // reg.CapFP16 and so on
	Queues       int
	Vectors      int // MSI-X vectors in use, 0 when polling
	VRAMSize     uint64
	ApertureSize uint64
	Tags         int // DMA reads that may be outstanding
	ReadSize     int // bytes of a DMA read request
	WriteSize    int // bytes of a DMA write
}

// Ptr is an address in device memory.
type Ptr uint64

// Device is an opened GPU. Its methods may be called from several goroutines.
type Device struct {
	bus  Bus
	regs Region
	vram Region
	info Info
	opts Options

	lost    atomic.Bool
	missed  atomic.Uint64 // interrupts that did not arrive
	arrived atomic.Uint64

	mu      sync.Mutex // guards the fields below
	heap    *Heap
	streams []*Stream // by queue, nil for a free one
	closed  bool

	window sync.Mutex // held while the aperture must not move
	base   uint64     // guarded by window: ApertureBase
}

// Open initializes the device on a bus: it checks identity and version, enables
// memory decoding and bus mastering, stops all queues and enables MSI-X. The caller
// closes the bus after the device.
func Open(ctx context.Context, bus Bus, opts Options) (*Device, error) {
	d := &Device{bus: bus, opts: opts}
	d.opts.RingEntries = cmp.Or(opts.RingEntries, 64)
	err := checkRing(d.opts.RingEntries)
	if err == nil {
		err = d.open(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("driver: open: %w", err)
	}
	return d, nil
}

func (d *Device) open(ctx context.Context) error {
	switch id := d.bus.ConfigRead32(cfgspace.OffVendor); id {
	case reg.DeviceID<<16 | reg.VendorID:
	case allOnes32:
		return ErrDeviceLost
	default:
		return fmt.Errorf("device is %04x:%04x, want %04x:%04x", id&0xffff, id>>16, reg.VendorID, reg.DeviceID)
	}
	if d.opts.Reset {
		if err := d.bus.Reset(); err != nil {
			return err
		}
	}
	// The upper half of this double word is Status, cleared by ones.
	command := d.bus.ConfigRead32(cfgspace.OffCommand)
	d.bus.ConfigWrite32(cfgspace.OffCommand, command&0xffff|cfgspace.CmdMemory|cfgspace.CmdBusMaster)
	var err error
	if d.regs, err = d.bus.BAR(reg.BARRegisters); err != nil {
		return err
	}
	if d.vram, err = d.bus.BAR(reg.BARVRAM); err != nil {
		return err
	}
	if d.regs.Size() < reg.RegistersSize {
		return fmt.Errorf("register BAR has %d bytes, want %d", d.regs.Size(), reg.RegistersSize)
	}
	if err := d.waitReady(ctx); err != nil {
		return err
	}
	if err := d.readInfo(); err != nil {
		return err
	}
	d.heap = NewHeap(0, d.info.VRAMSize)
	d.streams = make([]*Stream, d.info.Queues)
	for q := range d.streams {
		d.regs.Write32(queueReg(q, reg.QControl), 0)
	}
	return d.enableInterrupts()
}

// waitReady waits until the device answers after a reset.
func (d *Device) waitReady(ctx context.Context) error {
	b := backoff{bus: d.bus}
	for {
		switch id := d.regs.Read32(reg.ID); id {
		case reg.Magic:
			if d.regs.Read32(reg.Status)&reg.StatusReady != 0 {
				return nil
			}
		case allOnes32:
			// A device that was lost before open may answer for its configuration space with
			// the values after a reset: it forgets that its memory was enabled.
			if d.bus.ConfigRead32(cfgspace.OffVendor) == allOnes32 || d.bus.ConfigRead32(cfgspace.OffCommand)&cfgspace.CmdMemory == 0 {
				return d.markLost()
			}
		default:
			return fmt.Errorf("ID register is %#x, want %#x", id, reg.Magic)
		}
		if err := b.pause(ctx); err != nil {
			return fmt.Errorf("device does not become ready: %w", err)
		}
	}
}

func (d *Device) readInfo() error {
	layout := d.regs.Read32(reg.Layout)
	d.info = Info{
		Version:      d.regs.Read32(reg.Version),
		Caps:         d.regs.Read32(reg.Caps),
		Queues:       int(layout & 0xff),
		Vectors:      int(layout >> 16 & 0xff),
		VRAMSize:     d.regs.Read64(reg.VRAMSize),
		ApertureSize: d.regs.Read64(reg.ApertureSize),
		Serial:       d.regs.Read64(reg.Serial),
		Tags:         int(d.regs.Read32(reg.Tags)),
		ReadSize:     int(d.regs.Read32(reg.ReadSize)),
		WriteSize:    int(d.regs.Read32(reg.WriteSize)),
	}
	if layout == allOnes32 || d.regs.Read32(reg.ID) != reg.Magic {
		return d.markLost()
	}
	if major := d.info.Version >> 16; major != reg.InterfaceVersion>>16 {
		return fmt.Errorf("device speaks interface version %d, this driver %d", major, reg.InterfaceVersion>>16)
	}
	if d.info.Queues == 0 || d.info.VRAMSize == 0 {
		return fmt.Errorf("device has %d queues and %d bytes of memory", d.info.Queues, d.info.VRAMSize)
	}
	if most := (uint64(reg.Semaphore) - reg.Queue) / reg.QueueStride; uint64(d.info.Queues) > most {
		return fmt.Errorf("device has %d queues, registers have room for %d", d.info.Queues, most)
	}
	var model [reg.ModelSize]byte
	if _, err := d.regs.ReadAt(model[:], reg.Model); err != nil {
		return err
	}
	d.info.Model = string(bytes.TrimRight(model[:], "\x00"))
	d.info.ApertureSize = min(d.info.ApertureSize, d.vram.Size())
	d.regs.Write64(reg.ApertureBase, 0)
	return nil
}

// enableInterrupts gives queue q the vector q, for its fences and its faults.
func (d *Device) enableInterrupts() error {
	d.regs.Write32(reg.IntMask, allOnes32)
	n := d.info.Queues
	if d.opts.Polling || d.info.Vectors < n {
		d.info.Vectors = 0
		return nil
	}
	switch err := d.bus.EnableMSIX(n); {
	case errors.Is(err, ErrNoInterrupts):
		d.info.Vectors = 0
		return nil
	case err != nil:
		return err
	}
	d.info.Vectors = n
	for q := range n {
		d.regs.Write32(queueReg(q, reg.QVector), uint32(q))
	}
	faults := uint32(1)<<n - 1
	d.regs.Write32(reg.IntStatus, allOnes32)
	d.regs.Write32(reg.IntMask, ^(faults * reg.IntQueueFault))
	return nil
}

// Info returns the description of the device, read when it was opened.
func (d *Device) Info() Info { return d.info }

// Registers returns BAR 0, for counters and tests.
func (d *Device) Registers() Region { return d.regs }

// Interrupts returns the number of interrupts that ended a wait, and the number of
// waits that found their fence written without one.
func (d *Device) Interrupts() (arrived, missed uint64) {
	return d.arrived.Load(), d.missed.Load()
}

// Malloc allocates size bytes of device memory, aligned to 256 bytes.
func (d *Device) Malloc(size uint64) (Ptr, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	p, err := d.heap.Alloc(size, mallocAlign)
	return Ptr(p), err
}

// Free frees memory that Malloc returned. Commands that use it must be complete.
func (d *Device) Free(p Ptr) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.heap.Free(uint64(p))
}

// AllocDMA returns host memory for copies without staging.
func (d *Device) AllocDMA(size int) (DMA, error) { return d.bus.AllocDMA(size) }

// Alive reads a register and returns ErrDeviceLost if the device does not answer.
func (d *Device) Alive() error {
	if d.lost.Load() {
		return ErrDeviceLost
	}
	select {
	case <-d.bus.Lost():
		return d.markLost()
	default:
	}
	if d.regs.Read32(reg.ID) != reg.Magic {
		return d.markLost()
	}
	return nil
}

func (d *Device) markLost() error {
	d.lost.Store(true)
	return ErrDeviceLost
}

// Close closes the open streams and turns bus mastering off. The bus stays open.
func (d *Device) Close() error {
	d.mu.Lock()
	d.closed = true
	streams := slices.Clone(d.streams)
	d.mu.Unlock()
	var errs []error
	for _, s := range streams {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	if d.Alive() == nil {
		d.regs.Write32(reg.IntMask, allOnes32)
		command := d.bus.ConfigRead32(cfgspace.OffCommand)
		d.bus.ConfigWrite32(cfgspace.OffCommand, command&0xffff&^cfgspace.CmdBusMaster)
	}
	return errors.Join(errs...)
}

func queueReg(q int, off uint64) uint64 {
	return reg.Queue + uint64(q)*reg.QueueStride + off
}
