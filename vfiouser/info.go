package vfiouser

const (
	deviceInfoSize  = 16
	featureSize     = 8
	regionIOFDsSize = 16
	// deviceInfoCapSize includes the cap_offset field that newer versions of
	// linux/vfio.h added; rust-vmm's client reads exactly the size that it sent.
	deviceInfoCapSize = 20
)

// DEVICE_GET_INFO flags.
const (
	DeviceFlagReset = 1 << 0 // DEVICE_RESET works
	DeviceFlagPCI   = 1 << 1
)

// DeviceInfo is the payload of DEVICE_GET_INFO and of its reply.
//
//	 0       4       8             12         16
//	+-------+-------+-------------+----------+
//	| argsz | flags | num regions | num irqs |
//	+-------+-------+-------------+----------+
type DeviceInfo struct {
	ArgSize uint32
	Flags   uint32 // DeviceFlagReset, DeviceFlagPCI
	Regions uint32
	IRQs    uint32 // number of interrupt indexes
}

// ParseDeviceInfo reads a DEVICE_GET_INFO payload; argsz may be larger.
func ParseDeviceInfo(b []byte) (DeviceInfo, int, error) {
	var d DeviceInfo
	if err := readArgs("device info", b, deviceInfoSize, &d.ArgSize, &d.Flags, &d.Regions, &d.IRQs); err != nil {
		return DeviceInfo{}, 0, err
	}
	return d, deviceInfoSize, nil
}

// Append appends the payload's 16 bytes.
func (d DeviceInfo) Append(b []byte) []byte {
	return append32(b, d.ArgSize, d.Flags, d.Regions, d.IRQs)
}

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
	var f Feature
	if err := readArgs("device feature", b, featureSize, &f.ArgSize, &f.Flags); err != nil {
		return Feature{}, 0, err
	}
	f.Data = b[featureSize:]
	return f, len(b), nil
}

// Append appends the payload.
func (f Feature) Append(b []byte) []byte { return append(append32(b, f.ArgSize, f.Flags), f.Data...) }

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
	var r RegionIOFDs
	if err := readArgs("region io fds", b, regionIOFDsSize, &r.ArgSize, &r.Flags, &r.Index, &r.Count); err != nil {
		return RegionIOFDs{}, 0, err
	}
	return r, regionIOFDsSize, nil
}

// Append appends the 16 bytes.
func (r RegionIOFDs) Append(b []byte) []byte {
	return append32(b, r.ArgSize, r.Flags, r.Index, r.Count)
}
