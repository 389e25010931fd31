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
		newGPUListCommand(), newGPUTestCommand(), newGPUReplaceCommand(conn))
}

func newGPUReplaceCommand(conn *connection) *cobra.Command {
	var asJSON bool
	req := &dxpuv1.ReplaceGPURequest{}
	cmd := &cobra.Command{
		Use:   "replace GPU",
		Short: "Give a lease another GPU in the place of this one",
		Long: `Give a lease another GPU in the place of this one, as the manager does by
itself when a GPU fails. The guest sees the old one unplugged and the new one
plugged into the same slot. What was in its memory is gone.`,
		Example: "  dxpu gpu replace b1/0 --cordon",
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
			if asJSON {
				return writeMessage(cmd.OutOrStdout(), res.Msg)
			}
			b := res.Msg.Binding
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s takes the place of %s in %s/%d\n", b.GpuId, args[0], b.HostId, b.HostSlot)
			return err
		},
	}
	conn.register(cmd)
	jsonFlag(cmd, &asJSON)
	cmd.Flags().BoolVar(&req.Cordon, "cordon", false, "take the GPU out of service, too")
	return cmd
}
