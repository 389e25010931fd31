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
}

// pciBusID is the attribute that Kubernetes has for the address of a function.
const pciBusID = "resource.kubernetes.io/pciBusID"

// Open implements Access.
func (v *VFIO) Open(_ context.Context, devices []devicedata.Data) (cdi.Edits, []Attributes, error) {
	e := cdi.Edits{DeviceNodes: []cdi.DeviceNode{{Path: filepath.Join(v.Dev, "vfio/vfio")}}}
	var attributes []Attributes
	var addresses []string
	for _, d := range devices {
		address, err := v.function(d.Slot)
		if err != nil {
			return e, nil, fmt.Errorf("GPU %s: %w", d.GPU, err)
		}
		group, err := v.bind(address)
		if err != nil {
			return e, nil, fmt.Errorf("GPU %s: function %s: %w", d.GPU, address, err)
		}
		e.DeviceNodes = append(e.DeviceNodes, cdi.DeviceNode{Path: filepath.Join(v.Dev, "vfio", group)})
		addresses = append(addresses, address)
		attributes = append(attributes, Attributes{pciBusID: resourceapi.DeviceAttribute{StringValue: &address}})
	}
	e.Env = []string{"DXPU_PCI_ADDRESSES=" + strings.Join(addresses, ",")}
	return e, attributes, nil
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

// bind gives a function to vfio-pci and returns its IOMMU group.
func (v *VFIO) bind(address string) (group string, err error) {
	link, err := os.Readlink(v.device(address, "iommu_group"))
	if err != nil {
		return "", fmt.Errorf("it is in no IOMMU group: %w; the VM needs a virtual IOMMU", err)
	}
	group = filepath.Base(link)
	driver, err := os.Readlink(v.device(address, "driver"))
	switch {
	case err == nil && filepath.Base(driver) == "vfio-pci":
		return group, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", err
	}
	if err := os.WriteFile(v.device(address, "driver_override"), []byte("vfio-pci"), 0); err != nil {
		return "", err
	}
	if driver != "" {
		if err := os.WriteFile(v.device(address, "driver/unbind"), []byte(address), 0); err != nil {
			return "", fmt.Errorf("unbind it from %s: %w", filepath.Base(driver), err)
		}
	}
	if err := os.WriteFile(filepath.Join(v.Sysfs, "bus/pci/drivers_probe"), []byte(address), 0); err != nil {
		return "", fmt.Errorf("bind it to vfio-pci: %w; load the module vfio-pci on the node", err)
	}
	return group, nil
}
