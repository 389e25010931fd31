package vfiouser

import "encoding/binary"

const (
	deviceInfoSize = 16
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
	if len(b) < deviceInfoSize {
		return DeviceInfo{}, 0, shortError("device info", len(b), deviceInfoSize)
	}
	d := DeviceInfo{
		ArgSize: binary.LittleEndian.Uint32(b),
		Flags:   binary.LittleEndian.Uint32(b[4:]),
		Regions: binary.LittleEndian.Uint32(b[8:]),
		IRQs:    binary.LittleEndian.Uint32(b[12:]),
	}
	if d.ArgSize < deviceInfoSize {
		return DeviceInfo{}, 0, shortError("device info: argsz", int(d.ArgSize), deviceInfoSize)
	}
	return d, deviceInfoSize, nil
}

// Append appends the payload's 16 bytes.
func (d DeviceInfo) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, d.ArgSize)
	b = binary.LittleEndian.AppendUint32(b, d.Flags)
	b = binary.LittleEndian.AppendUint32(b, d.Regions)
	return binary.LittleEndian.AppendUint32(b, d.IRQs)
}
