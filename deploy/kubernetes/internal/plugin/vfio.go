package plugin

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/pcie"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/cdi"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/devicedata"
)

// VFIO is the access on a node that is a VM: the host proxy hot-plugs the GPU below a
// root port of the VM, and the container gets the VFIO group of the function.
type VFIO struct {
	Sysfs string // "/sys"
	Dev   string // "/dev"
	// Driver is the OpenCL driver, which finds the functions by itself.
	Driver Driver

	// write writes a file of sysfs; nil: os.WriteFile. Tests are the kernel.
	write func(path, text string) error
}

func (v *VFIO) set(path, text string) error {
	if v.write != nil {
		return v.write(path, text)
	}
	return os.WriteFile(path, []byte(text), 0)
}

// pciBusID is the attribute that Kubernetes has for the address of a function.
const pciBusID = "resource.kubernetes.io/pciBusID"

// Open implements Access.
func (v *VFIO) Open(_ context.Context, _ int, devices []devicedata.Data, free func(string) error) (cdi.Edits, []Attributes, error) {
	e := cdi.Edits{DeviceNodes: []cdi.DeviceNode{{Path: filepath.Join(v.Dev, "vfio/vfio")}}}
	var attributes []Attributes
	for _, d := range devices {
		address, err := v.function(d.Slot)
		if err != nil {
			return e, nil, fmt.Errorf("GPU %s: %w", d.GPU, err)
		}
		node, err := v.bind(address, free)
		if err != nil {
			return e, nil, fmt.Errorf("GPU %s: function %s: %w", d.GPU, address, err)
		}
		// A variable for each slot: a container may have the devices of several requests and
		// claims, and the runtime keeps the last of the variables with one name.
		e.Env = append(e.Env, fmt.Sprintf("DXPU_PCI_ADDRESS_%d=%s", d.Slot, address))
		e.DeviceNodes = append(e.DeviceNodes, cdi.DeviceNode{Path: node})
		attributes = append(attributes, Attributes{pciBusID: resourceapi.DeviceAttribute{StringValue: &address}})
	}
	mounts, err := v.Driver.mounts()
	e.Mounts = append(e.Mounts, mounts...)
	return e, attributes, err
}

// function returns the address of the function below the port of a slot. The physical slot number
// of the port (PCIe 7.5.3.9) is one more than the host's slot, as docs/guest.md has it for QEMU.
// It is read from the port itself: with the hot-plug by ACPI that QEMU has by default, the kernel
// gives the slots in /sys/bus/pci/slots other numbers.
func (v *VFIO) function(slot uint32) (string, error) {
	ports, err := filepath.Glob(v.device("*", "config"))
	if err != nil {
		return "", err
	}
	found := ""
	for _, file := range ports {
		config, err := readConfig(file)
		if err != nil {
			return "", err
		}
		if n, ok := physicalSlot(config); !ok || n != slot+1 {
			continue
		}
		if found != "" {
			return "", fmt.Errorf("the VM has several ports with physical slot number %d, that of slot %d: number them as docs/guest.md does", slot+1, slot)
		}
		found = filepath.Dir(file)
	}
	if found == "" {
		return "", fmt.Errorf("the VM has no root port with physical slot number %d for slot %d", slot+1, slot)
	}
	below, err := os.ReadDir(found)
	if err != nil {
		return "", err
	}
	for _, e := range below {
		if functionAddress.MatchString(e.Name()) {
			return e.Name(), nil
		}
	}
	return "", fmt.Errorf("slot %d is empty: the guest has not seen the device yet", slot)
}

// functionAddress is the address of the first function of a PCI device.
var functionAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.0$`)

// readConfig reads the configuration space of a function. It has 64 bytes for users other than root.
func readConfig(file string) ([]byte, error) {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // unplugged since
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	config, err := io.ReadAll(io.LimitReader(f, pcie.ConfigSizePCI))
	if err != nil {
		return nil, fmt.Errorf("read the configuration space of a PCI function: %w", err)
	}
	return config, nil
}

// physicalSlot returns the physical slot number of a port with a slot.
func physicalSlot(config []byte) (uint32, bool) {
	const (
		bridge      = 1  // type 1 of the header
		numberShift = 19 // in Slot Capabilities
	)
	if len(config) < pcie.ConfigSizePCI || config[cfgspace.OffHeaderType]&0x7f != bridge {
		return 0, false
	}
	at := cfgspace.Find(config, cfgspace.CapExpress)
	if at == 0 || at+cfgspace.OffSlotCap+pcie.DW > len(config) ||
		binary.LittleEndian.Uint16(config[at+cfgspace.OffExpCaps:])&cfgspace.ExpSlot == 0 {
		return 0, false
	}
	return binary.LittleEndian.Uint32(config[at+cfgspace.OffSlotCap:]) >> numberShift, true
}

func (v *VFIO) device(address, file string) string {
	return filepath.Join(v.Sysfs, "bus/pci/devices", address, file)
}

// bind gives a function to vfio-pci and returns the device file of its IOMMU group.
func (v *VFIO) bind(address string, free func(string) error) (node string, err error) {
	link, err := os.Readlink(v.device(address, "iommu_group"))
	if err != nil {
		return "", fmt.Errorf("it is in no IOMMU group: %w; the VM needs a virtual IOMMU", err)
	}
	node = filepath.Join(v.Dev, "vfio", filepath.Base(link))
	if err := free(node); err != nil {
		return "", err
	}
	driver, err := v.driver(address)
	if err != nil || driver == vfioDriver {
		return node, err
	}
	if err := v.set(v.device(address, "driver_override"), vfioDriver); err != nil {
		return "", err
	}
	if driver != "" {
		if err := v.set(v.device(address, "driver/unbind"), address); err != nil {
			return "", fmt.Errorf("unbind it from %s: %w", driver, err)
		}
	}
	if err := v.set(filepath.Join(v.Sysfs, "bus/pci/drivers_probe"), address); err != nil {
		return "", fmt.Errorf("bind it to vfio-pci: %w", err)
	}
	// The kernel takes the address also if no driver takes the function.
	switch driver, err = v.driver(address); {
	case err != nil:
		return "", err
	case driver != vfioDriver:
		return "", fmt.Errorf("vfio-pci does not take it (its driver: %q): load the module vfio-pci on the node", driver)
	}
	return node, nil
}

const vfioDriver = "vfio-pci"

// driver returns the driver of a function, "" for none.
func (v *VFIO) driver(address string) (string, error) {
	link, err := os.Readlink(v.device(address, "driver"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return filepath.Base(link), err
}
