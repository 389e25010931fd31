package plugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/cdi"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/devicedata"
)

// Sockets is the access on a node that is no VM: "dxpu host" offers each slot as a
// vfio-user socket, which the OpenCL driver of DxPU uses from within the container.
type Sockets struct {
	// Dir is the directory of the sockets: "dxpu host --socket-dir".
	Dir string
	// Driver is the OpenCL driver on the node, "" for none: the container then has one, or
	// another client of vfio-user.
	Driver string
	// Vendors is a directory for the file that names the driver to the ICD loader.
	Vendors string
}

// Paths in the container.
const (
	containerSockets = "/run/dxpu"
	containerDriver  = "/usr/lib/dxpu/libdxpu-opencl.so"
	containerICD     = "/etc/OpenCL/vendors/dxpu.icd"
)

// Open implements Access.
func (s *Sockets) Open(_ context.Context, devices []devicedata.Data) (cdi.Edits, []Attributes, error) {
	var e cdi.Edits
	var paths []string
	for _, d := range devices {
		name := fmt.Sprintf("slot%d.sock", d.Slot)
		socket := filepath.Join(s.Dir, name)
		if info, err := os.Stat(socket); err != nil {
			return e, nil, fmt.Errorf("GPU %s: the socket of slot %d: %w; does dxpu host run on this node with --socket-dir %s?", d.GPU, d.Slot, err, s.Dir)
		} else if info.Mode().Type() != os.ModeSocket {
			return e, nil, fmt.Errorf("GPU %s: %s is not a socket", d.GPU, socket)
		}
		in := containerSockets + "/" + name
		paths = append(paths, in)
		// The socket alone: the directory has those of other pods.
		e.Mounts = append(e.Mounts, cdi.Mount{HostPath: socket, ContainerPath: in, Options: []string{"rw", "nosuid", "nodev", "bind"}})
	}
	e.Env = []string{"DXPU_SOCKETS=" + strings.Join(paths, ":")}
	if s.Driver != "" {
		icd := filepath.Join(s.Vendors, "dxpu.icd")
		if err := os.WriteFile(icd, []byte(containerDriver+"\n"), 0o644); err != nil {
			return e, nil, fmt.Errorf("the file for the ICD loader: %w", err)
		}
		readOnly := []string{"ro", "nosuid", "nodev", "bind"}
		e.Mounts = append(e.Mounts,
			cdi.Mount{HostPath: s.Driver, ContainerPath: containerDriver, Options: readOnly},
			cdi.Mount{HostPath: icd, ContainerPath: containerICD, Options: readOnly})
	}
	return e, make([]Attributes, len(devices)), nil
}
