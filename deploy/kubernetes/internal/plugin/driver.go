package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/cdi"
)

// Driver is the OpenCL driver of DxPU on the node, which containers get with their devices.
type Driver struct {
	// Library is the file of the driver, "" for none.
	Library string
	// Dir is a directory for the file that names the driver to the ICD loader.
	Dir string
}

// Paths in the container.
const (
	containerDriver = "/usr/lib/dxpu/libdxpu-opencl.so"
	containerICD    = "/etc/OpenCL/vendors/dxpu.icd"
)

// mounts returns what a container needs of the driver.
func (d Driver) mounts() ([]cdi.Mount, error) {
	if d.Library == "" {
		return nil, nil
	}
	icd := filepath.Join(d.Dir, "dxpu.icd")
	if err := writeOnce(icd, []byte(containerDriver+"\n")); err != nil {
		return nil, fmt.Errorf("the file for the ICD loader: %w", err)
	}
	options := []string{"ro", "nosuid", "nodev", "bind"}
	return []cdi.Mount{
		{HostPath: d.Library, ContainerPath: containerDriver, Options: options},
		{HostPath: icd, ContainerPath: containerICD, Options: options},
	}, nil
}

// writeOnce writes a file that differs. Containers that run have the old one mounted, and
// must not see a part of it.
func writeOnce(path string, data []byte) error {
	old, err := os.ReadFile(path)
	if err == nil && bytes.Equal(old, data) || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	temporary := path + ".tmp" // the kubelet prepares one claim at a time
	if err := os.WriteFile(temporary, data, 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
