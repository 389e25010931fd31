package vfiouserbus

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/vfiouser"
)

const pageSize = 4096

// memory is DMA memory: a memfd that both sides map.
type memory struct {
	driver.SharedMemory
	bus  *Bus
	addr uint64

	// Guarded by bus.mu once the bus knows the memory:
	file     *os.File // nil: the device server has it
	released bool
}

// AllocDMA implements driver.Bus.
func (b *Bus) AllocDMA(size int) (driver.DMA, error) {
	if size <= 0 || size > 1<<40 {
		return nil, fmt.Errorf("vfiouserbus: %d bytes of DMA memory", size)
	}
	size = (size + pageSize - 1) &^ (pageSize - 1)
	fd, err := unix.MemfdCreate("dxpu-dma", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("vfiouserbus: %w", err)
	}
	m, err := b.share(os.NewFile(uintptr(fd), "dxpu-dma"), size)
	if err != nil {
		return nil, fmt.Errorf("vfiouserbus: %d bytes of DMA memory: %w", size, err)
	}
	return m, nil
}

// share maps the file and announces it to the device server.
func (b *Bus) share(file *os.File, size int) (*memory, error) {
	if err := file.Truncate(int64(size)); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	bytes, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	m := &memory{SharedMemory: bytes, bus: b, file: file}
	b.mu.Lock()
	m.addr = b.next
	b.next += uint64(size)
	if b.opts.Messages {
		file = nil
	}
	b.memory = append(b.memory, m)
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), accessTimeout)
	defer cancel()
	err = b.client.DMAMap(ctx, vfiouser.DMAMap{
		Flags: vfiouser.DMAFlagRead | vfiouser.DMAFlagWrite, Addr: m.addr, Size: uint64(size),
	}, file)
	if err != nil {
		return nil, errors.Join(err, m.release())
	}
	if file != nil {
		b.mu.Lock()
		err = m.closeFile()
		b.mu.Unlock()
	}
	return m, err
}

// serve reads or writes memory that is not shared, through the file: the driver
// accesses words of the mapping at the same time.
func (b *Bus) serve(r *vfiouser.DMARequest) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.opts.Messages {
		return unix.ENODEV
	}
	for _, m := range b.memory {
		if r.Addr < m.addr || r.Addr-m.addr > uint64(len(m.Bytes())) || uint64(len(r.Data)) > uint64(len(m.Bytes()))-(r.Addr-m.addr) {
			continue
		}
		var err error
		if off := int64(r.Addr - m.addr); r.Write {
			_, err = m.file.WriteAt(r.Data, off)
		} else {
			_, err = m.file.ReadAt(r.Data, off)
		}
		return err
	}
	return unix.ENODEV
}

// release unmaps the memory here, once.
func (m *memory) release() error {
	b := m.bus
	b.mu.Lock()
	defer b.mu.Unlock()
	if m.released {
		return nil
	}
	m.released = true
	b.memory = slices.DeleteFunc(b.memory, func(other *memory) bool { return other == m })
	return errors.Join(unix.Munmap(m.Bytes()), m.closeFile())
}

// drop gives the pages back at the end of the bus, and puts private ones in their
// place: the program may look at its memory until it frees it.
func (m *memory) drop() error {
	b := m.bus
	b.mu.Lock()
	defer b.mu.Unlock()
	if m.released {
		return nil
	}
	bytes := m.Bytes()
	_, err := unix.MmapPtr(-1, 0, unsafe.Pointer(unsafe.SliceData(bytes)), uintptr(len(bytes)),
		unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE|unix.MAP_FIXED)
	return errors.Join(err, m.closeFile())
}

func (m *memory) closeFile() error {
	f := m.file
	if f == nil {
		return nil
	}
	m.file = nil
	return f.Close()
}

func (m *memory) Segments() []driver.Segment {
	return []driver.Segment{{Addr: m.addr, Len: len(m.Bytes())}}
}

func (m *memory) Free() error {
	ctx, cancel := context.WithTimeout(context.Background(), accessTimeout)
	defer cancel()
	err := m.bus.client.DMAUnmap(ctx, m.addr, uint64(len(m.Bytes())))
	select {
	case <-m.bus.lost:
		err = nil // the lost device cannot access the memory
	default:
	}
	return errors.Join(err, m.release())
}
