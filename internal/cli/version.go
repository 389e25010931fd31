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
		Long:    "Print the version of dxpu, the Go version that built it, and the platform.",
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
		Short: "Explain the exit codes",
		Long: `The exit codes of dxpu are:

  0  success
  1  failure: no connection, or an error of a device or a file
  2  wrong usage: an unknown flag, a missing or an invalid argument
  3  refusal by the manager: not found, no capacity, wrong state, no permission`,
	}
}
