// Package driver is the user-space driver of the software GPU: it runs in a
// guest on Linux VFIO, and on the embedded host.
package driver

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// Errors that callers branch on.
var (
	// ErrDeviceLost means that the device was unplugged, that its box died, or
	// that its registers read all ones. Every later call returns it too.
	ErrDeviceLost = errors.New("device is lost")
	// ErrClosed means that the program closed the device or the bus.
	ErrClosed = errors.New("closed")
	// ErrDropped means that Stream.Reset dropped the commands that a wait was for.
	ErrDropped = errors.New("commands were dropped")
	// ErrNoInterrupts means that the bus cannot deliver interrupts; the
	// driver polls then.
	ErrNoInterrupts = errors.New("bus delivers no interrupts")
	// ErrOutOfMemory means that device memory or DMA memory is used up.
	ErrOutOfMemory = errors.New("out of memory")
)

// Bus is one PCI Express function as a driver sees it. Package vfio implements it in
// a guest, internal/embedded on the root complex in Go. All methods may be called
// from several goroutines.
//
// Register accesses return no error: as in hardware, reads of a lost device return
// all ones and writes have no effect.
type Bus interface {
	// ConfigRead32 and ConfigWrite32 access configuration space; off is a
	// multiple of 4 below 4096.
	ConfigRead32(off int) uint32
	ConfigWrite32(off int, v uint32)

	// BAR returns the region behind base address register i, each time the same.
	BAR(i int) (Region, error)

	// AllocDMA returns zeroed memory that the device can access. It rounds size up
	// to pages of 4096 bytes.
	AllocDMA(size int) (DMA, error)

	// EnableMSIX enables MSI-X with vectors 0 to n-1, or returns an error that
	// wraps ErrNoInterrupts.
	EnableMSIX(n int) error
	// WaitInterrupt waits for an interrupt of the vector and returns their number
	// since the last call, or 0 after the timeout. At most one goroutine waits for
	// a vector at a time. The error is ErrDeviceLost when the device is lost, and
	// the cause of ctx when that ends.
	WaitInterrupt(ctx context.Context, vector int, timeout time.Duration) (count uint64, err error)

	// Now returns the time since a fixed start. The driver uses no other clock and
	// waits with Sleep and WaitInterrupt only, so that a bus in virtual time can
	// run the device meanwhile.
	Now() time.Duration
	// Sleep returns after d, or earlier with the cause when ctx ends. Sleep of 0
	// lets other goroutines run.
	Sleep(ctx context.Context, d time.Duration) error

	// Lost is closed when the device is known to be gone.
	Lost() <-chan struct{}
	// Reset does a function level reset.
	Reset() error
	// Close releases everything, including DMA memory. Waits end with ErrClosed.
	Close() error
}

// RealTime implements Now and Sleep of Bus with the clock of the computer.
type RealTime struct{}

var processStart = time.Now()

// Now returns the time since the start of the process.
func (RealTime) Now() time.Duration { return time.Since(processStart) }

// Sleep implements Bus.
func (RealTime) Sleep(ctx context.Context, d time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if d == 0 {
		runtime.Gosched()
		return nil
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Region is the memory behind one BAR. Each access of 4 or 8 bytes is one load or
// store on the bus; offsets are multiples of the width. Outside the region, reads
// return all ones and writes have no effect.
type Region interface {
	Size() uint64
	Read32(off uint64) uint32
	Write32(off uint64, v uint32)
	Read64(off uint64) uint64
	Write64(off uint64, v uint64)
	// ReadAt and WriteAt copy with accesses of any width, in ascending order.
	// Writes are posted: they return before they reach the device.
	ReadAt(p []byte, off int64) (int, error)
	WriteAt(p []byte, off int64) (int, error)
}

// Segment is a piece of DMA memory that is contiguous for the device.
type Segment struct {
	Addr uint64 // bus address
	Len  int    // bytes
}

// DMA is memory shared with the device.
//
// Bytes is for bulk data that the device does not access at the same time. The Load
// and Store methods are for words that both sides use concurrently (queue indices,
// fences): they are atomic, and after a load that returns a value of the device, all
// its earlier writes are visible.
type DMA interface {
	Bytes() []byte
	// Segments covers the memory in order. Segments start at multiples of
	// 4096, and all but the last have lengths that are multiples of 4096.
	Segments() []Segment
	Load32(off int) uint32
	Store32(off int, v uint32)
	Load64(off int) uint64
	Store64(off int, v uint64)
	// Free releases the memory. The device must no longer use it.
	Free() error
}

// SharedMemory implements the access methods of DMA for memory of this process.
type SharedMemory []byte

// Bytes implements DMA.
func (m SharedMemory) Bytes() []byte { return m }

// Load32 implements DMA.
func (m SharedMemory) Load32(off int) uint32 { return atomic.LoadUint32((*uint32)(m.word(off, 4))) }

// Store32 implements DMA.
func (m SharedMemory) Store32(off int, v uint32) { atomic.StoreUint32((*uint32)(m.word(off, 4)), v) }

// Load64 implements DMA.
func (m SharedMemory) Load64(off int) uint64 { return atomic.LoadUint64((*uint64)(m.word(off, 8))) }

// Store64 implements DMA.
func (m SharedMemory) Store64(off int, v uint64) { atomic.StoreUint64((*uint64)(m.word(off, 8)), v) }

func (m SharedMemory) word(off, n int) unsafe.Pointer {
	return unsafe.Pointer(unsafe.SliceData(m[off : off+n]))
}
