//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dxpu-project/dxpu/hook"
	"github.com/dxpu-project/dxpu/internal/sharing/agent"
)

// sharePart are the flags that describe a share of a GPU of this machine.
type sharePart struct {
	dir            string
	memory         []uint64 // of each GPU, or one for all; the same for the two below
	compute, limit []uint32 // thousandths
	class          string
	gpus           []string
	count          int
	name           string
}

// localShareCommands are the commands of "dxpu share" for the GPUs of this machine.
func localShareCommands() []*cobra.Command {
	return []*cobra.Command{
		newShareServeCommand(), newShareRunCommand(), newShareCreateCommand(), newShareListCommand(), newShareResizeCommand(),
		newShareHoldCommand(true), newShareHoldCommand(false), newShareEndCommand(), newShareCDICommand(),
		newShareGPUsCommand(), newShareRepairCommand(), newShareOCICommand(), newShareAdoptCommand(), newSharePartitionCommand(),
	}
}

func agentDirVar(f *pflag.FlagSet, dir *string) {
	f.StringVar(dir, "dir", shareDir(), "`folder` of the agent (default $DXPU_SHARE_DIR)")
}

func (o *sharePart) register(f *pflag.FlagSet) {
	agentDirVar(f, &o.dir)
	o.registerSize(f)
	f.StringVar(&o.class, "class", "online", "class of the work: online (bounded latency) or offline")
	f.StringSliceVar(&o.gpus, "gpu", nil, "`names` of the GPUs, separated by commas (default: those with the most room)")
	f.IntVar(&o.count, "gpus", 0, "`number` of GPUs (default 1, or those that --gpu names)")
	f.StringVar(&o.name, "name", "", "name of the share (default: the agent chooses it)")
}

func (o *sharePart) registerSize(f *pflag.FlagSet) {
	f.Var(listFlag("sizes", &o.memory, memoryVar), "gpu-memory", "memory on each GPU, such as 8GiB, or 8GiB,16GiB for two GPUs")
	f.Var(listFlag("shares", &o.compute, computeVar), "compute", "share of each GPU's compute, such as 30%, or 30%,60% for two GPUs (default: what others leave)")
	f.Var(listFlag("shares", &o.limit, computeVar), "limit", "highest share of the compute, as --compute (default: --compute)")
}

// part returns what the agent is asked for.
func (o *sharePart) part() (agent.Part, error) {
	p := agent.Part{GPUs: o.gpus, Count: o.count, ID: o.name, Offline: o.class == "offline"}
	if o.class != "" && o.class != "online" && o.class != "offline" {
		return p, usagef("--class %q: want online or offline", o.class)
	}
	sizes, err := o.sizes()
	if err != nil {
		return p, err
	}
	if len(sizes) == 1 { // which agents before those with several sizes know, too
		p.Memory, p.Compute, p.Limit = sizes[0].Memory, sizes[0].Compute, sizes[0].Limit
	} else {
		p.Sizes = sizes
	}
	return p, nil
}

// warn tells a user who gives a size of compute that nothing holds the share to it.
func (o *sharePart) warn(w io.Writer, s *agent.Share) {
	if !s.Unlimited || len(o.compute)+len(o.limit) == 0 {
		return
	}
	remedy := "start the agent with --policy gemini for limits that hold"
	if s.Policy == "mps" {
		remedy = `with the policy mps only programs of "dxpu share run" have a limit that holds`
	}
	fmt.Fprintf(w, "warning: share %s: the agent's policy, %s, does not keep its limit of compute\nhint: %s\n", s.ID, s.Policy, remedy)
}

// whole is part for a new share, which needs memory.
func (o *sharePart) whole() (agent.Part, error) {
	if len(o.memory) == 0 {
		return agent.Part{}, usage(withHint(errors.New("--gpu-memory is missing"), "write it like --gpu-memory 8GiB"))
	}
	return o.part()
}

// agentError adds what to do when no agent answers, or when it does not know a name.
func agentError(err error) error {
	if errors.Is(err, agent.ErrNoAgent) {
		return withHint(err, `start it with "dxpu share serve"; --dir names its folder; only root and its --group may ask`)
	}
	switch {
	case err == nil:
	case strings.HasPrefix(err.Error(), "no share "):
		return withHint(err, `"dxpu share list" lists all`)
	case strings.HasPrefix(err.Error(), "no GPU "):
		return withHint(err, `"dxpu share gpus" lists all`)
	}
	return err
}

