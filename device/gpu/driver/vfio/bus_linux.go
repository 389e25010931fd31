package vfio

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/pcie"
)

// Mode is how a device is accessed.
type Mode string

// Modes.
const (
	// Auto takes the first of the others that works.
	Auto Mode = "auto"
	// IOMMU is VFIO with an IOMMU: the device reaches only what was mapped.
	IOMMU Mode = "iommu"
	// NoIOMMU is VFIO without: the device is given physical addresses.
	NoIOMMU Mode = "noiommu"
	// Sysfs does without VFIO: BARs by the resource files, physical
	// addresses, no interrupts.
	Sysfs Mode = "sysfs"
)

// Options says where things are and what may be changed. The zero value is for
// an ordinary system.
type Options struct {
	Mode  Mode   // "": Auto
	SysFS string // "": /sys
	DevFS string // "": /dev
	// Bind binds the device to vfio-pci where it is not, allows VFIO to work
	// without an IOMMU where there is none, and keeps the kernel from moving
	// locked pages, which it may do otherwise and a device without an IOMMU
	// would not notice. It needs root.
	Bind bool
}

func (o Options) withDefaults() Options {
	o.Mode = cmp.Or(o.Mode, Auto)
	o.SysFS = cmp.Or(o.SysFS, "/sys")
	o.DevFS = cmp.Or(o.DevFS, "/dev")
	return o
}

// access is one way to reach a device.
type access interface {
	config(off int, p []byte, write bool) error
	// region returns BAR i; revoke takes it away.
	region(i int) (*mapped, error)
	// enableMSIX returns an event descriptor for each vector.
	enableMSIX(n int) ([]*os.File, error)
	mapDMA(mem []byte) ([]driver.Segment, error)
	unmapDMA(mem []byte, segments []driver.Segment) error
	reset() error
	// request returns a descriptor that becomes readable when the kernel
	// wants the device back, or nil.
	request() *os.File
	close() error
}

// Bus is a PCI function that this process drives: a driver.Bus.
type Bus struct {
	driver.RealTime
	info   Function
	mode   Mode
	access access
	lost   chan struct{}
	watch  sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	regions [pcie.MaxBARs]*mapped
	vectors []*os.File
	memory  map[*memory]bool
	isLost  bool
	closed  bool
}

var _ driver.Bus = (*Bus)(nil)

// Open takes the function at an address ("0000:01:00.0", "01:00.0") into use.
func Open(address string, opts Options) (*Bus, error) {
	opts = opts.withDefaults()
	info, err := Lookup(os.DirFS(opts.SysFS), address)
	if err != nil {
		return nil, err
	}
	if opts.Bind {
		// Best effort: kernels without compaction have no such file.
		_ = write("/proc/sys/vm/compact_unevictable_allowed", "0")
	}
	var errs []error
	if opts.Mode != Sysfs {
		a, mode, err := openVFIO(&info, opts)
		if err == nil {
			return newBus(info, mode, a), nil
		}
		errs = append(errs, err)
	}
	if opts.Mode == Sysfs || opts.Mode == Auto {
		a, err := openSysfs(filepath.Join(opts.SysFS, devicesDir, info.Address))
		if err == nil {
			return newBus(info, Sysfs, a), nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("vfio: open %s: %w", info.Address, errors.Join(errs...))
}

func newBus(info Function, mode Mode, a access) *Bus {
	b := &Bus{info: info, mode: mode, access: a, lost: make(chan struct{}), memory: map[*memory]bool{}}
	if f := a.request(); f != nil {
		b.watch.Go(func() { b.watchRequest(f) })
	}
	return b
}

// watchRequest waits until the kernel wants the device back, because it is
// being unplugged, and lets go of it at once: the removal waits for that.
func (b *Bus) watchRequest(f *os.File) {
	var count [8]byte
	if _, err := f.Read(count[:]); err != nil {
		return // Close has closed it
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.closed && !b.isLost {
		b.isLost = true
		close(b.lost)
		_ = b.releaseLocked() // the device is gone whatever this says
	}
}

// Function returns what sysfs said when the device was opened.
func (b *Bus) Function() Function { return b.info }

// Mode returns how the device is accessed.
func (b *Bus) Mode() Mode { return b.mode }

// ConfigRead32 implements driver.Bus.
func (b *Bus) ConfigRead32(off int) uint32 {
	var p [4]byte
	if err := b.access.config(off, p[:], false); err != nil {
		return allOnes32
	}
	return binary.LittleEndian.Uint32(p[:])
}

// ConfigWrite32 implements driver.Bus.
func (b *Bus) ConfigWrite32(off int, v uint32) {
	// A device that is gone swallows the write.
	_ = b.access.config(off, binary.LittleEndian.AppendUint32(nil, v), true)
}

// BAR implements driver.Bus.
func (b *Bus) BAR(i int) (driver.Region, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usableLocked(); err != nil {
		return nil, err
	}
	if i < 0 || i >= len(b.regions) {
		return nil, fmt.Errorf("vfio: BAR %d: want 0 to %d", i, len(b.regions)-1)
	}
	if b.regions[i] == nil {
		r, err := b.access.region(i)
		if err != nil {
			return nil, fmt.Errorf("vfio: %s: BAR %d: %w", b.info.Address, i, err)
		}
		b.regions[i] = r
	}
	return b.regions[i], nil
}

func (b *Bus) usableLocked() error {
	switch {
	case b.closed:
		return fmt.Errorf("vfio: %s: %w", b.info.Address, driver.ErrClosed)
	case b.isLost:
		return driver.ErrDeviceLost
	}
	return nil
}

// AllocDMA implements driver.Bus.
func (b *Bus) AllocDMA(size int) (driver.DMA, error) {
	if size <= 0 {
		return nil, fmt.Errorf("vfio: allocate %d bytes of DMA memory", size)
	}
	size = (size + pageSize - 1) &^ (pageSize - 1)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usableLocked(); err != nil {
		return nil, err
	}
	mem, err := pages(size, b.mode != IOMMU)
	if err != nil {
		return nil, fmt.Errorf("vfio: allocate DMA memory: %w", err)
	}
	segments, err := b.access.mapDMA(mem)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("vfio: allocate DMA memory: %w", err), unix.Munmap(mem))
	}
	m := &memory{mem, b, segments}
	b.memory[m] = true
	return m, nil
}

// EnableMSIX implements driver.Bus.
func (b *Bus) EnableMSIX(n int) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usableLocked(); err != nil {
		return err
	}
	vectors, err := b.access.enableMSIX(n)
	if err != nil {
		return fmt.Errorf("vfio: %s: MSI-X: %w", b.info.Address, err)
	}
	b.vectors = vectors
	return nil
}

