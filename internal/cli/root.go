package cli

import (
	"runtime/debug"

	"github.com/spf13/cobra"
)

// newRootCommand assembles the commands.
func newRootCommand() *cobra.Command {
	conn := &connection{}
	root := &cobra.Command{
		Use:   "dxpu",
		Short: "A pool of GPUs for the whole datacenter",
		Long: `dxpu decouples servers and GPUs: proxies carry PCI Express packets over the
network, so that a virtual machine sees a GPU of another machine as a local
device that was hot-plugged. A manager owns the pool.`,
		Example: `  dxpu manager &
  dxpu lease create --count 2 --host h1 --wait
  dxpu get gpus`,
		Version:       version(),
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddGroup(
		&cobra.Group{ID: "daemons", Title: "Daemons:"},
		&cobra.Group{ID: "pool", Title: "The pool:"},
		&cobra.Group{ID: "tools", Title: "Tools:"},
	)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("daemons", newManagerCommand(), newHostCommand(conn), newBoxCommand(conn))
	add("pool", newGetCommand(conn), newDescribeCommand(conn), newLeaseCommand(conn), newCordonCommand(conn),
		newUncordonCommand(conn), newDrainCommand(conn), newGPUReplaceCommand(conn, "dxpu replace"), newEventsCommand(conn),
		newTenantCommand(conn), newTokenCommand(conn), newWhoAmICommand(conn), newNodeCommand(conn), newContextCommand())
	add("tools", newGPUGroup(conn), newTLPCommand(), newModelCommand(), newDemoCommand(), newBenchCommand(), newSimCommand(),
		newTopCommand(conn), newCaptureCommand())
	root.AddCommand(newVersionCommand(), newExitCodesTopic())
	complete(root, conn)
	return root
}

// group makes a command that only has subcommands.
func group(use, short, long, example string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Example: example,
		Args: cobra.NoArgs, // a word that is no subcommand is an error, not help
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(subs...)
	return cmd
}

// version is the module's version, or the commit for a build from a work tree.
func version() string {
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
