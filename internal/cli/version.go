package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func newVersionCommand() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Long:    "Print the version of dxpu, the Go version it was built with and the platform.",
		Example: "  dxpu version --json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			platform := runtime.GOOS + "/" + runtime.GOARCH
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), map[string]string{
					"version": version(), "go": runtime.Version(), "platform": platform,
				})
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "dxpu %s %s %s\n", version(), runtime.Version(), platform)
			return err
		},
	}
	jsonFlag(cmd, &asJSON)
	return cmd
}

func newExitCodesTopic() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "What the exit codes mean",
		Long: `Exit codes of dxpu:

  0  done
  1  it failed: no connection, a device or a file did not do what it should
  2  wrong usage: an unknown flag, a missing or impossible argument
  3  the manager refused: not found, no capacity, not in this state, no permission`,
	}
}
