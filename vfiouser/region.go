package vfiouser

import (
	"encoding/binary"
	"fmt"
)

const (
	regionInfoSize   = 32
	regionAccessSize = 16
	multiCountSize   = 8
	multiEntrySize   = 24

	capHeaderSize  = 8
	sparseHeadSize = 16 // capability header, number of areas, reserved
	sparseAreaSize = 16
	capSparseMmap  = 1
	maxSparseAreas = 64
)

// MaxMulti is the most writes in one REGION_WRITE_MULTI: QEMU sends 200.
const MaxMulti = 200

// Regions of a PCI device (linux/vfio.h).
const (
	RegionBAR0   uint32 = 0
	RegionROM    uint32 = 6
	RegionConfig uint32 = 7
	RegionVGA    uint32 = 8
	NumRegions          = 9
)

// DEVICE_GET_REGION_INFO flags.
const (
	RegionFlagRead  = 1 << 0
	RegionFlagWrite = 1 << 1
	RegionFlagMmap  = 1 << 2
	RegionFlagCaps  = 1 << 3
)

// RegionInfo is the payload of DEVICE_GET_REGION_INFO and of its reply. The
// reply carries a descriptor where RegionFlagMmap is set.
//
//	 0       4       8       12           16     24       32
//	+-------+-------+-------+------------+------+--------+--------------+
//	| argsz | flags | index | cap offset | size | offset | capabilities |
//	+-------+-------+-------+------------+------+--------+--------------+
//
// A reply's argsz is the length of the whole payload. When it is more than the
// request's, the reply has no capabilities and the client asks again.
type RegionInfo struct {
	ArgSize uint32
	Flags   uint32 // RegionFlagRead and the others
	Index   uint32
	Size    uint64 // bytes
	Offset  uint64 // into the descriptor
	// Sparse are the areas that may be mapped; none means all of the region.
	Sparse []SparseArea
}

// SparseArea is a part of a region that may be mapped.
type SparseArea struct{ Offset, Size uint64 }

// ParseRegionInfo reads a DEVICE_GET_REGION_INFO payload with the sparse-mmap
// capability, if it has one; other capabilities are skipped.
func ParseRegionInfo(b []byte) (RegionInfo, int, error) {
	var r RegionInfo
	var caps uint32
	err := readArgs("region info", b, regionInfoSize, &r.ArgSize, &r.Flags, &r.Index, &caps)
	if err != nil {
		return RegionInfo{}, 0, err
	}
	r.Size, r.Offset = binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
	if r.Flags&RegionFlagCaps == 0 {
		return r, regionInfoSize, nil
	}
	if r.Sparse, err = parseRegionCaps(b, caps); err != nil {
		return RegionInfo{}, 0, err
	}
	return r, len(b), nil
}

// parseRegionCaps follows the chain of capabilities. Each one must lie behind
// the one before, so the walk ends.
func parseRegionCaps(b []byte, off uint32) ([]SparseArea, error) {
	var areas []SparseArea
	for last := uint32(regionInfoSize - 1); off != 0; {
		if off <= last || uint64(off)+capHeaderSize > uint64(len(b)) {
			return nil, fmt.Errorf("vfiouser: region info: capability at %d of %d", off, len(b))
		}
		last = off
		c := b[off:]
		off = binary.LittleEndian.Uint32(c[4:])
		if binary.LittleEndian.Uint16(c) != capSparseMmap {
			continue
		}
		if len(c) < sparseHeadSize {
			return nil, shortError("region info: sparse mmap", len(c), sparseHeadSize)
		}
		n := binary.LittleEndian.Uint32(c[8:])
		if n > maxSparseAreas || int(n)*sparseAreaSize > len(c)-sparseHeadSize {
			return nil, fmt.Errorf("vfiouser: region info: %d sparse areas in %d bytes", n, len(c))
		}
		for c = c[sparseHeadSize:]; n > 0; n, c = n-1, c[sparseAreaSize:] {
			areas = append(areas, SparseArea{binary.LittleEndian.Uint64(c), binary.LittleEndian.Uint64(c[8:])})
		}
	}
	return areas, nil
}

// fullSize is the payload's length with capabilities.
func (r RegionInfo) fullSize() int {
	if len(r.Sparse) == 0 {
		return regionInfoSize
	}
	return regionInfoSize + sparseHeadSize + len(r.Sparse)*sparseAreaSize
}

