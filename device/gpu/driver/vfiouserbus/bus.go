// Package vfiouserbus lets the GPU driver drive a device behind a vfio-user
// socket, instead of a VMM: to test a slot of a host proxy, or any device
// server, without a virtual machine.
package vfiouserbus

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/vfiouser"
)

const (
	// Bus addresses that the bus hands out: BARs below 4 GiB or, if they are
	// 64-bit, from bar64Base on; memory from dmaBase on.
	bar32Base = 0xc000_0000
	bar64Base = 0x80_0000_0000
	dmaBase   = 0x1_0000_0000
	// msiBase is where interrupt messages go; the vector is their data.
	msiBase = 0xfee0_0000

	accessTimeout = 10 * time.Second
)

// Options changes Open. The zero value suits most tests.
type Options struct {
	// BAR32 and BAR64 are the bus addresses of the first BARs. Devices that access
	// each other need different ones.
	BAR32, BAR64 uint64
	// MaxPayload and MaxReadRequest are for Device Control, in bytes: powers of
	// two from 128 to 4096. 0 keeps the value after a reset. Open lowers
	// MaxPayload to the largest that the device supports.
	MaxPayload, MaxReadRequest int
	// Polling is the way in which accesses wait for their answer.
	Polling reader.Polling
	// Messages makes the device access DMA memory by messages, not by a shared
	// mapping, as with a VMM whose memory has no descriptor.
	Messages bool
}

// Bus implements driver.Bus.
type Bus struct {
	driver.RealTime
	opts   Options
	client *vfiouser.Client
	bars   [pcie.MaxBARs]region
	msix   cfgspace.MSIXInfo
	lost   chan struct{}
	taken  *os.File // event by which the server asks for the device; nil: it does not
	watch  sync.WaitGroup

	mu      sync.Mutex // guards the fields below
	next    uint64     // bus address of the next DMA memory
	vectors []vector
	memory  []*memory
	isLost  bool
	closed  bool
}

type vector struct {
	count  uint64
	signal chan struct{} // holds one wake-up
}

var _ driver.Bus = (*Bus)(nil)

// Open connects to the socket and sets the device up as firmware does: it assigns
// BARs and enables memory decoding and bus mastering.
func Open(ctx context.Context, path string) (*Bus, error) { return Options{}.Open(ctx, path) }

// Open is the function Open with these options.
func (o Options) Open(ctx context.Context, path string) (*Bus, error) {
	o.BAR32 = cmp.Or(o.BAR32, bar32Base)
	o.BAR64 = cmp.Or(o.BAR64, bar64Base)
	b := &Bus{opts: o, next: dmaBase, lost: make(chan struct{})}
	client, err := vfiouser.Dial(ctx, path, vfiouser.ClientConfig{Timeout: accessTimeout, Polling: o.Polling, DMA: vfiouser.DMAFunc(b.dma)})
	if err != nil {
		return nil, err
	}
	b.client = client
	if err := errors.Join(b.setUp(ctx), b.armRequest(ctx)); err != nil {
		return nil, errors.Join(fmt.Errorf("vfiouserbus: %w", err), b.release())
	}
	b.watch.Go(func() {
		<-client.Done()
		b.markLost()
	})
	if b.taken != nil {
		b.watch.Go(func() {
			if _, err := vfiouser.WaitEvent(b.taken); err == nil {
				b.markLost()
			}
		})
	}
	return b, nil
}

// armRequest gives the server an event for VFIO's device request: the device is
// lost when the server takes it away, even while it keeps the connection.
func (b *Bus) armRequest(ctx context.Context) error {
	info, err := b.client.IRQInfo(ctx, vfiouser.IRQReq)
	if err != nil || info.Count == 0 {
		return err
	}
	if b.taken, err = vfiouser.NewEvent(); err != nil {
		return err
	}
	return b.client.ArmIRQs(ctx, vfiouser.IRQReq, 0, []*os.File{b.taken})
}

// release ends the connection.
func (b *Bus) release() error {
	err := b.client.Close()
	if b.taken != nil {
		err = errors.Join(err, b.taken.Close())
	}
	return err
}

