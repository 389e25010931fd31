//go:build linux

package cli

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/hook"
	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/perf/paper"
	"github.com/dxpu-project/dxpu/pcie"
)

// modelRun holds the flags of model run.
type modelRun struct {
	settings hook.Settings
	mrrs     int
	rate     float64
	compare  bool
	graphs   string
	dir      string
}

func newModelRunCommand() *cobra.Command {
	m := &modelRun{}
	cmd := &cobra.Command{
		Use: "run [flags] -- PROGRAM [ARGUMENT...]", Short: "Run a GPU program here as if its GPU were disaggregated",
		Long: `Run a GPU program on this machine's GPU as if it were disaggregated.

The unmodified program loads a driver library of dxpu in place of the real one
(section 3.4.2 of the paper). The library inserts a kernel that waits for the
added round trip before each kernel and memset, and an extra copy before each
copy. Copies to the device that exceed the GPU's bytes in flight take as long as
Equation 1 gives. The library measures the cost of an insertion first and
subtracts it. It does not change CUDA graphs; --graphs selects what it inserts
before their launches.

Without --rtt the library adds no latency. It records the calls with --trace,
counts them with --stats, and is transparent otherwise.

With --compare the program runs twice, without and with the added latency (--rtt,
default 6.8us), and the command ends with the share of its speed that it would lose.
The times are those of the whole program, its start included: let it run for a
minute or more, and let it do the same work both times.`,
		Example: `  dxpu model run --compare -- python train.py
  dxpu model run --rtt 6.8us -- python train.py
  dxpu model run --rtt 4.9us --stats stats.json --trace calls.%p -- ./a.out`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			m.settings.Inject = cmd.Flags().Changed("rtt")
			if !m.compare {
				return m.run(args)
			}
			if !m.settings.Inject {
				m.settings.RTT = paper.RTTLong
			}
			return m.runTwice(cmd, args)
		},
	}
	s := &m.settings
	s.NativeRTT = perf.NativeRTT
	f := cmd.Flags()
	f.SetInterspersed(false)
	rttVar(f, &s.RTT, "rtt", "round trip of a PCIe memory read to emulate")
	rttVar(f, &s.NativeRTT, "native-rtt", "round trip of this machine")
	f.IntVar(&s.Requester.Tags, "tags", perf.V100.Tags, "number of requests that the GPU keeps in flight")
	f.IntVar(&m.mrrs, "mrrs", int(perf.V100.MRRS), "Max_Read_Request_Size in bytes")
	f.Float64Var(&m.rate, "native-gbps", 0, "GB/s of copies to the device here (0: measure)")
	f.StringVar(&m.graphs, "graphs", string(hook.GraphsByLaunch), `added latency of a graph launch: one round trip ("launch"), one per kernel and memset ("node"), or "none"`)
	f.BoolVar(&m.compare, "compare", false, "run the program twice, and print what it would lose")
	f.BoolVar(&s.Syncs, "syncs", false, "delay the return of blocking waits too")
	f.StringVar(&s.Trace, "trace", "", "record the driver calls in this file (%p: process)")
	f.StringVar(&s.Stats, "stats", "", "write counters and measured costs to this file (%p: process)")
	f.StringVar(&s.Driver, "driver", "", "path of the real libcuda.so.1, if it is not found")
	f.StringVar(&m.dir, "hook-dir", "", "folder of dxpu's libcuda.so.1 (default: hook/ beside this program)")
	f.BoolVar(&s.Verbose, "verbose", false, "print what the library found and measured")
	return cmd
}

// command returns the path of a program, and its environment with the driver library.
func (m *modelRun) command(name string) (program string, env []string, err error) {
	m.settings.Requester.MRRS = pcie.PayloadSize(clamp(m.mrrs, 65535))
	m.settings.NativeRate = perf.GBps(m.rate)
	m.settings.Graphs = hook.GraphPolicy(m.graphs)
	dir, err := hook.Find(m.dir)
	if err != nil {
		return "", nil, fmt.Errorf("model run: %w", err)
	}
	if env, err = m.settings.Environ(os.Environ(), dir); err != nil {
		return "", nil, usagef("model run: %w", err)
	}
	if program, err = exec.LookPath(name); err != nil {
		return "", nil, fmt.Errorf("model run: %w", err)
	}
	return program, env, nil
}

