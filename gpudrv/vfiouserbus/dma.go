package vfiouserbus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/gpudrv"
	"github.com/dxpu-project/dxpu/vfiouser"
)

const pageSize = 4096

// memory is DMA memory: a memfd that both sides map.
type memory struct {
	bus   *Bus
	addr  uint64
	bytes []byte
}

// AllocDMA implements gpudrv.Bus.
func (b *Bus) AllocDMA(size int) (gpudrv.DMA, error) {
	if size <= 0 || size > 1<<40 {
		return nil, fmt.Errorf("vfiouserbus: %d bytes of DMA memory", size)
	}
	size = (size + pageSize - 1) &^ (pageSize - 1)
	fd, err := unix.MemfdCreate("dxpu-dma", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("vfiouserbus: %w", err)
	}
	file := os.NewFile(uintptr(fd), "dxpu-dma")
	defer file.Close()
	if err := file.Truncate(int64(size)); err != nil {
		return nil, fmt.Errorf("vfiouserbus: %w", err)
	}
	bytes, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("vfiouserbus: map %d bytes: %w", size, err)
	}
	b.mu.Lock()
	addr := b.next
	b.next += uint64(size)
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), accessTimeout)
	defer cancel()
	err = b.client.DMAMap(ctx, vfiouser.DMAMap{
		Flags: vfiouser.DMAFlagRead | vfiouser.DMAFlagWrite, Addr: addr, Size: uint64(size),
	}, file)
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(bytes))
	}
	return &memory{bus: b, addr: addr, bytes: bytes}, nil
}

func (m *memory) Bytes() []byte { return m.bytes }

func (m *memory) Segments() []gpudrv.Segment {
	return []gpudrv.Segment{{Addr: m.addr, Len: len(m.bytes)}}
}

// The other side writes these words at the same time: atomic accesses order
// what is read after them.

func (m *memory) Load32(off int) uint32 { return atomic.LoadUint32((*uint32)(m.at(off, 4))) }

func (m *memory) Store32(off int, v uint32) { atomic.StoreUint32((*uint32)(m.at(off, 4)), v) }

func (m *memory) Load64(off int) uint64 { return atomic.LoadUint64((*uint64)(m.at(off, 8))) }

func (m *memory) Store64(off int, v uint64) { atomic.StoreUint64((*uint64)(m.at(off, 8)), v) }

func (m *memory) at(off, n int) unsafe.Pointer {
	return unsafe.Pointer(unsafe.SliceData(m.bytes[off : off+n]))
}

func (m *memory) Free() error {
	ctx, cancel := context.WithTimeout(context.Background(), accessTimeout)
	defer cancel()
	err := m.bus.client.DMAUnmap(ctx, m.addr, uint64(len(m.bytes)))
	select {
	case <-m.bus.lost:
		err = nil // nobody is left who could access it
	default:
	}
	return errors.Join(err, unix.Munmap(m.bytes))
}