func (b *Bus) setUp(ctx context.Context) error {
	size, err := b.client.RegionSize(ctx, vfiouser.RegionConfig)
	if err != nil {
		return err
	}
	if size < pcie.ConfigSizePCI || size > pcie.ConfigSize {
		return fmt.Errorf("configuration space of %d bytes", size)
	}
	dump := make([]byte, size)
	if err := b.client.RegionRead(ctx, vfiouser.RegionConfig, 0, dump); err != nil {
		return err
	}
	if err := b.assign(ctx, cfgspace.DecodeBARs(dump)); err != nil {
		return err
	}
	// The server may hide MSI-X in the first read, which is for the VMM and not the guest.
	if err := b.reread(ctx, dump[:pcie.ConfigSizePCI]); err != nil {
		return err
	}
	b.msix, _ = cfgspace.FindMSIX(dump)
	if err := b.setSizes(dump); err != nil {
		return err
	}
	b.ConfigWrite32(cfgspace.OffCommand, cfgspace.CmdMemory|cfgspace.CmdBusMaster)
	return nil
}

// setSizes programs Max_Payload_Size and Max_Read_Request_Size (PCI Express Base
// Specification, section 7.5.3.4).
func (b *Bus) setSizes(dump []byte) error {
	if b.opts.MaxPayload == 0 && b.opts.MaxReadRequest == 0 {
		return nil
	}
	express := cfgspace.Find(dump, cfgspace.CapExpress)
	if express == 0 {
		return errors.New("no PCI Express capability")
	}
	at := express + cfgspace.OffDevCtl
	control := b.ConfigRead32(at) & 0xffff // the upper half is Device Status, cleared by ones
	set := func(mask uint32, size int) error {
		if size > pcie.MaxPayload || !pcie.PayloadSize(size).Valid() {
			return fmt.Errorf("size %d: want a power of two from 128 to 4096", size)
		}
		control = control&^mask | uint32(pcie.PayloadSize(size).Encode())<<bits.TrailingZeros32(mask)
		return nil
	}
	if size := b.opts.MaxPayload; size != 0 {
		supported, _ := pcie.DecodePayloadSize(uint8(b.ConfigRead32(express+cfgspace.OffDevCap) & 7))
		if err := set(cfgspace.DevCtlMPS, min(size, int(supported))); err != nil {
			return err
		}
	}
	if size := b.opts.MaxReadRequest; size != 0 {
		if err := set(cfgspace.DevCtlMRRS, size); err != nil {
			return err
		}
	}
	b.ConfigWrite32(at, control)
	return nil
}

func (b *Bus) reread(ctx context.Context, dump []byte) error {
	for off := 0; off < len(dump); off += pcie.DW {
		if err := b.client.RegionRead(ctx, vfiouser.RegionConfig, uint64(off), dump[off:off+pcie.DW]); err != nil {
			return err
		}
	}
	return nil
}

// assign gives each BAR an address.
func (b *Bus) assign(ctx context.Context, kinds [pcie.MaxBARs]cfgspace.BAR) error {
	next32, next64 := b.opts.BAR32, b.opts.BAR64
	for i := range b.bars {
		size, err := b.client.RegionSize(ctx, uint32(i))
		if err != nil {
			return err
		}
		b.bars[i] = region{bus: b, index: uint32(i), size: size}
		if size == 0 {
			continue
		}
		next := &next32
		if kinds[i].Kind == cfgspace.Memory64 {
			next = &next64
		}
		addr := (*next + size - 1) &^ (size - 1)
		*next = addr + size
		b.ConfigWrite32(cfgspace.OffBAR0+4*i, uint32(addr))
		if kinds[i].Kind == cfgspace.Memory64 {
			b.ConfigWrite32(cfgspace.OffBAR0+4*i+4, uint32(addr>>32))
		}
	}
	return nil
}

// ConfigRead32 implements driver.Bus.
func (b *Bus) ConfigRead32(off int) uint32 { return b.read32(vfiouser.RegionConfig, uint64(off)) }

