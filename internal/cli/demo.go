//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/device/opencl"
	"github.com/dxpu-project/dxpu/internal/demo"
	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

// makeDir makes the directory that --dir names, if it does not exist.
func makeDir(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return usage(fmt.Errorf("--dir: %w", err))
	}
	return nil
}

// locateOpenCL finds what the part about OpenCL needs, or says what is missing.
func locateOpenCL(ctx context.Context) demo.OpenCL {
	program, err := opencl.FindProgram()
	var found []opencl.Found
	if err == nil {
		if found, err = opencl.List(ctx, program); err == nil && len(found) == 0 {
			err = opencl.ErrNoDevice
		}
	}
	var driver, benchmark string
	if err == nil {
		driver, err = findDriver("")
	}
	if err == nil {
		benchmark, err = exec.LookPath("clpeak")
	}
	if err != nil {
		return demo.OpenCL{Reason: err.Error()}
	}
	return demo.OpenCL{Driver: driver, Program: benchmark, Device: found[0].Name}
}

func newDemoCommand() *cobra.Command {
	var embedded bool
	var out *output
	var dir string
	cmd := &cobra.Command{
		Use: "demo", Short: "Demonstrate the system on this machine", Args: cobra.NoArgs,
		Long: `Demonstrate the system on this machine: a manager, two GPU boxes with four software
GPUs each, and a host whose VM is an unmodified Linux guest in an unmodified QEMU. A
GPU is hot-plugged into the running guest, and a program there uses it and checks
every result. Then the GPU is killed, the spare takes its place, and the program runs
again. While it runs once more, the GPU moves to the other box, and the program goes on.
At last the GPU is detached. Two hosts share a GPU, and a program of another
project computes in the guest on an OpenCL device of this machine. The command prints a
timeline and leaves no process running.

QEMU (10.1 or newer) and the guest are in the cache directory, into which "make demo"
installs them. If they are not available, or with --embedded, a root complex in Go
replaces the VM. Without a VM, an OpenCL platform (PoCL), clpeak and the OpenCL driver
("make icd"), the part about OpenCL is left out.`,
		Example: `  make demo
  dxpu demo --embedded --json`,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			cfg := demo.Config{Out: cmd.OutOrStdout()}
			if out.structured() {
				cfg.Out = io.Discard
			}
			if cfg.Program, err = os.Executable(); err != nil {
				return err
			}
			switch install, err := qemu.Locate(); {
			case embedded:
				cfg.Reason = "--embedded is set"
			case errors.Is(err, qemu.ErrNotInstalled):
				cfg.Reason = err.Error()
			case err != nil:
				return err
			default:
				cfg.Install = &install
			}
			if cfg.Install != nil {
				cfg.OpenCL = locateOpenCL(cmd.Context())
			}
			if err := makeDir(dir); err != nil {
				return err
			}
			if cfg.Dir = dir; dir == "" {
				// A short name, because the path of a socket has at most 107 bytes.
				if cfg.Dir, err = os.MkdirTemp("", "dxpu-demo-"); err != nil {
					return err
				}
				defer func() {
					if err == nil {
						err = os.RemoveAll(cfg.Dir)
					}
				}()
			}
			report, err := demo.Run(cmd.Context(), cfg)
			if out.structured() {
				err = errors.Join(err, writeJSON(cmd.OutOrStdout(), report))
			}
			return err
		},
	}
	out = jsonFlag(cmd)
	cmd.Flags().BoolVar(&embedded, "embedded", false, "use the embedded host and no VM")
	cmd.Flags().StringVar(&dir, "dir", "", "directory for sockets and logs, which is kept (default: a temporary directory, kept after a failure)")
	return cmd
}