// runTwice runs a program without and with the added latency and compares the times. The
// driver library is there both times, so that its own cost does not count.
func (m *modelRun) runTwice(cmd *cobra.Command, args []string) error {
	used := func() bool { return true } // the file of --stats shows it
	if m.settings.Stats == "" {
		dir, err := os.MkdirTemp("", "dxpu-stats-")
		if err != nil {
			return fmt.Errorf("model run: %w", err)
		}
		defer os.RemoveAll(dir)
		m.settings.Stats = filepath.Join(dir, "%p")
		used = func() bool {
			files, err := os.ReadDir(dir)
			return err != nil || len(files) > 0
		}
	}
	var took [2]time.Duration
	for i := range took {
		m.settings.Inject = i == 1
		program, env, err := m.command(args[0])
		if err != nil {
			return err
		}
		c := exec.CommandContext(cmd.Context(), program, args[1:]...)
		c.Args[0], c.Env = args[0], env
		c.Stdin, c.Stdout, c.Stderr = os.Stdin, cmd.OutOrStdout(), cmd.ErrOrStderr()
		at := time.Now()
		if err := c.Run(); err != nil {
			return fmt.Errorf("model run: run %d of 2: %s: %w", i+1, program, err)
		}
		took[i] = time.Since(at)
	}
	if !used() {
		return fmt.Errorf("model run: %s did not use the driver library, so no round trip was added: it uses no GPU, opens the driver by its path, or ended without its exit handlers", args[0])
	}
	loss := max(0, 100*(1-took[0].Seconds()/took[1].Seconds()))
	_, err := fmt.Fprintf(cmd.ErrOrStderr(), "\nHere the program took %s, and %s over a round trip of %v: this job would lose %.1f %% when disaggregated.\n",
		duration(took[0]), duration(took[1]), m.settings.RTT, loss)
	return err
}

// run replaces this process, so that the program has its signals, terminal and exit
// status.
func (m *modelRun) run(args []string) error {
	program, env, err := m.command(args[0])
	if err != nil {
		return err
	}
	return fmt.Errorf("model run: %s: %w", program, syscall.Exec(program, args, env))
}

func newModelCallsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "calls FILE", Short: "Summarise the driver calls that model run recorded", Args: cobra.ExactArgs(1),
		Long:    `Summarise a file that "dxpu model run --trace" wrote: calls by kind, the host's time in them, bytes, and the injected latency.`,
		Example: `  dxpu model calls calls.4711`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f, err := os.Open(args[0])
			if err != nil {
				return fmt.Errorf("model calls: %w", err)
			}
			defer func() { _ = f.Close() }()
			return summarise(cmd.OutOrStdout(), f)
		},
	}
}

// callSum sums up the calls of one kind.
type callSum struct {
	calls, captured, failed int
	bytes                   perf.Bytes
	host, injected          time.Duration
}

func summarise(out io.Writer, in io.Reader) error {
	sums := map[hook.Kind]*callSum{}
	h, err := hook.ReadTrace(in, func(r hook.Record) error {
		s := sums[r.Kind]
		if s == nil {
			s = &callSum{}
			sums[r.Kind] = s
		}
		s.calls++
		if r.Flags&hook.FlagCaptured != 0 {
			s.captured++
		}
		if r.Result != 0 {
			s.failed++
		}
		if r.Kind >= hook.KindMemset && r.Kind <= hook.KindPrefetch {
			s.bytes += perf.Bytes(r.Arg)
		}
		s.host += r.End - r.Start
		s.injected += r.Injected
		return nil
	})
	if len(sums) == 0 && err != nil {
		return fmt.Errorf("model calls: %w", err)
	}
	fmt.Fprintf(out, "process %d, round trip %v instead of %v\n\n", h.Process, h.RTT, h.NativeRTT)
	w := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "call\tnumber\tin captures\tfailed\tdata\thost time\tinjected\t")
	for k := hook.KindLaunch; k <= hook.KindStreamWaitEvent; k++ {
		if s := sums[k]; s != nil {
			fmt.Fprintf(w, "%v\t%d\t%d\t%d\t%v\t%v\t%v\t\n", k, s.calls, s.captured, s.failed, s.bytes,
				s.host.Round(time.Microsecond), s.injected.Round(time.Microsecond))
		}
	}
	if ferr := w.Flush(); ferr != nil {
		return ferr
	}
	if err != nil { // after the calls before the damage
		return fmt.Errorf("model calls: %w", err)
	}
	return nil
}