// ConfigWrite32 implements driver.Bus.
func (b *Bus) ConfigWrite32(off int, v uint32) {
	var p [4]byte
	binary.LittleEndian.PutUint32(p[:], v)
	_ = b.client.RegionWrite(context.Background(), vfiouser.RegionConfig, uint64(off), p[:]) // the client's own timeout bounds it
}

// BAR implements driver.Bus.
func (b *Bus) BAR(i int) (driver.Region, error) {
	if i < 0 || i >= pcie.MaxBARs || b.bars[i].size == 0 {
		return nil, fmt.Errorf("vfiouserbus: the device has no BAR %d", i)
	}
	return &b.bars[i], nil
}

// EnableMSIX implements driver.Bus: it programs the device's own table, as a
// guest does.
func (b *Bus) EnableMSIX(n int) error {
	if b.msix.Vectors < n {
		return fmt.Errorf("vfiouserbus: %d of %d vectors: %w", b.msix.Vectors, n, driver.ErrNoInterrupts)
	}
	b.mu.Lock()
	b.vectors = make([]vector, n)
	for i := range b.vectors {
		b.vectors[i].signal = make(chan struct{}, 1)
	}
	b.mu.Unlock()
	const entrySize = 16
	table := &b.bars[b.msix.TableBAR]
	for i := range n {
		at := uint64(b.msix.TableOffset) + uint64(i)*entrySize
		table.Write32(at, msiBase)
		table.Write32(at+4, 0)
		table.Write32(at+8, uint32(i))
		table.Write32(at+12, 0) // not masked
	}
	const enable = 1 << 31
	b.ConfigWrite32(b.msix.Cap, b.ConfigRead32(b.msix.Cap)&^(1<<30)|enable)
	return nil
}

// dma processes the messages of the device server: interrupts, and accesses to memory
// that is not shared.
func (b *Bus) dma(_ *vfiouser.Client, r *vfiouser.DMARequest) {
	if !r.Write || r.Addr != msiBase || len(r.Data) != 4 {
		if err := b.serve(r); err != nil {
			r.Fail(err)
			return
		}
		r.Reply()
		return
	}
	i := binary.LittleEndian.Uint32(r.Data)
	b.mu.Lock()
	if uint64(i) < uint64(len(b.vectors)) {
		v := &b.vectors[i]
		v.count++
		select {
		case v.signal <- struct{}{}:
		default:
		}
	}
	b.mu.Unlock()
	r.Reply()
}

// WaitInterrupt implements driver.Bus.
func (b *Bus) WaitInterrupt(ctx context.Context, i int, timeout time.Duration) (uint64, error) {
	b.mu.Lock()
	if i < 0 || i >= len(b.vectors) {
		b.mu.Unlock()
		return 0, fmt.Errorf("vfiouserbus: vector %d is not enabled", i)
	}
	v := &b.vectors[i]
	b.mu.Unlock()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	for {
		b.mu.Lock()
		n := v.count
		v.count = 0
		b.mu.Unlock()
		if n > 0 {
			return n, nil
		}
		select {
		case <-v.signal:
		case <-b.lost:
			return 0, b.why()
		case <-timer.C:
			return 0, nil
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
}

// Lost implements driver.Bus.
func (b *Bus) Lost() <-chan struct{} { return b.lost }

func (b *Bus) markLost() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.isLost {
		b.isLost = true
		close(b.lost)
	}
}

func (b *Bus) why() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return driver.ErrClosed
	}
	return driver.ErrDeviceLost
}

// Reset implements driver.Bus.
func (b *Bus) Reset() error {
	ctx, cancel := context.WithTimeout(context.Background(), accessTimeout)
	defer cancel()
	return b.client.Reset(ctx)
}

// Close implements driver.Bus.
func (b *Bus) Close() error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	err := b.release()
	b.watch.Wait()
	b.mu.Lock()
	left := b.memory
	b.memory = nil
	b.mu.Unlock()
	for _, m := range left {
		err = errors.Join(err, m.drop())
	}
	return err
}
