package plugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/cdi"
	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/devicedata"
)

// Shares is the access to the GPUs of the node's own machine: "dxpu share serve --manager" makes
// a share for each lease, and the driver library holds the programs of the container to it. The
// edits are those of "dxpu share cdi".
type Shares struct {
	// Dir is the folder of the agent, Library that of the driver library.
	Dir, Library string
}

// NVIDIAKind is the kind of the devices of NVIDIA's own specification, which has the GPU and its
// driver. Their names are UUIDs, which are the serials of such GPUs in the pool.
const NVIDIAKind = "nvidia.com/gpu"

// The places of a share in a container. The driver library looks for its socket there.
const (
	containerShare   = "/run/dxpu-share"
	containerLibrary = "/usr/lib/dxpu-share"
	preload          = "ld.so.preload"
)

// Open implements Access.
func (s *Shares) Open(_ context.Context, _ int, devices []devicedata.Data, free func(string) error) (cdi.Edits, []Attributes, error) {
	var e cdi.Edits
	d := devices[0]
	for _, other := range devices { // they come from the status of the claim
		if other.Serial == "" {
			return e, nil, fmt.Errorf("GPU %s has no UUID in the pool, by which NVIDIA's CDI specification names it: NVIDIA's driver must be loaded when dxpu share serve starts", other.GPU)
		}
		if other.Lease != d.Lease || !other.Local {
			return e, nil, fmt.Errorf("GPU %s is that of lease %s, and GPU %s that of lease %s: a container has GPUs of its own machine by one lease", d.GPU, d.Lease, other.GPU, other.Lease)
		}
	}
	if d.Lease == "." || d.Lease == ".." || d.Lease != filepath.Base(d.Lease) {
		return e, nil, fmt.Errorf("GPU %s: %q is not the name of a lease", d.GPU, d.Lease)
	}
	share := filepath.Join(s.Dir, d.Lease, "client")
	if info, err := os.Stat(filepath.Join(share, "agent.sock")); err != nil {
		return e, nil, fmt.Errorf("GPU %s: the share of lease %s: %w; does dxpu share serve run on this node with --dir %s?", d.GPU, d.Lease, err, s.Dir)
	} else if info.Mode().Type() != os.ModeSocket {
		return e, nil, fmt.Errorf("GPU %s: the share of lease %s has no socket", d.GPU, d.Lease)
	}
	if err := free(share); err != nil {
		return e, nil, fmt.Errorf("GPU %s: %w", d.GPU, err)
	}
	options := []string{"ro", "rbind", "nosuid", "nodev"}
	e.Mounts = []cdi.Mount{
		{HostPath: share, ContainerPath: containerShare, Options: append(options, "noexec")},
		{HostPath: s.Library, ContainerPath: containerLibrary, Options: options},
		// Each program loads the library, also from a shell with another environment.
		{HostPath: filepath.Join(s.Library, preload), ContainerPath: "/etc/" + preload, Options: append(options, "noexec")},
	}
	e.Env = []string{"DXPU_SHARE=" + containerShare + "/agent.sock", "LD_LIBRARY_PATH=" + containerLibrary}
	return e, make([]Attributes, len(devices)), nil
}

// CheckLibrary returns why a folder does not have the driver library for containers.
func CheckLibrary(dir string) error {
	for _, name := range []string{"libcuda.so.1", preload} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
