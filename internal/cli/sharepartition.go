//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/sharing/mig"
	"github.com/dxpu-project/dxpu/internal/sharing/nvidia"
)

// partitionReport is the answer of "dxpu share partition".
type partitionReport struct {
	GPU     *mig.GPU  `json:"gpu"`
	Plan    *mig.Plan `json:"plan,omitempty"` // null: nothing was asked for
	Applied bool      `json:"applied"`
}

func newSharePartitionCommand() *cobra.Command {
	p := &nvidia.Partition{}
	var yes, none bool
	cmd := valueCommand(&cobra.Command{
		Use: "partition [GPU]", Short: "Divide an NVIDIA GPU of this machine by MIG", Args: cobra.MaximumNArgs(1),
		Long: `Show the MIG instances of an NVIDIA GPU of this machine, and change them with
nvidia-smi. GPU is a UUID or a PCI address; it may be left out if there is one GPU.

--instances names the wanted profiles, all of them: instances that have one stay where
they are, missing ones are created, and the others are destroyed. As few instances as
possible move, each with the compute instances that it had. The command prints the plan; --yes carries it out, as root.

An instance that a process uses is never touched: a plan that needs that is refused,
and processes are looked for again before each step. While another process changes the GPU,
--yes is refused (a lock in --dir). If a step fails, the former mode and instances come
back. Created instances have new UUIDs. Some GPUs change their MIG mode only with a reset,
which this command does not do: it says how.`,
		Example: `  dxpu share partition
  dxpu share partition --instances 3g.20gb,2g.10gb,1g.5gb
  dxpu share partition GPU-e86cb44c --instances 1g.5gb --yes -o json
  dxpu share partition --off --yes`,
	}, func(cmd *cobra.Command, args []string) (partitionReport, error) {
		report := progress(cmd.ErrOrStderr())
		p.Progress = func(s mig.Step, err error) {
			if err == nil {
				report("done: %s", s)
			}
		}
		change := len(p.Want) > 0 || p.Off || none
		if yes && !change {
			return partitionReport{}, usagef("--yes: nothing to do; name the instances with --instances, or give --none or --off")
		}
		return partition(cmd.Context(), p, args, change, yes)
	}, printPartition)
	f := cmd.Flags()
	f.StringSliceVar(&p.Want, "instances", nil, "profiles of the wanted instances, separated by commas")
	f.BoolVar(&none, "none", false, "destroy all instances, but stay in MIG mode")
	f.BoolVar(&p.Off, "off", false, "destroy all instances and end MIG mode")
	f.BoolVarP(&yes, "yes", "y", false, "carry out the plan")
	f.StringVar(&p.Programs.SMI, "nvidia-smi", "", "`path` of nvidia-smi, by default the one in $PATH")
	agentDirVar(f, &p.Dir)
	cmd.MarkFlagsMutuallyExclusive("instances", "none", "off")
	return cmd
}

func partition(ctx context.Context, p *nvidia.Partition, args []string, change, apply bool) (partitionReport, error) {
	devices, err := p.Programs.Devices(ctx)
	if err != nil {
		return partitionReport{}, err
	}
	if p.UUID, err = findNVIDIA(devices, args); err != nil {
		return partitionReport{}, err
	}
	if !change {
		g, err := p.Programs.MIG(ctx, p.UUID)
		return partitionReport{GPU: g}, err
	}
	g, plan, err := p.Plan(ctx)
	r := partitionReport{GPU: g, Plan: &plan}
	if err == nil && apply {
		r.GPU, err = p.Apply(ctx)
		r.Applied = true
	}
	if errors.As(err, new(*mig.BusyError)) {
		err = withHint(err, "\"dxpu share partition\" shows the processes of each instance")
	}
	return r, err
}

// findNVIDIA returns the UUID of the GPU that the user means.
func findNVIDIA(devices []nvidia.Device, args []string) (string, error) {
	var known []string
	for _, d := range devices {
		known = append(known, d.UUID)
		if len(args) == 1 && (strings.EqualFold(d.UUID, args[0]) || samePCI(d.PCI, args[0])) {
			return d.UUID, nil
		}
	}
	switch {
	case len(devices) == 0:
		return "", errors.New("nvidia-smi lists no GPU")
	case len(args) == 1:
		return "", usage(withHint(fmt.Errorf("no GPU %q", args[0]), "nvidia-smi lists %s", strings.Join(known, ", ")))
	case len(devices) > 1:
		return "", usage(withHint(errors.New("there are several GPUs: name one"), "nvidia-smi lists %s", strings.Join(known, ", ")))
	}
	return devices[0].UUID, nil
}

// samePCI compares a PCI address of nvidia-smi, with eight digits of domain, with one of
// Linux, with four.
func samePCI(smi, name string) bool {
	return strings.EqualFold(smi, name) || strings.EqualFold(strings.TrimPrefix(smi, "0000"), name)
}

func printPartition(w io.Writer, r partitionReport) {
	g := r.GPU
	mode := map[bool]string{true: "on", false: "off"}
	fmt.Fprintf(w, "%s (%s) at %s: MIG mode %s", g.UUID, g.Name, g.PCI, mode[g.Enabled])
	if g.Pending != g.Enabled {
		fmt.Fprintf(w, ", %s after the next reset", mode[g.Pending])
	}
	fmt.Fprintln(w)
	if len(g.Instances) > 0 {
		t := newTable(w, "INSTANCE", "PROFILE", "SLICES", "PROCESSES", "DEVICE")
		for _, i := range g.Instances {
			var devices []string
			for _, c := range i.Compute {
				devices = append(devices, c.UUID)
			}
			t.row(fmt.Sprint(i.ID), i.Profile, fmt.Sprintf("%d-%d", i.Start, i.Start+i.Size-1), fmt.Sprint(len(i.Busy)), strings.Join(devices, ","))
		}
		t.flush()
	}
	if len(g.Busy) > 0 {
		fmt.Fprintf(w, "%d processes use the GPU outside of these instances\n", len(g.Busy))
	}
	switch {
	case r.Plan == nil && len(g.Profiles) > 0:
		t := newTable(w, "PROFILE", "MOST", "MEMORY", "MULTIPROCESSORS")
		for _, p := range g.Profiles {
			t.row(p.Name, fmt.Sprint(p.Most), fmt.Sprintf("%.2f GiB", p.GiB), fmt.Sprint(p.SMs))
		}
		t.flush()
	case r.Plan == nil:
	case r.Applied:
		fmt.Fprintln(w, "done")
	case len(r.Plan.Steps) == 0:
		fmt.Fprintln(w, "nothing to do")
	default:
		fmt.Fprintln(w, "Plan:")
		for _, s := range r.Plan.Steps {
			fmt.Fprintf(w, "  %s\n", s)
		}
		if r.Plan.Again {
			fmt.Fprintln(w, "  plan and create the instances, by the profiles that the GPU lists then")
		}
		fmt.Fprintln(w, "--yes carries it out")
	}
}
