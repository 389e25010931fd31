//go:build linux

package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
)

// Annotations of a container that describe its share.
const (
	ociMemory  = "dxpu.dev/gpu-memory"
	ociCompute = "dxpu.dev/compute"
	ociLimit   = "dxpu.dev/limit"
	ociClass   = "dxpu.dev/class"
	ociGPUs    = "dxpu.dev/gpu"
	ociCount   = "dxpu.dev/gpus"

	// maxConfig bounds the configuration of a container.
	maxConfig = 16 << 20
)

func newShareOCICommand() *cobra.Command {
	var dir, hookDir string
	cmd := &cobra.Command{
		Use: "oci", Short: "Give a container a share as it is created (OCI hook)", Args: cobra.NoArgs,
		Long: `Give a container a share of a GPU of this machine as it is created. The command reads the
configuration of an OCI runtime (config.json) from standard input, and writes it to standard
output. A container with the annotation dxpu.dev/gpu-memory gets a share, its socket and
dxpu's driver library. dxpu.dev/compute, /limit, /class, /gpu and /gpus are as the flags of
"dxpu share create". Other containers stay as they are.

podman runs it as a hook of the stage "precreate", and the example as a file in
/usr/share/containers/oci/hooks.d. With runc or crun, filter config.json by hand.

The share belongs to the process that runs this command until the container runs, and then to
the container's first process ("dxpu share adopt", a createRuntime hook): it ends with the
container, whatever way.`,
		Example: `  {"version": "1.0.0", "stages": ["precreate"],
   "hook": {"path": "/usr/bin/dxpu", "args": ["dxpu", "share", "oci"]},
   "when": {"annotations": {"^dxpu\\.dev/gpu-memory$": "."}}}

  podman run --annotation dxpu.dev/gpu-memory=8GiB --annotation dxpu.dev/compute=30% IMAGE
  dxpu share oci < bundle/config.json > new.json`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := io.ReadAll(io.LimitReader(cmd.InOrStdin(), maxConfig+1))
			switch {
			case err != nil:
				return err
			case len(text) > maxConfig:
				return fmt.Errorf("standard input: more than %d bytes", maxConfig)
			}
			config, part, err := ociPart(text)
			if err != nil || part == nil {
				return errors.Join(err, writeIf(cmd.OutOrStdout(), text, err == nil))
			}
			library, err := containerLibrary(hookDir)
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			part.Owned, part.Owner = true, os.Getppid()
			s, err := agent.NewClient(dir).Create(cmd.Context(), *part)
			if err != nil {
				return agentError(err)
			}
			device := cdiOf([]agent.Share{s}, library).Devices[0].Edits
			adopt := map[string]any{"path": self, "args": []string{"dxpu", "share", "adopt", s.ID, "--dir", dir}}
			if text, err = json.Marshal(ociWith(config, &device, adopt)); err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	f := cmd.Flags()
	agentDirVar(f, &dir)
	f.StringVar(&hookDir, "hook-dir", "", "folder of dxpu's libcuda.so.1 (default: hook/ beside this program)")
	return cmd
}

func writeIf(w io.Writer, text []byte, write bool) error {
	if !write {
		return nil
	}
	_, err := w.Write(text)
	return err
}

// ociFlags are the flags of "dxpu share create" that annotations stand for.
var ociFlags = map[string]string{
	ociMemory: "gpu-memory", ociCompute: "compute", ociLimit: "limit", ociClass: "class", ociGPUs: "gpu", ociCount: "gpus",
}

// ociPart returns the configuration of a container, and the share that its annotations ask
// for, nil for none.
func ociPart(text []byte) (map[string]any, *agent.Part, error) {
	var config map[string]any
	in := json.NewDecoder(bytes.NewReader(text))
	in.UseNumber() // limits have 64 bits
	if err := in.Decode(&config); err != nil {
		return nil, nil, fmt.Errorf("configuration of the container: %w", err)
	}
	annotations, _ := config["annotations"].(map[string]any)
	word := func(key string) string { s, _ := annotations[key].(string); return s }
	if word(ociMemory) == "" {
		return config, nil, nil
	}
	var o sharePart
	f := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.register(f)
	for key, flag := range ociFlags {
		if word(key) == "" {
			continue
		}
		if err := f.Set(flag, word(key)); err != nil {
			return nil, nil, fmt.Errorf("annotation %s: %w", key, err)
		}
	}
	part, err := o.whole()
	return config, &part, err
}

// ociWith adds a device and a createRuntime hook to the configuration of a container.
func ociWith(config map[string]any, d *cdiEdits, hook any) map[string]any {
	process, _ := config["process"].(map[string]any)
	if process == nil {
		process = map[string]any{}
		config["process"] = process
	}
	env, _ := process["env"].([]any)
	for _, e := range d.Env {
		name, value, _ := strings.Cut(e, "=")
		i := slices.IndexFunc(env, func(x any) bool { s, _ := x.(string); return strings.HasPrefix(s, name+"=") })
		if i < 0 {
			env = append(env, e)
			continue
		}
		if old, _ := env[i].(string); name == "LD_LIBRARY_PATH" { // the image's own folders stay, behind
			value += ":" + old[len(name)+1:]
		}
		env[i] = name + "=" + value
	}
	process["env"] = env
	mounts, _ := config["mounts"].([]any)
	for _, m := range d.Mounts {
		mounts = append(mounts, map[string]any{"destination": m.ContainerPath, "source": m.HostPath, "type": "bind", "options": m.Options})
	}
	config["mounts"] = mounts
	hooks, _ := config["hooks"].(map[string]any)
	if hooks == nil {
		hooks = map[string]any{}
		config["hooks"] = hooks
	}
	list, _ := hooks["createRuntime"].([]any)
	hooks["createRuntime"] = append(list, hook)
	return config
}

func newShareAdoptCommand() *cobra.Command {
	var dir string
	var pid int
	cmd := &cobra.Command{
		Use: "adopt NAME", Short: "Let a share end with another process", Args: cobra.ExactArgs(1),
		Long: `Let a share end with another process, and the programs in it. Without --pid the command
reads the state of a container from standard input, as OCI runtimes give it to a hook.`,
		Example: "  dxpu share adopt s-3 --pid 4711",
		RunE: func(cmd *cobra.Command, args []string) error {
			if pid == 0 {
				var state struct {
					PID int `json:"pid"`
				}
				if err := json.NewDecoder(io.LimitReader(cmd.InOrStdin(), maxConfig)).Decode(&state); err != nil {
					return fmt.Errorf("state of the container: %w", err)
				}
				pid = state.PID
			}
			return agentError(agent.NewClient(dir).Adopt(cmd.Context(), args[0], pid))
		},
	}
	agentDirVar(cmd.Flags(), &dir)
	cmd.Flags().IntVar(&pid, "pid", 0, "`process` that the share ends with")
	return cmd
}