func newShareRunCommand() *cobra.Command {
	o := &sharePart{}
	var hookDir, lease string
	cmd := &cobra.Command{
		Use: "run [flags] -- PROGRAM [ARGUMENT...]", Short: "Run a program with a part of a GPU of this machine", Args: cobra.MinimumNArgs(1),
		Long: `Run a program with a part of one or several GPUs of this machine. The command asks the agent ("dxpu
share serve") for a share, and replaces itself by the program, with dxpu's driver library
in place of NVIDIA's. So signals and the exit code are the program's own.

The share ends when the program and all its children in the share have ended, whatever
way. Its memory and compute hold for all these processes together.

With --lease the program runs in the share of a lease, on a machine whose GPUs a pool has
("dxpu share serve --manager"). The command waits for a lease that does not have its GPUs
yet. The share stays until the lease ends. Its first user has it alone, beside root.

With --gpus, or several names in --gpu, the program has a part of each of these GPUs. One
size holds for each; a list has one for each GPU, in the order of --gpu.`,
		Example: `  dxpu share run --gpu-memory 8GiB --compute 30% --class offline -- python train.py
  dxpu share run --lease l-7 -- python train.py
  dxpu share run --gpu-memory 4GiB --gpu 0000:3b:00.0 -- ./server
  dxpu share run --gpus 2 --gpu-memory 16GiB --compute 50% -- torchrun train.py
  dxpu share run --gpu 0000:3b:00.0,0000:5e:00.0 --gpu-memory 8GiB,16GiB --compute 30%,60% -- ./server`,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := o.whole()
			if lease != "" {
				err = o.checkLease(cmd.Flags())
			}
			if err != nil {
				return err
			}
			// Before the share, which would be for nothing.
			program, err := exec.LookPath(args[0])
			if err != nil {
				return err
			}
			library, err := hook.Find(hookDir)
			if err != nil {
				return err
			}
			p.Owned = true
			s, err := o.enter(cmd.Context(), cmd.ErrOrStderr(), lease, p)
			if err != nil {
				return agentError(err)
			}
			if !s.MPS { // whose limits hold from its start
				o.warn(cmd.ErrOrStderr(), &s)
			}
			env, err := hook.Settings{}.Environ(os.Environ(), library)
			if err != nil {
				return err
			}
			if s.MPS {
				if env, err = joinMPS(cmd.Context(), o.dir, s.ID, env); err != nil {
					return agentError(err)
				}
			}
			// Inherited variables beside the library's: programs see the GPUs of the share only.
			env = append(env, "DXPU_SHARE="+s.Socket)
			if driver := os.Getenv("DXPU_REAL_LIBCUDA"); driver != "" {
				env = append(env, "DXPU_REAL_LIBCUDA="+driver)
			}
			if len(s.UUIDs) == len(s.GPUs) {
				env = append(env, "CUDA_VISIBLE_DEVICES="+strings.Join(s.UUIDs, ","))
			}
			return fmt.Errorf("%s: %w", program, syscall.Exec(program, args, env))
		},
	}
	f := cmd.Flags()
	f.SetInterspersed(false)
	o.register(f)
	f.StringVar(&hookDir, "hook-dir", "", "folder of dxpu's libcuda.so.1 (default: hook/ beside this program)")
	f.StringVar(&lease, "lease", "", "`lease` of the pool to run in, instead of a new share")
	return cmd
}

// checkLease refuses flags that the lease answers.
func (o *sharePart) checkLease(f *pflag.FlagSet) error {
	for _, name := range []string{"gpu-memory", "compute", "limit", "class", "gpu", "gpus", "name"} {
		if f.Changed(name) {
			return usage(withHint(fmt.Errorf("--%s and --lease exclude each other: the lease has its size", name), "dxpu lease resize --help"))
		}
	}
	return nil
}

// silentWait is how long a command waits without a word.
const silentWait = 2 * time.Second

