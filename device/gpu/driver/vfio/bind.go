package vfio

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// Driver is the kernel driver that hands a function to user space.
const Driver = "vfio-pci"

// Bind gives a function to a kernel driver: what drives it now is unbound, and
// the driver that may bind it is overridden. sysfs is "/sys". It needs root.
func Bind(sysfs, address, driver string) error {
	dir := filepath.Join(sysfs, devicesDir, address)
	if err := write(filepath.Join(dir, "driver_override"), driver); err != nil {
		return fmt.Errorf("vfio: bind %s: %w", address, err)
	}
	f, err := Lookup(os.DirFS(sysfs), address)
	if err != nil {
		return err
	}
	if f.Driver == driver {
		return nil
	}
	if f.Driver != "" {
		if err := write(filepath.Join(dir, "driver", "unbind"), address); err != nil {
			return fmt.Errorf("vfio: bind %s: unbind %s: %w", address, f.Driver, err)
		}
	}
	if err := write(filepath.Join(sysfs, "bus/pci/drivers_probe"), address); err != nil {
		return fmt.Errorf("vfio: bind %s: %w", address, err)
	}
	if f, err = Lookup(os.DirFS(sysfs), address); err != nil {
		return err
	}
	if f.Driver != driver {
		return fmt.Errorf("vfio: bind %s: bound to %q, not to %s: is the module loaded?", address, f.Driver, driver)
	}
	return nil
}

// write writes an attribute that exists.
func write(name, value string) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
