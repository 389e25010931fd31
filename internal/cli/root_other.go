//go:build !linux

package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// needsLinux returns commands that say that they do not exist on this system.
func needsLinux(parent string, names ...string) []*cobra.Command {
	var out []*cobra.Command
	for _, name := range names {
		path := parent + " " + name
		out = append(out, &cobra.Command{
			Use: name, Short: "Not in this build: it needs Linux", DisableFlagParsing: true, Hidden: true,
			Long:    fmt.Sprintf("%q is only in the builds of dxpu for Linux.", path),
			Example: "  " + path,
			RunE: func(*cobra.Command, []string) error {
				return withHint(fmt.Errorf("%q is not in the build of dxpu for %s", path, runtime.GOOS),
					"run it on a machine with Linux; here dxpu has the commands that call a manager")
			},
		})
	}
	return out
}

func daemonCommands(*connection) []*cobra.Command {
	return needsLinux("dxpu", "manager", "host", "box")
}

func localCommands(*connection) []*cobra.Command {
	return needsLinux("dxpu", "run", "demo", "dev", "bench", "sim")
}

func localGPUCommands() []*cobra.Command { return needsLinux("dxpu gpu", "list", "test") }

func localModelCommands() []*cobra.Command { return needsLinux("dxpu model", "run", "calls") }

func localShareCommands() []*cobra.Command {
	return needsLinux("dxpu share", "serve", "run", "create", "list", "resize", "hold", "resume", "end", "cdi", "partition")
}
