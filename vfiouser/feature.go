package vfiouser

import "encoding/binary"

const (
	featureSize     = 8
	regionIOFDsSize = 16
)

// DEVICE_FEATURE flags; the lower 16 bits are the feature's number.
const (
	FeatureMask  = 0xffff
	FeatureGet   = 1 << 16
	FeatureSet   = 1 << 17
	FeatureProbe = 1 << 18
)

// Feature is the payload of DEVICE_FEATURE and of its reply. The server has no
// feature and answers ENOTTY, as Linux does; clients use the format.
//
//	 0       4       8
//	+-------+-------+------+
//	| argsz | flags | data |
//	+-------+-------+------+
type Feature struct {
	ArgSize uint32
	Flags   uint32
	Data    []byte // aliases the parsed bytes
}

// ParseFeature reads a DEVICE_FEATURE payload; Data is the rest behind the flags.
func ParseFeature(b []byte) (Feature, int, error) {
	if len(b) < featureSize {
		return Feature{}, 0, shortError("device feature", len(b), featureSize)
	}
	f := Feature{ArgSize: binary.LittleEndian.Uint32(b), Flags: binary.LittleEndian.Uint32(b[4:]), Data: b[featureSize:]}
	if f.ArgSize < featureSize {
		return Feature{}, 0, shortError("device feature: argsz", int(f.ArgSize), featureSize)
	}
	return f, len(b), nil
}

// Append appends the payload.
func (f Feature) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, f.ArgSize)
	b = binary.LittleEndian.AppendUint32(b, f.Flags)
	return append(b, f.Data...)
}

// RegionIOFDs is the payload of DEVICE_GET_REGION_IO_FDS and the start of its
// reply. The server has no such descriptors and answers a count of 0.
//
//	 0       4       8       12      16
//	+-------+-------+-------+-------+
//	| argsz | flags | index | count |
//	+-------+-------+-------+-------+
type RegionIOFDs struct {
	ArgSize, Flags, Index, Count uint32
}

// ParseRegionIOFDs reads a DEVICE_GET_REGION_IO_FDS payload without entries.
func ParseRegionIOFDs(b []byte) (RegionIOFDs, int, error) {
	if len(b) < regionIOFDsSize {
		return RegionIOFDs{}, 0, shortError("region io fds", len(b), regionIOFDsSize)
	}
	r := RegionIOFDs{
		ArgSize: binary.LittleEndian.Uint32(b),
		Flags:   binary.LittleEndian.Uint32(b[4:]),
		Index:   binary.LittleEndian.Uint32(b[8:]),
		Count:   binary.LittleEndian.Uint32(b[12:]),
	}
	if r.ArgSize < regionIOFDsSize {
		return RegionIOFDs{}, 0, shortError("region io fds: argsz", int(r.ArgSize), regionIOFDsSize)
	}
	return r, regionIOFDsSize, nil
}

// Append appends the 16 bytes.
func (r RegionIOFDs) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, r.ArgSize)
	b = binary.LittleEndian.AppendUint32(b, r.Flags)
	b = binary.LittleEndian.AppendUint32(b, r.Index)
	return binary.LittleEndian.AppendUint32(b, r.Count)
}