// Append appends the payload, with a sparse-mmap capability at offset 32 when
// RegionFlagCaps is set.
func (r RegionInfo) Append(b []byte) []byte {
	var capOffset uint32
	if r.Flags&RegionFlagCaps != 0 && len(r.Sparse) > 0 {
		capOffset = regionInfoSize
	}
	b = append32(b, r.ArgSize, r.Flags, r.Index, capOffset)
	b = binary.LittleEndian.AppendUint64(b, r.Size)
	b = binary.LittleEndian.AppendUint64(b, r.Offset)
	if capOffset == 0 {
		return b
	}
	b = binary.LittleEndian.AppendUint16(b, capSparseMmap)
	b = binary.LittleEndian.AppendUint16(b, 1)
	b = append32(b, 0, uint32(len(r.Sparse)), 0) // the first 0: this is the last capability
	for _, a := range r.Sparse {
		b = binary.LittleEndian.AppendUint64(b, a.Offset)
		b = binary.LittleEndian.AppendUint64(b, a.Size)
	}
	return b
}

// RegionAccess starts the payload of REGION_READ and REGION_WRITE and of their
// replies; data follows in the write and in the reply of the read.
//
//	 0        8        12      16
//	+--------+--------+-------+
//	| offset | region | count |
//	+--------+--------+-------+
type RegionAccess struct {
	Offset uint64
	Region uint32
	Count  uint32 // bytes
}

// ParseRegionAccess reads a REGION_READ or REGION_WRITE payload up to its data.
func ParseRegionAccess(b []byte) (RegionAccess, int, error) {
	if len(b) < regionAccessSize {
		return RegionAccess{}, 0, shortError("region access", len(b), regionAccessSize)
	}
	return RegionAccess{
		Offset: binary.LittleEndian.Uint64(b),
		Region: binary.LittleEndian.Uint32(b[8:]),
		Count:  binary.LittleEndian.Uint32(b[12:]),
	}, regionAccessSize, nil
}

// Append appends the 16 bytes before the data.
func (a RegionAccess) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, a.Offset)
	b = binary.LittleEndian.AppendUint32(b, a.Region)
	return binary.LittleEndian.AppendUint32(b, a.Count)
}

// MultiWrite is one write of a REGION_WRITE_MULTI, whose payload is the number
// of writes (8 bytes) and then each write:
//
//	 0        8        12      16     24
//	+--------+--------+-------+------+
//	| offset | region | count | data |
//	+--------+--------+-------+------+
type MultiWrite struct {
	Offset uint64
	Region uint32
	Count  uint32 // bytes used of Data, 0 to 8
	Data   [8]byte
}

// ParseMultiCount reads the number of writes and checks that the rest of b
// holds exactly that number.
func ParseMultiCount(b []byte) (count, n int, err error) {
	if len(b) < multiCountSize {
		return 0, 0, shortError("multi write", len(b), multiCountSize)
	}
	c := binary.LittleEndian.Uint64(b)
	if c > MaxMulti || int(c)*multiEntrySize != len(b)-multiCountSize {
		return 0, 0, fmt.Errorf("vfiouser: multi write: %d writes in %d bytes", c, len(b)-multiCountSize)
	}
	return int(c), multiCountSize, nil
}

// ParseMultiWrite reads one write.
func ParseMultiWrite(b []byte) (MultiWrite, int, error) {
	if len(b) < multiEntrySize {
		return MultiWrite{}, 0, shortError("multi write", len(b), multiEntrySize)
	}
	w := MultiWrite{
		Offset: binary.LittleEndian.Uint64(b),
		Region: binary.LittleEndian.Uint32(b[8:]),
		Count:  binary.LittleEndian.Uint32(b[12:]),
		Data:   [8]byte(b[16:24]),
	}
	if w.Count > uint32(len(w.Data)) {
		return MultiWrite{}, 0, fmt.Errorf("vfiouser: multi write: %d bytes of %d", w.Count, len(w.Data))
	}
	return w, multiEntrySize, nil
}

func (w MultiWrite) access() RegionAccess {
	return RegionAccess{Offset: w.Offset, Region: w.Region, Count: w.Count}
}

// Append appends the write's 24 bytes.
func (w MultiWrite) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(b, w.Offset)
	b = binary.LittleEndian.AppendUint32(b, w.Region)
	b = binary.LittleEndian.AppendUint32(b, w.Count)
	return append(b, w.Data[:]...)
}
