package cli

import "github.com/spf13/cobra"

// daemonCommands are the commands of the machines of a pool.
func daemonCommands(conn *connection) []*cobra.Command {
	return []*cobra.Command{newManagerCommand(), newHostCommand(conn), newBoxCommand(conn)}
}

// localCommands are the tools that run proxies and devices on this machine.
func localCommands(conn *connection) []*cobra.Command {
	return []*cobra.Command{newRunCommand(conn), newDemoCommand(), newDevCommand(), newBenchCommand(), newSimCommand()}
}

// localGPUCommands are the commands for GPUs on the PCI bus of this machine.
func localGPUCommands() []*cobra.Command {
	return []*cobra.Command{newGPUListCommand(), newGPUTestCommand()}
}

// localModelCommands are the commands of "dxpu model" for a GPU program on this machine.
func localModelCommands() []*cobra.Command {
	return []*cobra.Command{newModelRunCommand(), newModelCallsCommand()}
}
