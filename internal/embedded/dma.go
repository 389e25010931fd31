package embedded

import (
	"encoding/binary"
	"fmt"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
)

// dma is a piece of host memory. Loads and stores hold the lock under which the root
// complex writes, which makes them atomic and ordered.
type dma struct {
	bus   *Bus
	addr  uint64
	bytes []byte
	freed bool // guarded by the host's mutex
}

// AllocDMA implements driver.Bus; memory is contiguous.
func (b *Bus) AllocDMA(size int) (driver.DMA, error) {
	if size <= 0 {
		return nil, fmt.Errorf("embedded: allocate %d bytes of DMA memory", size)
	}
	size = (size + pageSize - 1) &^ (pageSize - 1)
	h := b.host
	h.mu.Lock()
	defer h.mu.Unlock()
	if b.closed {
		return nil, fmt.Errorf("embedded: allocate DMA memory: %w", driver.ErrClosed)
	}
	addr, err := h.heap.Alloc(uint64(size), pageSize)
	if err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	off := addr - h.spec.MemoryBase
	m := &dma{bus: b, addr: addr, bytes: h.spec.Memory[off : off+uint64(size) : off+uint64(size)]}
	clear(m.bytes)
	b.memory[m] = true
	return m, nil
}

func (m *dma) Bytes() []byte              { return m.bytes }
func (m *dma) Segments() []driver.Segment { return []driver.Segment{{Addr: m.addr, Len: len(m.bytes)}} }

func (m *dma) Load32(off int) uint32 {
	m.bus.host.mu.Lock()
	defer m.bus.host.mu.Unlock()
	return binary.LittleEndian.Uint32(m.bytes[off:])
}

func (m *dma) Store32(off int, v uint32) {
	m.bus.host.mu.Lock()
	defer m.bus.host.mu.Unlock()
	binary.LittleEndian.PutUint32(m.bytes[off:], v)
}

func (m *dma) Load64(off int) uint64 {
	m.bus.host.mu.Lock()
	defer m.bus.host.mu.Unlock()
	return binary.LittleEndian.Uint64(m.bytes[off:])
}

func (m *dma) Store64(off int, v uint64) {
	m.bus.host.mu.Lock()
	defer m.bus.host.mu.Unlock()
	binary.LittleEndian.PutUint64(m.bytes[off:], v)
}

func (m *dma) Free() error {
	m.bus.host.mu.Lock()
	defer m.bus.host.mu.Unlock()
	m.freeLocked()
	return nil
}

func (m *dma) freeLocked() {
	if m.freed {
		return
	}
	m.freed = true
	delete(m.bus.memory, m)
	_ = m.bus.host.heap.Free(m.addr) // allocated by AllocDMA, freed once
}