// enter returns the share for a program: that of a lease, or a new one. It says so if the lease
// keeps it waiting: the agent does not know of leases that have ended, or are of another host.
func (o *sharePart) enter(ctx context.Context, errOut io.Writer, lease string, p agent.Part) (agent.Share, error) {
	if lease == "" {
		return agent.NewClient(o.dir).Create(ctx, p)
	}
	said := make(chan struct{})
	notice := time.AfterFunc(silentWait, func() {
		defer close(said)
		fmt.Fprintf(errOut, "waiting: this machine has no share of lease %s; \"dxpu describe lease %s\" says for what it waits, on which host it is, or that it has ended\n", oneLine(lease), oneLine(lease))
	})
	s, err := agent.NewClient(o.dir).Enter(ctx, lease)
	if !notice.Stop() {
		<-said
	}
	return s, err
}

// joinMPS waits until this process may become a client of MPS. The environment gets the
// service and the limits, in place of what it has.
func joinMPS(ctx context.Context, dir, id string, env []string) ([]string, error) {
	of, err := agent.NewClient(dir).JoinMPS(ctx, id)
	env = slices.DeleteFunc(env, func(v string) bool {
		return strings.HasPrefix(v, "CUDA_MPS_") || strings.HasPrefix(v, "CUDA_VISIBLE_DEVICES=")
	})
	return append(env, of...), err
}

func newShareCreateCommand() *cobra.Command {
	o := &sharePart{}
	cmd := valueCommand(&cobra.Command{
		Use: "create", Short: "Make a share of a GPU of this machine", Args: cobra.NoArgs,
		Long: `Make a share of a GPU of this machine, which stays until "dxpu share end". Programs
belong to it with DXPU_SHARE set to its socket, and dxpu's driver library. Containers
get it by "dxpu share cdi".`,
		Example: `  dxpu share create --name web --gpu-memory 8GiB --compute 60%`,
	}, func(cmd *cobra.Command, _ []string) (localShares, error) {
		p, err := o.whole()
		if err != nil {
			return nil, err
		}
		s, err := agent.NewClient(o.dir).Create(cmd.Context(), p)
		o.warn(cmd.ErrOrStderr(), &s) // a failure gives none to warn of
		return localShares{s}, agentError(err)
	}, printShares)
	o.register(cmd.Flags())
	return cmd
}

// localShares are shares of this machine.
type localShares []agent.Share

func (l localShares) names() []string {
	var out []string
	for i := range l {
		out = append(out, l[i].ID)
	}
	return out
}

func newShareListCommand() *cobra.Command {
	var dir string
	var processes bool
	cmd := valueCommand(&cobra.Command{
		Use: "list", Short: "List the shares of the GPUs of this machine", Args: cobra.NoArgs,
		Long: `List the shares of the GPUs of this machine: limits, memory in use, launches and GPU
time. --processes lists the processes of each share in their place.`,
		Example: `  dxpu share list
  dxpu share list --processes
  dxpu share list -o json`,
	}, func(cmd *cobra.Command, _ []string) (localShares, error) {
		l, err := agent.NewClient(dir).Shares(cmd.Context())
		return l, agentError(err)
	}, func(w io.Writer, l localShares) {
		if processes {
			printProcesses(w, l)
		} else {
			printShares(w, l)
		}
	})
	f := cmd.Flags()
	agentDirVar(f, &dir)
	f.BoolVar(&processes, "processes", false, "list the processes of the shares")
	return cmd
}

func printShares(w io.Writer, l localShares) {
	t := newTable(w, "NAME", "CLASS", "GPUS", "MEMORY", "USED", "COMPUTE", "LIMIT", "PROCESSES", "LAUNCHES", "GPU TIME", "STATE", wideColumn("LEASE"), wideColumn("SOCKET"))
	for i := range l {
		s := &l[i]
		state := s.State
		if s.Stale {
			state += ", its program keeps the former compute"
		}
		waits := ""
		for k := range s.Parts {
			p := &s.Parts[k]
			if p.Missing != "" {
				waits += fmt.Sprintf(", waits for GPU %s: %s", p.GPU, p.Missing)
			}
			if p.Short != "" {
				state += ", " + p.Short
			}
		}
		if state += waits; s.Evicted != "" && waits == "" {
			state += ", was evicted: " + s.Evicted
		}
		memory, compute, limit := sizeWords(s)
		t.row(s.ID, s.Class, strings.Join(s.GPUs, ","), memory, size(uint64(s.Used)), compute, limit,
			len(s.Processes), s.Launches, duration(s.GPUTime.Duration()), state, cmp.Or(s.Lease, "-"), s.Socket)
	}
	t.flush()
}

