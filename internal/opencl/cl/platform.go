package cl

import (
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"strings"
)

// Parameters of a device that Found holds.
const (
	deviceType       = 0x1000
	deviceUnits      = 0x1002
	deviceGlobalSize = 0x101f
	deviceAvailable  = 0x1027
	deviceName       = 0x102b
	deviceVendor     = 0x102c
	driverVersion    = 0x102d
	deviceVersion    = 0x102f
	platformName     = 0x0902
)

// Found describes a device of this machine.
type Found struct {
	Index     int    `json:"index"` // over all platforms, in the order of the ICD loader
	Platform  string `json:"platform"`
	Name      string `json:"name"`
	Vendor    string `json:"vendor"`
	Type      string `json:"type"` // gpu, cpu, accelerator or custom
	Version   string `json:"version"`
	Driver    string `json:"driver"`
	Memory    uint64 `json:"memory"` // bytes
	Units     int    `json:"units"`  // compute units
	Available bool   `json:"available"`

	platform Platform
	device   Device
}

// maxHandles bounds the platforms, and the devices of one.
const maxHandles = 64

// Devices lists the devices of all platforms. There may be none.
func (l *Library) Devices() ([]Found, error) {
	platforms, err := handles[Platform](l, getPlatformIDs)
	if errors.Is(err, platformNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []Found
	for _, p := range platforms {
		devices, err := handles[Device](l, getDeviceIDs, uintptr(p), deviceTypeAll)
		if err != nil && !errors.Is(err, deviceNotFound) {
			return nil, err
		}
		for _, d := range devices {
			f := l.describe(p, d)
			f.Index = len(out)
			out = append(out, f)
		}
	}
	return out, nil
}

// handles makes a query for a list, whose last arguments are its room, its place and
// its length.
func handles[T ~uintptr](l *Library, f function, args ...uintptr) ([]T, error) {
	list := make([]T, maxHandles)
	n := new(uint32)
	err := l.call(f, append(args, maxHandles, data(list), pointer(n))...)
	runtime.KeepAlive(list)
	if err != nil {
		return nil, err
	}
	return list[:min(*n, maxHandles)], nil
}

func (l *Library) describe(p Platform, d Device) Found {
	text := func(param uint32) string { return cString(l.deviceInfo(d, param)) }
	name, _ := l.info(getPlatformInfo, uintptr(p), platformName)
	kind := "custom"
	switch t := word(l.deviceInfo(d, deviceType)); {
	case t&4 != 0:
		kind = "gpu"
	case t&2 != 0:
		kind = "cpu"
	case t&8 != 0:
		kind = "accelerator"
	}
	return Found{
		Platform: cString(name), Name: text(deviceName), Vendor: text(deviceVendor), Version: text(deviceVersion),
		Driver: text(driverVersion), Type: kind, Memory: word(l.deviceInfo(d, deviceGlobalSize)),
		Units:     int(word(l.deviceInfo(d, deviceUnits))),
		Available: word(l.deviceInfo(d, deviceAvailable)) != 0, platform: p, device: d,
	}
}

func cString(b []byte) string {
	s, _, _ := strings.Cut(string(b), "\x00")
	return s
}

// word reads a little-endian number of up to eight bytes.
func word(b []byte) uint64 {
	var p [8]byte
	copy(p[:], b)
	return binary.LittleEndian.Uint64(p[:])
}

// deviceInfo returns a property, or nil if the device lacks it.
func (l *Library) deviceInfo(d Device, param uint32) []byte {
	v, err := l.info(getDeviceInfo, uintptr(d), uintptr(param))
	if err != nil {
		return nil
	}
	return v
}

// Property is a value that the platform or the device returned for a parameter.
type Property struct {
	Param uint32
	Value []byte
}

// Parameters of platforms and of devices whose values are handles of this process.
const (
	deviceParams       = 0x1000
	deviceParamsEnd    = 0x1080
	devicePlatform     = 0x1031
	deviceParentDevice = 0x1042
	platformParams     = 0x0900
	platformParamsEnd  = 0x0908
	deviceExtensions   = 0x1030
)

// queries are the parameters of extensions whose values never change. They are asked where the
// device lists the extension: a vendor may have given a number to another query.
var queries = []struct {
	extension   string
	first, last uint32
}{
	{"cl_intel_required_subgroup_size", 0x4108, 0x4108},
	{"cl_ext_float_atomics", 0x4231, 0x4233},
	{"cl_nv_device_attribute_query", 0x4000, 0x400a},
	{"cl_intel_device_attribute_query", 0x4250, 0x4256},
}

// Properties returns what the platform says of itself and of the device, in the order
// of the parameters. Handles are left out.
func (f Found) Properties(l *Library) []Property {
	var out []Property
	for p := uint32(platformParams); p < platformParamsEnd; p++ {
		if v, err := l.info(getPlatformInfo, uintptr(f.platform), uintptr(p)); err == nil && len(v) > 0 {
			out = append(out, Property{p, v})
		}
	}
	ask := func(p uint32) {
		// An empty list is a value, too.
		if v, err := l.info(getDeviceInfo, uintptr(f.device), uintptr(p)); err == nil {
			out = append(out, Property{p, v})
		}
	}
	for p := uint32(deviceParams); p < deviceParamsEnd; p++ {
		if p != devicePlatform && p != deviceParentDevice {
			ask(p)
		}
	}
	listed := strings.Fields(cString(l.deviceInfo(f.device, deviceExtensions)))
	for _, q := range queries {
		if !slices.Contains(listed, q.extension) {
			continue
		}
		for p := q.first; p <= q.last; p++ {
			ask(p)
		}
	}
	return out
}
