package plugin

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"

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
func (v *VFIO) Open(_ context.Context, devices []devicedata.Data, free func(string) error) (cdi.Edits, []Attributes, error) {
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

// functionAddress is the address of a PCI function without its function number.
var functionAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}$`)

// function returns the address of the function below the root port of a slot. The
// physical slot number of the port (PCIe 7.5.3.9) is one more than the host's slot, as
// docs/guest.md has it for QEMU.
func (v *VFIO) function(slot uint32) (string, error) {
	port := strconv.Itoa(int(slot) + 1)
	raw, err := os.ReadFile(filepath.Join(v.Sysfs, "bus/pci/slots", port, "address"))
	if err != nil {
		return "", fmt.Errorf("the VM has no root port with physical slot number %s for slot %d: %w", port, slot, err)
	}
	at := strings.TrimSpace(string(raw))
	if !functionAddress.MatchString(at) {
		return "", fmt.Errorf("physical slot %s: %q is not the address of a device", port, at)
	}
	at += ".0"
	if _, err := os.Stat(v.device(at, "")); err != nil {
		return "", fmt.Errorf("slot %d is empty: %w; the guest has not seen the device yet", slot, err)
	}
	return at, nil
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
