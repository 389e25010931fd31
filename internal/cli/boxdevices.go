//go:build linux

package cli

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"

	"github.com/dxpu-project/dxpu/device/opencl"
	"github.com/dxpu-project/dxpu/device/vhostuser"
)

func newBoxDevicesCommand() *cobra.Command {
	return valueCommand(&cobra.Command{
		Use: "devices", Short: "List the OpenCL devices of this machine", Args: cobra.NoArgs,
		Long: `List the OpenCL devices of this machine, which a box offers with --opencl, or with
"opencl" in a slot of its file: device there is the index or the name.`,
		Example: `  dxpu box devices --json`,
	}, func(cmd *cobra.Command, _ []string) ([]opencl.Found, error) { return openclDevices(cmd.Context()) },
		func(w io.Writer, found []opencl.Found) {
			t := newTable(w, "INDEX", "NAME", "TYPE", "MEMORY", "PLATFORM", "VERSION", "AVAILABLE")
			for _, f := range found {
				t.row(strconv.Itoa(f.Index), f.Name, f.Type, size(f.Memory), f.Platform, f.Version, strconv.FormatBool(f.Available))
			}
			t.flush()
		})
}

func openclDevices(ctx context.Context) ([]opencl.Found, error) {
	program, err := opencl.FindProgram()
	if err != nil {
		return nil, err
	}
	return opencl.List(ctx, program)
}

// openclSlots returns a slot for each OpenCL device of this machine.
func openclSlots(ctx context.Context) ([]boxSlot, error) {
	found, err := openclDevices(ctx)
	if err != nil {
		return nil, fmt.Errorf("--opencl: %w", err)
	}
	var slots []boxSlot
	for _, f := range found {
		var spec yaml.Node
		if err := spec.Encode(opencl.Spec{Device: strconv.Itoa(f.Index)}); err != nil {
			return nil, err
		}
		slots = append(slots, boxSlot{Params: map[string]yaml.Node{"opencl": spec}})
	}
	if len(slots) == 0 {
		return nil, fmt.Errorf("--opencl: %w", opencl.ErrNoDevice)
	}
	return slots, nil
}

// virtioSlots returns a slot for each value of --virtio.
func virtioSlots(values []string) ([]boxSlot, error) {
	var slots []boxSlot
	for _, v := range values {
		kind, socket, ok := strings.Cut(v, "=")
		if !ok {
			return nil, usagef("--virtio %s: want TYPE=SOCKET, as blk=/run/disk.sock", v)
		}
		s := vhostuser.Spec{Type: kind, Socket: socket}
		if err := s.Check(); err != nil {
			return nil, usagef("--virtio %s: %v", v, err)
		}
		var spec yaml.Node
		if err := spec.Encode(s); err != nil {
			return nil, err
		}
		slots = append(slots, boxSlot{Params: map[string]yaml.Node{"virtio": spec}})
	}
	return slots, nil
}
