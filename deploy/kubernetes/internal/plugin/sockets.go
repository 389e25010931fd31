package plugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/cdi"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/devicedata"
)

// Sockets is the access on a node that is no VM: "dxpu host" offers each slot as a
// vfio-user socket, which the OpenCL driver of DxPU uses from within the container.
type Sockets struct {
	// Dir is the directory of the sockets: "dxpu host --socket-dir".
	Dir string
	// Driver is the OpenCL driver. Without it the container has one, or another client of
	// vfio-user.
	Driver Driver
}

// ContainerSockets is the directory of the sockets in the container.
const ContainerSockets = "/run/dxpu"

// SocketOf returns a second path of a socket in the container, which does not depend on the slot:
// that of a claim's device, by its number.
func SocketOf(dir string, device int) string {
	return filepath.Join(dir, "devices", fmt.Sprintf("%d.sock", device))
}

// Open implements Access.
func (s *Sockets) Open(_ context.Context, first int, devices []devicedata.Data, free func(string) error) (cdi.Edits, []Attributes, error) {
	var e cdi.Edits
	for i, d := range devices {
		name := fmt.Sprintf("slot%d.sock", d.Slot)
		socket := filepath.Join(s.Dir, name)
		if info, err := os.Stat(socket); err != nil {
			return e, nil, fmt.Errorf("GPU %s: the socket of slot %d: %w; does dxpu host run on this node with --socket-dir %s?", d.GPU, d.Slot, err, s.Dir)
		} else if info.Mode().Type() != os.ModeSocket {
			return e, nil, fmt.Errorf("GPU %s: %s is not a socket", d.GPU, socket)
		}
		if err := free(socket); err != nil {
			return e, nil, fmt.Errorf("GPU %s: %w", d.GPU, err)
		}
		// The socket alone: the directory has those of other pods.
		for _, in := range []string{filepath.Join(ContainerSockets, name), SocketOf(ContainerSockets, first+i)} {
			e.Mounts = append(e.Mounts, cdi.Mount{HostPath: socket, ContainerPath: in, Options: []string{"rw", "nosuid", "nodev", "bind"}})
		}
	}
	// The directory, not a list: a container may have the devices of several requests and
	// claims, and the runtime keeps the last of the variables with one name.
	e.Env = []string{"DXPU_SOCKETS=" + ContainerSockets}
	mounts, err := s.Driver.mounts()
	e.Mounts = append(e.Mounts, mounts...)
	return e, make([]Attributes, len(devices)), err
}
