package cli

import (
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func newLeaseResizeCommand(conn *connection) *cobra.Command {
	var form output
	var wait bool
	var timeout time.Duration
	req := &dxpuv1.ResizeLeaseRequest{}
	cmd := &cobra.Command{
		Use:   "resize LEASE",
		Short: "Give a lease more GPUs, or take some back",
		Long: `Give an active lease more GPUs, or take some back, while it works.

More GPUs come under the constraints that the lease has, to the host that it is on.
Of those that are taken back the guest is asked to let go; the ones that go are
those after which the rest sits together best.`,
		Example: `  dxpu lease resize l-17 --count 4 --wait`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			req.LeaseId = args[0]
			res, err := api.ResizeLease(cmd.Context(), connect.NewRequest(req))
			if err != nil {
				return err
			}
			l := res.Msg.Lease
			if wait {
				if l, err = waitForLeaseUntil(cmd.Context(), api, l.Id, timeout, resized); err != nil {
					return err
				}
			}
			if form.given() {
				return form.write(cmd.OutOrStdout(), l)
			}
			return printLeaseLine(cmd, l)
		},
	}
	form.register(cmd)
	f := cmd.Flags()
	f.Uint32Var(&req.Count, "count", 0, "number of GPUs that the lease shall have")
	f.BoolVar(&wait, "wait", false, "return when every GPU is attached, and every one that goes has gone")
	f.DurationVar(&timeout, "timeout", time.Minute, "longest --wait")
	_ = cmd.MarkFlagRequired("count")
	return cmd
}

// resized reports whether a lease has all that it shall have, and nothing is on
// its way out.
func resized(l *dxpuv1.Lease) bool {
	up := uint32(0)
	for _, b := range l.Bindings {
		switch b.State {
		case dxpuv1.BindingState_BINDING_STATE_ATTACHED:
			up++
		case dxpuv1.BindingState_BINDING_STATE_RELEASED:
		default:
			return false
		}
	}
	return up == l.Spec.Count
}
