package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// newGPUGroup returns the commands for GPUs: those of the pool, and those on the
// PCI bus of this machine.
func newGPUGroup(conn *connection) *cobra.Command {
	return group("gpu", "Work with GPUs of the pool or of this machine",
		"Work with a GPU of the pool, or with one on the PCI bus of this machine.",
		`  dxpu gpu list
  dxpu gpu replace b1/0`,
		append(localGPUCommands(), newGPUReplaceCommand(conn, "dxpu gpu replace"), newGPUReplugCommand(conn), newGPUClearCommand(conn))...)
}

// newGPUReplaceCommand is both "dxpu replace" and "dxpu gpu replace".
func newGPUReplaceCommand(conn *connection, path string) *cobra.Command {
	req := &dxpuv1.ReplaceGPURequest{}
	cmd := getCommand(conn, &cobra.Command{
		Use: "replace GPU", Short: "Replace a leased GPU by another one",
		Long: `Replace a leased GPU by another one, as the manager does when a GPU fails. The
guest sees the old GPU unplugged and the new one plugged into the same slot. The
contents of the old GPU's memory are lost.`,
		Example: "  " + path + " b1/0 --cordon",
	}, poolAPI.ReplaceGPU, func(args []string) *dxpuv1.ReplaceGPURequest {
		req.GpuId = args[0]
		return req
	}, itself, func(w io.Writer, r *dxpuv1.ReplaceGPUResponse) {
		fmt.Fprintf(w, "%s takes the place of %s in %s/%d\n", r.Binding.GpuId, req.GpuId, r.Binding.HostId, r.Binding.HostSlot)
	})
	cmd.Flags().BoolVar(&req.Cordon, "cordon", false, "keep new bindings away from the old GPU")
	return conn.register(cmd)
}

func newGPUReplugCommand(conn *connection) *cobra.Command {
	return conn.register(getCommand(conn, &cobra.Command{
		Use: "replug GPU", Short: "Plug a GPU in again that the guest has removed",
		Long: `Plug a GPU into its guest again after the guest has removed it ("safely remove
hardware"). A lease keeps a GPU that the guest has removed until the lease ends.`,
		Example: "  dxpu gpu replug b1/0",
	}, poolAPI.ReplugGPU, func(args []string) *dxpuv1.ReplugGPURequest { return &dxpuv1.ReplugGPURequest{GpuId: args[0]} },
		(*dxpuv1.ReplugGPUResponse).GetBinding, func(w io.Writer, b *dxpuv1.Binding) {
			fmt.Fprintf(w, "%s is being plugged into %s/%d again\n", b.GpuId, b.HostId, b.HostSlot)
		}))
}

func newGPUClearCommand(conn *connection) *cobra.Command {
	return conn.register(getCommand(conn, &cobra.Command{
		Use: "clear-errors GPU", Short: "Clear the errors of a GPU and return it to service",
		Long: `Clear the errors of a GPU and return it to service at once, whatever the errors
called for. The box's own report still applies: a GPU that has failed stays failed.`,
		Example: "  dxpu gpu clear-errors b1/0",
	}, poolAPI.ClearGPUErrors, func(args []string) *dxpuv1.ClearGPUErrorsRequest {
		return &dxpuv1.ClearGPUErrorsRequest{GpuId: args[0]}
	},
		(*dxpuv1.ClearGPUErrorsResponse).GetGpu, func(w io.Writer, g *dxpuv1.GPU) {
			fmt.Fprintf(w, "the errors of %s are cleared; it is %s\n", g.Id, gpuHealth(g))
		}))
}
