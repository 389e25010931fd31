package cli

import (
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// newGPUGroup gathers what is done with a GPU: in the pool, and as a device.
func newGPUGroup(conn *connection) *cobra.Command {
	return group("gpu", "Work with a GPU",
		"Work with a GPU: of the pool, or one that this machine sees on its PCI bus.",
		`  dxpu gpu list
  dxpu gpu replace b1/0`,
		newGPUListCommand(), newGPUTestCommand(), newGPUReplaceCommand(conn, "dxpu gpu replace"),
		newGPUReplugCommand(conn), newGPUClearCommand(conn))
}

// newGPUReplaceCommand is both "dxpu replace" and "dxpu gpu replace".
func newGPUReplaceCommand(conn *connection, called string) *cobra.Command {
	var form output
	req := &dxpuv1.ReplaceGPURequest{}
	cmd := &cobra.Command{
		Use:   "replace GPU",
		Short: "Give a lease another GPU in the place of this one",
		Long: `Give a lease another GPU in the place of this one, as the manager does by
itself when a GPU fails. The guest sees the old one unplugged and the new one
plugged into the same slot. What was in its memory is gone.`,
		Example: "  " + called + " b1/0 --cordon",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			req.GpuId = args[0]
			res, err := api.ReplaceGPU(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			if form.given() {
				return form.write(cmd.OutOrStdout(), res.Msg)
			}
			b := res.Msg.Binding
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s takes the place of %s in %s/%d\n", b.GpuId, args[0], b.HostId, b.HostSlot)
			return err
		},
	}
	conn.register(cmd)
	form.register(cmd)
	cmd.Flags().BoolVar(&req.Cordon, "cordon", false, "take the GPU out of service, too")
	return cmd
}

func newGPUReplugCommand(conn *connection) *cobra.Command {
	var form output
	cmd := &cobra.Command{
		Use: "replug GPU", Short: "Show a guest a GPU again that it has removed",
		Long: `Show a guest a GPU again that it has removed itself ("safely remove hardware").
Until then, or until the lease ends, the lease keeps the GPU.`,
		Example: "  dxpu gpu replug b1/0",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			res, err := api.ReplugGPU(cmd.Context(), connect.NewRequest(&dxpuv1.ReplugGPURequest{GpuId: args[0]}))
			if err != nil {
				return err
			}
			b := res.Msg.Binding
			if form.given() {
				return form.write(cmd.OutOrStdout(), b)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is being plugged into %s/%d again\n", b.GpuId, b.HostId, b.HostSlot)
			return err
		},
	}
	form.register(cmd)
	return conn.register(cmd)
}

func newGPUClearCommand(conn *connection) *cobra.Command {
	var form output
	cmd := &cobra.Command{
		Use: "clear-errors GPU", Short: "Forget a GPU's errors and take it into service",
		Long: `Forget a GPU's errors and take it into service at once, whatever they called for.
What its box says of it goes on to count: a GPU that has failed stays failed.`,
		Example: "  dxpu gpu clear-errors b1/0",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			res, err := api.ClearGPUErrors(cmd.Context(), connect.NewRequest(&dxpuv1.ClearGPUErrorsRequest{GpuId: args[0]}))
			if err != nil {
				return err
			}
			if form.given() {
				return form.write(cmd.OutOrStdout(), res.Msg.Gpu)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "the errors of %s are forgotten; it is %s\n", args[0], gpuHealth(res.Msg.Gpu))
			return err
		},
	}
	form.register(cmd)
	return conn.register(cmd)
}