// WaitInterrupt implements driver.Bus.
func (b *Bus) WaitInterrupt(ctx context.Context, vector int, timeout time.Duration) (uint64, error) {
	b.mu.Lock()
	err := b.usableLocked()
	if err == nil && (vector < 0 || vector >= len(b.vectors)) {
		err = fmt.Errorf("vfio: vector %d is not enabled: %w", vector, driver.ErrNoInterrupts)
	}
	if err != nil {
		b.mu.Unlock()
		return 0, err
	}
	f := b.vectors[vector]
	b.mu.Unlock()
	n, err := readEvent(ctx, f, timeout)
	if errors.Is(err, os.ErrClosed) {
		b.mu.Lock()
		defer b.mu.Unlock()
		return 0, b.usableLocked()
	}
	return n, err
}

// readEvent reads an event descriptor. It returns 0 after the timeout.
func readEvent(ctx context.Context, f *os.File, timeout time.Duration) (uint64, error) {
	_ = f.SetReadDeadline(time.Now().Add(timeout)) // closed meanwhile: the read ends as well
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = f.SetReadDeadline(time.Unix(1, 0)) // closed meanwhile: the read ends as well
		close(ended)
	})
	var count [8]byte
	_, err := f.Read(count[:])
	if !stop() {
		<-ended // else it could set the deadline of the next read
	}
	switch {
	case err == nil:
		return binary.NativeEndian.Uint64(count[:]), nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return 0, context.Cause(ctx) // nil after the timeout
	}
	return 0, err
}

// Lost implements driver.Bus.
func (b *Bus) Lost() <-chan struct{} { return b.lost }

// Reset implements driver.Bus.
func (b *Bus) Reset() error {
	if err := b.access.reset(); err != nil {
		return fmt.Errorf("vfio: reset %s: %w", b.info.Address, err)
	}
	return nil
}

// Close implements driver.Bus.
func (b *Bus) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	var err error
	if !b.isLost {
		err = b.releaseLocked()
	}
	// The device can reach memory no more: its access was given up.
	for m := range b.memory {
		err = errors.Join(err, m.freeLocked())
	}
	b.mu.Unlock()
	b.watch.Wait()
	return err
}

// releaseLocked gives the device back to the kernel. DMA memory stays until
// its owners free it.
func (b *Bus) releaseLocked() error {
	var errs []error
	for _, f := range b.vectors {
		errs = append(errs, f.Close())
	}
	for _, r := range b.regions {
		if r != nil {
			errs = append(errs, r.revoke())
		}
	}
	if f := b.access.request(); f != nil {
		errs = append(errs, f.Close())
	}
	return errors.Join(append(errs, b.access.close())...)
}
