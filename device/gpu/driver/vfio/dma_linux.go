package vfio

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
)

const pageSize = 4096

// memory is locked memory of this process that the device reaches.
type memory struct {
	driver.SharedMemory
	bus      *Bus
	segments []driver.Segment
}

var _ driver.DMA = (*memory)(nil)

// pages returns zeroed pages that are present. They are shared ones: a fork
// copies private pages on write, which moves them under a device without an IOMMU.
// Such a device needs them locked, and pinned (see pin); for an IOMMU the kernel pins
// them itself, and counts that.
func pages(size int, lock bool) ([]byte, error) {
	flags := unix.MAP_SHARED | unix.MAP_ANONYMOUS | unix.MAP_POPULATE
	if lock {
		flags |= unix.MAP_LOCKED
	}
	mem, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes (see ulimit -l): %w", size, err)
	}
	return mem, nil
}

// pagemap finds the physical pages of locked memory, merged where they are
// neighbors. It needs CAP_SYS_ADMIN: without it the kernel shows zeros.
func pagemap(mem []byte) ([]driver.Segment, error) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	entries := make([]byte, 8*(len(mem)/pageSize))
	first := uintptr(unsafe.Pointer(unsafe.SliceData(mem))) / pageSize
	if _, err := f.ReadAt(entries, int64(first)*8); err != nil {
		return nil, fmt.Errorf("pagemap: %w", err)
	}
	return parsePagemap(entries)
}

// Bits of a pagemap entry (Documentation/admin-guide/mm/pagemap.rst).
const (
	pagePresent = 1 << 63
	pageFrame   = 1<<55 - 1
)

func parsePagemap(entries []byte) ([]driver.Segment, error) {
	var segments []driver.Segment
	for ; len(entries) >= 8; entries = entries[8:] {
		e := binary.LittleEndian.Uint64(entries)
		if e&pagePresent == 0 {
			return nil, errors.New("pagemap: page is not present")
		}
		if e&pageFrame == 0 {
			return nil, errors.New("pagemap: page frame is hidden: CAP_SYS_ADMIN is needed")
		}
		addr := e & pageFrame * pageSize
		if n := len(segments); n > 0 && segments[n-1].Addr+uint64(segments[n-1].Len) == addr {
			segments[n-1].Len += pageSize
			continue
		}
		segments = append(segments, driver.Segment{Addr: addr, Len: pageSize})
	}
	return segments, nil
}

func (m *memory) Segments() []driver.Segment { return m.segments }

func (m *memory) Free() error {
	m.bus.mu.Lock()
	defer m.bus.mu.Unlock()
	return m.freeLocked()
}

func (m *memory) freeLocked() error {
	if !m.bus.memory[m] {
		return nil
	}
	delete(m.bus.memory, m)
	return errors.Join(m.bus.access.unmapDMA(m.Bytes(), m.segments), unix.Munmap(m.Bytes()))
}