// ppmWord returns a share in per cent, "-" for none.
func ppmWord(ppm int64) string {
	if ppm <= 0 {
		return "-"
	}
	return percentWord(uint32(ppm / 1000))
}

func printProcesses(w io.Writer, l localShares) {
	t := newTable(w, "SHARE", "PID", "MEMORY", "LAUNCHES", "GPU TIME", "WAITING", "CONNECTED")
	for i := range l {
		for _, p := range l[i].Processes {
			connected := "yes"
			if !p.Connected {
				connected = "no"
			}
			t.row(l[i].ID, p.PID, size(uint64(p.Memory)), p.Launches, duration(p.GPUTime.Duration()), p.Waiting, connected)
		}
	}
	t.flush()
}

func newShareResizeCommand() *cobra.Command {
	o := &sharePart{}
	cmd := valueCommand(&cobra.Command{
		Use: "resize NAME", Short: "Change memory and compute of a share while it is in use", Args: cobra.ExactArgs(1),
		Long: `Change memory and compute of a share while it is in use. Sizes that are not given stay.
A share whose programs use more than its new memory gets no more, and keeps the room
until they free it.

With the policy mps a program keeps its compute until it ends. An offline program of "dxpu
share run" is asked to end, for its next start with the new compute.

A share of several GPUs is resized on all of them, or on those that --gpu names.`,
		Example: `  dxpu share resize web --gpu-memory 12GiB
  dxpu share resize train --gpu 0000:3b:00.0 --gpu-memory 4GiB
  dxpu share resize web --compute 20% --limit 50%`,
	}, func(cmd *cobra.Command, args []string) (localShares, error) {
		p, err := o.part()
		if err != nil {
			return nil, err
		}
		if len(o.memory)+len(o.compute)+len(o.limit) == 0 {
			return nil, usagef("nothing to change: give --gpu-memory, --compute or --limit")
		}
		s, err := agent.NewClient(o.dir).Resize(cmd.Context(), args[0], p)
		o.warn(cmd.ErrOrStderr(), &s) // a failure gives none to warn of
		return localShares{s}, agentError(err)
	}, printShares)
	agentDirVar(cmd.Flags(), &o.dir)
	o.registerSize(cmd.Flags())
	cmd.Flags().StringSliceVar(&o.gpus, "gpu", nil, "`names` of the GPUs on which it changes, separated by commas (default: all of the share)")
	return cmd
}

func newShareHoldCommand(held bool) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: "hold NAME...", Short: "Stop the launches of shares", Args: cobra.MinimumNArgs(1),
		Long: `Stop the launches of shares. Launches in flight go on, and memory stays. The programs
wait until "dxpu share resume".`,
		Example: "  dxpu share hold batch",
	}
	if !held {
		cmd.Use, cmd.Short = "resume NAME...", "Let the launches of held shares go on"
		cmd.Long, cmd.Example = `Let the launches of shares go on that "dxpu share hold" stopped.`, "  dxpu share resume batch"
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var failed error
		for _, name := range args {
			failed = errors.Join(failed, agentError(agent.NewClient(dir).Hold(cmd.Context(), name, held)))
		}
		return failed
	}
	agentDirVar(cmd.Flags(), &dir)
	return cmd
}

func newShareEndCommand() *cobra.Command {
	var dir string
	grace := 10 * time.Second
	cmd := &cobra.Command{
		Use: "end NAME...", Short: "End shares with their programs", Args: cobra.MinimumNArgs(1),
		Long: `End shares. Their programs are asked to end: the driver library waits for the kernels
in flight and sends SIGTERM. After --grace the agent kills the programs that are left.`,
		Example: `  dxpu share end web
  dxpu share end batch --grace 2m`,
		RunE: func(cmd *cobra.Command, args []string) error {
			var failed error
			for _, name := range args {
				failed = errors.Join(failed, agentError(agent.NewClient(dir).End(cmd.Context(), name, grace)))
			}
			return failed
		},
	}
	agentDirVar(cmd.Flags(), &dir)
	durationVar(cmd.Flags(), &grace, "grace", grace, "time that the programs have to end")
	return cmd
}
