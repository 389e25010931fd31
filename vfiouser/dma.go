package vfiouser

import (
	"encoding/binary"
	"fmt"
	"math"
)

const (
	dmaMapSize    = 32
	dmaUnmapSize  = 24
	dmaAccessSize = 16
)

// DMA_MAP flags.
const (
	DMAFlagRead  = 1 << 0 // the device may read
	DMAFlagWrite = 1 << 1 // the device may write
)

// DMA_UNMAP flags.
const (
	DMAUnmapDirty = 1 << 0 // asks for a dirty bitmap, which the server does not keep
	DMAUnmapAll   = 1 << 1 // address and size are 0
)

// DMAMap is the payload of DMA_MAP; the reply has none. The message carries
// the file descriptor of the memory, or none where the VMM offers messages only.
//
//	 0       4       8        16        24      32
//	+-------+-------+--------+---------+-------+
//	| argsz | flags | offset | address | size  |
//	+-------+-------+--------+---------+-------+
type DMAMap struct {
	ArgSize uint32
	Flags   uint32 // DMAFlagRead, DMAFlagWrite
	Offset  uint64 // into the file
	Addr    uint64 // bus address
	Size    uint64 // bytes
}

// ParseDMAMap reads a DMA_MAP payload. It fails when the payload or argsz is
// too short, when the size is 0 or when the range wraps.
func ParseDMAMap(b []byte) (DMAMap, int, error) {
	var m DMAMap
	if err := readArgs("dma map", b, dmaMapSize, &m.ArgSize, &m.Flags); err != nil {
		return DMAMap{}, 0, err
	}
	le := binary.LittleEndian
	m.Offset, m.Addr, m.Size = le.Uint64(b[8:]), le.Uint64(b[16:]), le.Uint64(b[24:])
	if m.Size == 0 || m.Addr > math.MaxUint64-(m.Size-1) {
		return DMAMap{}, 0, fmt.Errorf("vfiouser: dma map: %d bytes at %#x is not a range", m.Size, m.Addr)
	}
	return m, dmaMapSize, nil
}

// Append appends the payload's 32 bytes.
func (m DMAMap) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(append32(b, m.ArgSize, m.Flags), m.Offset)
	b = binary.LittleEndian.AppendUint64(b, m.Addr)
	return binary.LittleEndian.AppendUint64(b, m.Size)
}

// DMAUnmap is the payload of DMA_UNMAP and of its reply.
//
//	 0       4       8         16      24
//	+-------+-------+---------+-------+
//	| argsz | flags | address | size  |
//	+-------+-------+---------+-------+
type DMAUnmap struct {
	ArgSize uint32
	Flags   uint32 // DMAUnmapAll
	Addr    uint64
	Size    uint64 // bytes
}

// ParseDMAUnmap reads a DMA_UNMAP payload. It fails when the payload or argsz
// is too short, or when the range wraps.
func ParseDMAUnmap(b []byte) (DMAUnmap, int, error) {
	var u DMAUnmap
	if err := readArgs("dma unmap", b, dmaUnmapSize, &u.ArgSize, &u.Flags); err != nil {
		return DMAUnmap{}, 0, err
	}
	u.Addr, u.Size = binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:])
	if u.Size > 0 && u.Addr > math.MaxUint64-(u.Size-1) {
		return DMAUnmap{}, 0, fmt.Errorf("vfiouser: dma unmap: %d bytes at %#x is not a range", u.Size, u.Addr)
	}
	return u, dmaUnmapSize, nil
}

// Append appends the payload's 24 bytes.
func (u DMAUnmap) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(append32(b, u.ArgSize, u.Flags), u.Addr)
	return binary.LittleEndian.AppendUint64(b, u.Size)
}

// DMAAccess starts the payload of DMA_READ and DMA_WRITE, and of their
// replies; data follows in the write and in the reply of the read. (An older
// QEMU header file had a 32-bit count; no known peer still uses it.)
//
//	 0         8       16
//	+---------+-------+
//	| address | count |
//	+---------+-------+
type DMAAccess struct {
	Addr  uint64
	Count uint64 // bytes
}

// ParseDMAAccess reads a DMA_READ or DMA_WRITE payload up to its data. It
// fails when the payload is too short or the range wraps.
func ParseDMAAccess(b []byte) (DMAAccess, int, error) {
	if len(b) < dmaAccessSize {
		return DMAAccess{}, 0, shortError("dma access", len(b), dmaAccessSize)
	}
	a := DMAAccess{Addr: binary.LittleEndian.Uint64(b), Count: binary.LittleEndian.Uint64(b[8:])}
	if a.Count > 0 && a.Addr > math.MaxUint64-(a.Count-1) {
		return DMAAccess{}, 0, fmt.Errorf("vfiouser: dma access: %d bytes at %#x is not a range", a.Count, a.Addr)
	}
	return a, dmaAccessSize, nil
}

// Append appends the 16 bytes before the data.
func (a DMAAccess) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, a.Addr)
	return binary.LittleEndian.AppendUint64(b, a.Count)
}
