package cli

import (
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// parseTarget reads the two words that name something: its kind and its ID.
func parseTarget(args []string) (*dxpuv1.Target, error) {
	switch args[0] {
	case "gpu":
		return &dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: args[1]}}, nil
	case "box":
		return &dxpuv1.Target{Target: &dxpuv1.Target_BoxId{BoxId: args[1]}}, nil
	case "host":
		return &dxpuv1.Target{Target: &dxpuv1.Target_HostId{HostId: args[1]}}, nil
	}
	return nil, &usageError{withHint(fmt.Errorf("%q is no kind of thing", args[0]), "gpu, box or host")}
}

// targetCommand makes a command that does something to a target.
func targetCommand(conn *connection, cmd *cobra.Command, done string,
	do func(*cobra.Command, dxpuv1connect.PoolServiceClient, *dxpuv1.Target) error,
) *cobra.Command {
	cmd.Args = cobra.ExactArgs(2)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		target, err := parseTarget(args)
		if err != nil {
			return err
		}
		api, err := conn.pool()
		if err != nil {
			return err
		}
		if err := do(cmd, api, target); err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is %s\n", strings.Join(args, " "), done)
		return err
	}
	return conn.register(cmd)
}

func newCordonCommand(conn *connection) *cobra.Command {
	var reason string
	cmd := targetCommand(conn, &cobra.Command{
		Use: "cordon KIND ID", Short: "Keep new bindings away from a gpu, box or host",
		Long:    "Keep new bindings away from a gpu, box or host. What is attached stays.",
		Example: `  dxpu cordon gpu b1/0 --reason "fan is loud"`,
	}, "cordoned", func(cmd *cobra.Command, api dxpuv1connect.PoolServiceClient, t *dxpuv1.Target) error {
		_, err := api.Cordon(cmd.Context(), connect.NewRequest(&dxpuv1.CordonRequest{Target: t, Reason: reason}))
		return err
	})
	cmd.Flags().StringVar(&reason, "reason", "", "for colleagues")
	return cmd
}

func newUncordonCommand(conn *connection) *cobra.Command {
	return targetCommand(conn, &cobra.Command{
		Use: "uncordon KIND ID", Short: "Let new bindings come again",
		Long:    "Undo cordon: the gpu, box or host takes new bindings again.",
		Example: "  dxpu uncordon box b1",
	}, "uncordoned", func(cmd *cobra.Command, api dxpuv1connect.PoolServiceClient, t *dxpuv1.Target) error {
		_, err := api.Uncordon(cmd.Context(), connect.NewRequest(&dxpuv1.UncordonRequest{Target: t}))
		return err
	})
}

func newDrainCommand(conn *connection) *cobra.Command {
	var reason string
	cmd := targetCommand(conn, &cobra.Command{
		Use: "drain KIND ID", Short: "Cordon, and move what is attached somewhere else",
		Long:    "Cordon a gpu, box or host, and move what is attached somewhere else. Managers of this version refuse it.",
		Example: "  dxpu drain box b1 --reason firmware",
	}, "draining", func(cmd *cobra.Command, api dxpuv1connect.PoolServiceClient, t *dxpuv1.Target) error {
		_, err := api.Drain(cmd.Context(), connect.NewRequest(&dxpuv1.DrainRequest{Target: t, Reason: reason}))
		return err
	})
	cmd.Flags().StringVar(&reason, "reason", "", "for colleagues")
	return cmd
}
