// Package vfio gives the driver of the GPU access to a PCI device from user
// space on Linux: through VFIO with or without an IOMMU, or, where the kernel
// has no VFIO, through the resource files of sysfs.
package vfio

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// Function is a PCI function as sysfs shows it.
type Function struct {
	Address        string // "0000:01:00.0"
	Vendor, Device uint16
	Class          uint32 // 24 bits
	Driver         string // bound driver, empty for none
	IOMMUGroup     string // number, empty for none
}

const devicesDir = "bus/pci/devices"

// Find lists the functions with these IDs in sysfs (os.DirFS("/sys")), by
// address. A file system without a PCI bus has none.
func Find(sysfs fs.FS, vendor, device uint16) ([]Function, error) {
	entries, err := fs.ReadDir(sysfs, devicesDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("vfio: find: %w", err)
	}
	var found []Function
	for _, e := range entries {
		f, err := Lookup(sysfs, e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // unplugged meanwhile
		}
		if err != nil {
			return nil, err
		}
		if f.Vendor == vendor && f.Device == device {
			found = append(found, f)
		}
	}
	return found, nil
}

// Lookup reads what sysfs says about one function. The address may leave out
// the domain ("01:00.0").
func Lookup(sysfs fs.FS, address string) (Function, error) {
	if strings.Count(address, ":") == 1 {
		address = "0000:" + address
	}
	if strings.ContainsAny(address, "/\\") || !fs.ValidPath(address) {
		return Function{}, fmt.Errorf("vfio: %q is not a PCI address", address)
	}
	f := Function{Address: address}
	dir := path.Join(devicesDir, address)
	for _, field := range []struct {
		name string
		bits int
		set  func(v uint64)
	}{
		{"vendor", 16, func(v uint64) { f.Vendor = uint16(v) }},
		{"device", 16, func(v uint64) { f.Device = uint16(v) }},
		{"class", 24, func(v uint64) { f.Class = uint32(v) }},
	} {
		b, err := fs.ReadFile(sysfs, path.Join(dir, field.name))
		if err != nil {
			return Function{}, fmt.Errorf("vfio: %s: %w", address, err)
		}
		v, err := strconv.ParseUint(strings.TrimSpace(string(b)), 0, field.bits)
		if err != nil {
			return Function{}, fmt.Errorf("vfio: %s: %s: %w", address, field.name, err)
		}
		field.set(v)
	}
	f.Driver = linkBase(sysfs, path.Join(dir, "driver"))
	f.IOMMUGroup = linkBase(sysfs, path.Join(dir, "iommu_group"))
	return f, nil
}

// linkBase returns the last element of what a link points to, or "".
func linkBase(fsys fs.FS, name string) string {
	target, err := fs.ReadLink(fsys, name)
	if err != nil {
		return ""
	}
	return path.Base(target)
}
