package cli

import (
	"fmt"
	"io"
	"runtime"

	"github.com/spf13/cobra"
)

func newVersionCommand() *cobra.Command {
	return valueCommand(&cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Long:    "Print the version of dxpu, the Go version that built it, and the platform.",
		Example: "  dxpu version --json",
	}, func(*cobra.Command, []string) (map[string]string, error) {
		return map[string]string{"version": version(), "go": runtime.Version(), "platform": runtime.GOOS + "/" + runtime.GOARCH}, nil
	}, func(w io.Writer, v map[string]string) {
		fmt.Fprintf(w, "dxpu %s %s %s\n", v["version"], v["go"], v["platform"])
	})
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
