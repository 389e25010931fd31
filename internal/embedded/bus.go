package embedded

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/internal/embedded/rootcomplex"
	"github.com/dxpu-project/dxpu/machine"
)

const allOnes = 0xffff_ffff

var _ driver.Bus = (*Bus)(nil)

// Bus is one function below the embedded host: a driver.Bus.
type Bus struct {
	host *Computer
	fn   *rootcomplex.Function
	lost chan struct{} // closed when the device is gone
	done chan struct{} // closed by Close

	// Guarded by host.mu:
	isLost, closed bool
	vectors        []*vector
	memory         map[*dma]bool
}

// vector is one interrupt.
type vector struct {
	data  uint32
	count atomic.Uint64
	wake  chan struct{} // one token
}

func (v *vector) fire() {
	v.count.Add(1)
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// Function is the function behind the bus, as enumeration found it.
func (b *Bus) Function() *rootcomplex.Function { return b.fn }

// ConfigRead32 implements driver.Bus.
func (b *Bus) ConfigRead32(off int) uint32 {
	v, _ := b.host.ConfigRead32(b.fn.ID, uint16(off)) // a closed host reads all ones as well
	return v
}

// ConfigWrite32 implements driver.Bus.
func (b *Bus) ConfigWrite32(off int, v uint32) {
	_ = b.host.ConfigWrite32(b.fn.ID, uint16(off), v) // a closed host ignores it
}

// BAR implements driver.Bus.
func (b *Bus) BAR(i int) (driver.Region, error) {
	bar, ok := b.fn.BAR(i)
	if !ok {
		return nil, fmt.Errorf("embedded: %v has no BAR %d", b.fn.ID, i)
	}
	return &region{b.host, bar.Range}, nil
}

// EnableMSIX implements driver.Bus.
func (b *Bus) EnableMSIX(n int) error {
	h := b.host
	h.mu.Lock()
	messages := make([]rootcomplex.Message, n)
	vectors := make([]*vector, n)
	for i := range n {
		h.nextVec++
		v := &vector{data: h.nextVec, wake: make(chan struct{}, 1)}
		h.vectors[v.data] = v
		vectors[i] = v
		messages[i] = rootcomplex.Message{Addr: h.spec.InterruptBase, Data: v.data}
	}
	b.dropVectorsLocked()
	b.vectors = vectors
	h.mu.Unlock()
	err := rootcomplex.EnableMSIX(h, h, b.fn, messages)
	if errors.Is(err, rootcomplex.ErrGone) {
		return fmt.Errorf("embedded: %w", driver.ErrDeviceLost)
	}
	return err
}

func (b *Bus) dropVectorsLocked() {
	for _, v := range b.vectors {
		delete(b.host.vectors, v.data)
	}
	b.vectors = nil
}

// WaitInterrupt implements driver.Bus.
func (b *Bus) WaitInterrupt(ctx context.Context, i int, timeout time.Duration) (uint64, error) {
	b.host.mu.Lock()
	if i < 0 || i >= len(b.vectors) {
		b.host.mu.Unlock()
		return 0, fmt.Errorf("embedded: vector %d is not enabled: %w", i, driver.ErrNoInterrupts)
	}
	v := b.vectors[i]
	b.host.mu.Unlock()
	if s := b.host.virtual; s != nil {
		s.WaitUntil(machine.After(s.Now(), timeout), func() bool { return v.count.Load() > 0 || b.ended(ctx) != nil })
		if n := v.count.Swap(0); n > 0 {
			return n, nil
		}
		return 0, b.ended(ctx)
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		select {
		case <-v.wake:
			// The token may belong to an interrupt that was already counted.
			if n := v.count.Swap(0); n > 0 {
				return n, nil
			}
		case <-timer.C:
			return 0, nil
		case <-b.lost:
			return 0, driver.ErrDeviceLost
		case <-b.done:
			return 0, fmt.Errorf("embedded: %w", driver.ErrClosed)
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// ended returns the error that ends a wait early, or nil.
func (b *Bus) ended(ctx context.Context) error {
	select {
	case <-b.lost:
		return driver.ErrDeviceLost
	default:
	}
	select {
	case <-b.done:
		return fmt.Errorf("embedded: %w", driver.ErrClosed)
	default:
		return context.Cause(ctx)
	}
}

// Now implements driver.Bus.
func (b *Bus) Now() time.Duration {
	if s := b.host.virtual; s != nil {
		return s.Now()
	}
	return driver.RealTime{}.Now()
}

// leastSleep is the shortest sleep in virtual time: time must pass while a caller
// polls.
const leastSleep = time.Microsecond

// Sleep implements driver.Bus.
func (b *Bus) Sleep(ctx context.Context, d time.Duration) error {
	s := b.host.virtual
	if s == nil {
		return driver.RealTime{}.Sleep(ctx, d)
	}
	s.WaitUntil(machine.After(s.Now(), max(d, leastSleep)), func() bool { return ctx.Err() != nil })
	return context.Cause(ctx)
}

// Lost implements driver.Bus.
func (b *Bus) Lost() <-chan struct{} { return b.lost }

func (b *Bus) loseLocked() {
	if !b.isLost {
		b.isLost = true
		close(b.lost)
	}
}

// resetPolls bounds the reads with which Reset waits for the function. The root complex
// itself repeats a read that is answered with Request Retry.
const resetPolls = 1000

// Reset implements driver.Bus: Function Level Reset (section 6.6.2 of the PCI Express
// Base Specification). It restores BARs, Command and Device Control.
func (b *Bus) Reset() error {
	express := int(b.fn.PCIe)
	if express == 0 || b.ConfigRead32(express+cfgspace.OffDevCap)&cfgspace.DevCapFLR == 0 {
		return fmt.Errorf("embedded: reset %v: no Function Level Reset: %w", b.fn.ID, errors.ErrUnsupported)
	}
	// Offsets in the order of restoration: Command, which enables decoding, is last.
	offsets := []int{express + cfgspace.OffDevCtl2, express + cfgspace.OffDevCtl}
	for i := range 6 {
		offsets = append(offsets, cfgspace.OffBAR0+4*i)
	}
	offsets = append(offsets, cfgspace.OffCommand)
	saved := make([]uint32, len(offsets))
	for i, off := range offsets {
		saved[i] = b.ConfigRead32(off)
	}
	// The upper halves of Command, Device Control and Device Control 2 are
	// status registers or reserved, cleared by ones.
	const express1, express2 = 0, 1
	command := len(offsets) - 1
	for _, i := range []int{express1, express2, command} {
		saved[i] &= 0xffff
	}
	b.ConfigWrite32(express+cfgspace.OffDevCtl, saved[express2]|cfgspace.DevCtlFLR)
	for range resetPolls {
		if b.ConfigRead32(cfgspace.OffVendor) == allOnes {
			continue
		}
		for i, off := range offsets {
			b.ConfigWrite32(off, saved[i])
		}
		return nil
	}
	return fmt.Errorf("embedded: reset %v: %w", b.fn.ID, driver.ErrDeviceLost)
}

// Close implements driver.Bus: it turns bus mastering off, so that the device no longer
// accesses host memory, and frees the memory.
func (b *Bus) Close() error {
	b.host.mu.Lock()
	closed := b.closed || b.host.closed
	b.host.mu.Unlock()
	if closed {
		return nil
	}
	if command := b.ConfigRead32(cfgspace.OffCommand); command != allOnes {
		b.ConfigWrite32(cfgspace.OffCommand, command&0xffff&^cfgspace.CmdBusMaster)
	}
	b.host.mu.Lock()
	defer b.host.mu.Unlock()
	b.closeLocked()
	delete(b.host.buses, b)
	return nil
}

func (b *Bus) closeLocked() {
	if b.closed {
		return
	}
	b.closed = true
	close(b.done)
	b.dropVectorsLocked()
	for m := range b.memory {
		m.freeLocked()
	}
}

// region is a BAR.
type region struct {
	host *Computer
	at   rootcomplex.Range
}

func (r *region) Size() uint64 { return r.at.Size }

func (r *region) Read32(off uint64) uint32 { return uint32(r.load(off, 4)) }

func (r *region) Read64(off uint64) uint64 { return r.load(off, 8) }

// load reads n bytes. A failed load is all ones, as on hardware.
func (r *region) load(off uint64, n int) uint64 {
	if off > r.at.Size || uint64(n) > r.at.Size-off {
		return ^uint64(0)
	}
	v, _ := r.host.loadWord(r.at.Base+off, n)
	return v
}

func (r *region) Write32(off uint64, v uint32) {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], v)
	r.store(off, b[:])
}

func (r *region) Write64(off uint64, v uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	r.store(off, b[:])
}

func (r *region) store(off uint64, p []byte) {
	if off <= r.at.Size && uint64(len(p)) <= r.at.Size-off {
		r.host.Store(r.at.Base+off, p)
	}
}

func (r *region) ReadAt(p []byte, off int64) (int, error) {
	if err := r.check(p, off); err != nil {
		return 0, err
	}
	if _, err := r.host.Load(r.at.Base+uint64(off), p); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (r *region) WriteAt(p []byte, off int64) (int, error) {
	if err := r.check(p, off); err != nil {
		return 0, err
	}
	r.host.Store(r.at.Base+uint64(off), p)
	return len(p), nil
}

func (r *region) check(p []byte, off int64) error {
	if off < 0 || uint64(off) > r.at.Size || uint64(len(p)) > r.at.Size-uint64(off) {
		return fmt.Errorf("embedded: %d bytes at %#x of a region of %#x bytes", len(p), off, r.at.Size)
	}
	return nil
}
