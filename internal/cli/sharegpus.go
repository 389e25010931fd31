//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/nvidia"
)

// localGPUs are the GPUs of this machine, as the sharing agent reports them.
type localGPUs []agent.GPU

func (l localGPUs) names() []string {
	var out []string
	for i := range l {
		out = append(out, l[i].Name)
	}
	return out
}

func newShareGPUsCommand() *cobra.Command {
	var dir string
	cmd := valueCommand(&cobra.Command{
		Use: "gpus", Short: "List the shared GPUs of this machine", Args: cobra.NoArgs,
		Long: `List the shared GPUs of this machine: the memory and compute that no share has, and
whether they are in service. A GPU with an error in the kernel log (XID) is reset when its
programs have ended, or stays out of service for a while, and returns by itself.`,
		Example: `  dxpu share gpus
  dxpu share gpus -o json`,
	}, func(cmd *cobra.Command, _ []string) (localGPUs, error) {
		l, err := agent.NewClient(dir).GPUs(cmd.Context())
		return l, agentError(err)
	}, printLocalGPUs)
	agentDirVar(cmd.Flags(), &dir)
	return cmd
}

func printLocalGPUs(w io.Writer, l localGPUs) {
	t := newTable(w, "NAME", "MODEL", "MEMORY", "FREE", "COMPUTE FREE", "STATE", wideColumn("UUID"))
	for i := range l {
		g := &l[i]
		state := g.State
		if g.Reason != "" {
			state += ": " + g.Reason
		}
		if !g.Until.IsZero() {
			state += ", until " + g.Until.Format(time.RFC3339)
		}
		t.row(g.Name, g.Model, size(uint64(g.Memory)), size(uint64(max(g.Free, 0))), ppmWord(g.Compute), state, g.UUID)
	}
	t.flush()
}

func newShareRepairCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "repair GPU...", Short: "Return GPUs to service that you have repaired", Args: cobra.MinimumNArgs(1),
		Long: `Return GPUs to service that you have repaired, before their time out of service ends.
Only root may do that. "dxpu share gpus" lists the GPUs.`,
		Example: "  dxpu share repair 0000:3b:00.0",
		RunE: func(cmd *cobra.Command, args []string) error {
			var failed error
			for _, name := range args {
				failed = errors.Join(failed, agentError(agent.NewClient(dir).Repair(cmd.Context(), name)))
			}
			return failed
		},
	}
	agentDirVar(cmd.Flags(), &dir)
	return cmd
}

// openKernelLog opens the log from its end: errors of before have had their answer.
func openKernelLog(path string, log *slog.Logger) io.ReadCloser {
	if path == "none" {
		return nil
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err == nil {
		if _, err = f.Seek(0, io.SeekEnd); err == nil || errors.Is(err, unix.ESPIPE) { // a pipe has no end to go to
			return f
		}
		err = errors.Join(err, f.Close())
	}
	log.Warn("errors of GPUs are not seen: the kernel log cannot be read; run the agent as root, or give --kernel-log none", "error", err)
	return nil
}

// resetBy resets GPUs by nvidia-smi.
func resetBy(programs nvidia.Programs) func(context.Context, broker.GPU) error {
	return func(ctx context.Context, g broker.GPU) error {
		uuid := agent.UUIDText(g.UUID)
		if uuid == "" {
			return fmt.Errorf(`the UUID of GPU %s is not known: reset it, and run "dxpu share repair %s"`, g.Name, g.Name)
		}
		return programs.Reset(ctx, uuid)
	}
}
