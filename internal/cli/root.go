package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// newRootCommand returns the command dxpu with all subcommands.
func newRootCommand(conn *connection) *cobra.Command {
	root := &cobra.Command{
		Use: "dxpu", Short: "Run and use a pool of GPUs that spans a datacenter", Args: cobra.NoArgs,
		Long: `dxpu separates GPUs from servers. Proxies carry PCI Express packets over the
network, so that a virtual machine sees a GPU in another machine as a local,
hot-plugged device. A manager owns the pool of GPUs.`,
		Example: `  dxpu dev &
  dxpu node wait host-1 box-1
  dxpu lease create --host host-1 --wait
  dxpu get gpus`,
		Version:       version(),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddGroup(
		&cobra.Group{ID: "daemons", Title: "Daemons:"},
		&cobra.Group{ID: "pool", Title: "Pool:"},
		&cobra.Group{ID: "tools", Title: "Tools:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("daemons", daemonCommands(conn)...)
	add("pool", newGetCommand(conn), newDescribeCommand(conn), newLeaseCommand(conn), newApplyCommand(conn), newCordonCommand(conn),
		newUncordonCommand(conn), newDrainCommand(conn), newDefragmentCommand(conn), newTaintCommand(conn), newMaintenanceCommand(conn), newGPUReplaceCommand(conn, "dxpu replace"), conn.register(eventsCommand(conn)),
		newTenantCommand(conn), newTokenCommand(conn), newAuthorityCommand(conn), newWhoAmICommand(conn), newLoginCommand(conn), newNodeCommand(conn), newContextCommand())
	add("tools", newGPUGroup(conn), newTLPCommand(), newModelCommand(), newShareCommand(), newTopCommand(conn), newCaptureCommand())
	add("tools", localCommands(conn)...)
	root.AddCommand(newVersionCommand(), newExitCodesTopic(), newDocsCommand())
	root.SetHelpCommand(newHelpCommand(root))
	root.InitDefaultCompletionCmd()
	if c, _, err := root.Find([]string{"completion"}); err == nil { // an unknown shell is an error and does not print the help
		c.Args, c.RunE = cobra.NoArgs, func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	}
	complete(root, conn)
	decimalFlags(root)
	return root
}

// newHelpCommand returns the command help, for which an unknown command is an error.
func newHelpCommand(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Print the help of a command",
		Long:    "Print the help of a command, as --help does.",
		Example: "  dxpu help lease create",
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err == nil && len(rest) > 0 {
				err = fmt.Errorf("unknown command %q for %q", rest[0], cmd.CommandPath())
			}
			if err != nil {
				return usage(argumentError(cmd, err))
			}
			cmd.InitDefaultHelpFlag()
			return cmd.Help()
		},
	}
}

// group returns a command that only has subcommands.
func group(use, short, long, example string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Example: example,
		Args: cobra.NoArgs, // an unknown subcommand is an error and does not print the help
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(subs...)
	return cmd
}

// releaseVersion is the version of a release, from its tag: the linker sets it
// (scripts/release.sh).
var releaseVersion string

// version returns the version of the release or of the module, or the commit for a build
// from a work tree.
func version() string {
	if releaseVersion != "" {
		return releaseVersion
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && len(s.Value) >= 12 {
			return "devel-" + s.Value[:12]
		}
	}
	return "devel"
}

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
		Use: "exit-codes", Short: "Explain the exit codes",
		Long: `The exit codes of dxpu are:

  0  success
  1  failure: no connection, or an error of a device or a file
  2  wrong usage: an unknown flag, a missing or an invalid argument
  3  refusal by the manager: not found, no capacity, wrong state, no permission
  4  the time of --wait is over; the manager continues
  130  the command was interrupted (SIGINT, SIGTERM); the manager continues`,
	}
}
