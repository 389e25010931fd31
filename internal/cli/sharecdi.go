//go:build linux

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/hook"
	"github.com/dxpu-project/dxpu/internal/sharing/agent"
)

// The names in a specification of the Container Device Interface, and the places of a share in a container.
const (
	cdiVersion   = "0.5.0" // of the specification, for mounts and environment
	cdiKind      = "dxpu.dev/share"
	cdiFile      = "dxpu-share.json"
	insideSocket = "/run/dxpu-share"
	insideHook   = "/usr/lib/dxpu-share"
	// preload names the library for the loader of each program of a container, whatever its
	// environment; it lies beside the library.
	preload = "ld.so.preload"
)

// cdiSpec is a specification of the Container Device Interface.
type cdiSpec struct {
	Version string      `json:"cdiVersion"`
	Kind    string      `json:"kind"`
	Devices []cdiDevice `json:"devices"`
}

type cdiDevice struct {
	Name  string   `json:"name"`
	Edits cdiEdits `json:"containerEdits"`
}

type cdiEdits struct {
	Env    []string   `json:"env"`
	Mounts []cdiMount `json:"mounts"`
}

type cdiMount struct {
	HostPath      string   `json:"hostPath"`
	ContainerPath string   `json:"containerPath"`
	Options       []string `json:"options"`
}

func newShareCDICommand() *cobra.Command {
	var dir, hookDir, folder string
	cmd := &cobra.Command{
		Use: "cdi", Short: "Write the shares as devices of containers (CDI)", Args: cobra.NoArgs,
		Long: `Write a specification of the Container Device Interface with the shares of this machine,
so that podman and Docker give them to containers: ` + cdiKind + `=NAME. Each device
mounts the share's socket, dxpu's driver library, and /etc/ld.so.preload with its name: each
program in the container loads it, also from a shell with another environment. The GPU
itself and NVIDIA's driver come from NVIDIA's own specification ("nvidia-ctk cdi generate").

Run the command again after "dxpu share create" and "dxpu share end". --cdi-dir - prints
the specification.`,
		Example: `  dxpu share create --name web --gpu-memory 8GiB --compute 60%
  dxpu share cdi
  podman run --device nvidia.com/gpu=0 --device dxpu.dev/share=web IMAGE python serve.py`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			library, err := containerLibrary(hookDir)
			if err != nil {
				return err
			}
			shares, err := agent.NewClient(dir).Shares(cmd.Context())
			if err != nil {
				return agentError(err)
			}
			text, err := json.MarshalIndent(cdiOf(shares, library), "", "  ")
			if err != nil {
				return err
			}
			text = append(text, '\n')
			if folder == "-" {
				_, err = cmd.OutOrStdout().Write(text)
				return err
			}
			return writeCDI(folder, text)
		},
	}
	f := cmd.Flags()
	agentDirVar(f, &dir)
	f.StringVar(&hookDir, "hook-dir", "", "folder of dxpu's libcuda.so.1 (default: hook/ beside this program)")
	f.StringVar(&folder, "cdi-dir", "/etc/cdi", "`folder` of the specifications")
	return cmd
}

// containerLibrary returns the folder of the driver library and of the file that makes each
// program of a container load it.
func containerLibrary(dir string) (string, error) {
	library, err := hook.Find(dir)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(library, preload)); err != nil {
		return "", withHint(err, `"make hook" writes it; without it a shell in the container passes by the limits`)
	}
	return library, nil
}

// cdiOf returns the specification of some shares. A container sees the socket of its own
// share only.
func cdiOf(shares []agent.Share, library string) cdiSpec {
	spec := cdiSpec{Version: cdiVersion, Kind: cdiKind, Devices: []cdiDevice{}}
	for i := range shares {
		s := &shares[i]
		spec.Devices = append(spec.Devices, cdiDevice{Name: s.ID, Edits: cdiEdits{
			Env: []string{"DXPU_SHARE=" + filepath.Join(insideSocket, filepath.Base(s.Socket)), "LD_LIBRARY_PATH=" + insideHook},
			Mounts: []cdiMount{
				{HostPath: filepath.Dir(s.Socket), ContainerPath: insideSocket, Options: []string{"ro", "rbind", "nosuid", "nodev", "noexec"}},
				{HostPath: library, ContainerPath: insideHook, Options: []string{"ro", "rbind", "nosuid", "nodev"}},
				{HostPath: filepath.Join(library, preload), ContainerPath: "/etc/" + preload, Options: []string{"ro", "rbind", "nosuid", "nodev", "noexec"}},
			},
		}})
	}
	return spec
}

// writeCDI replaces the specification. Runtimes read names that end in .json only.
func writeCDI(folder string, text []byte) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("--cdi-dir: %w", err)
	}
	f, err := os.CreateTemp(folder, ".dxpu-*.tmp")
	if err != nil {
		return fmt.Errorf("--cdi-dir: %w", err)
	}
	_, err = f.Write(text)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), filepath.Join(folder, cdiFile))
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
