package cli

import (
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/perf/paper"
	"github.com/dxpu-project/dxpu/internal/model/predict"
	"github.com/dxpu-project/dxpu/internal/model/trace"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// predictOptions are the flags of model predict.
type predictOptions struct {
	setting  predict.Setting
	costs    string
	mrrs     int
	sweep    string
	svg, cdf string
	perfetto string
	plot     bool
	form     *output
	strict   bool
	quiet    bool
	top      int
	steps    string
	native   time.Duration
	least    percentFlag
	whatIf   []string
	ranks    bool
	remote   string
	peerRate float64
}

func newModelPredictCommand() *cobra.Command {
	o := &predictOptions{}
	cmd := &cobra.Command{
		Use: "predict TRACE...", Short: "Predict a recorded workload's performance over a longer round trip", Args: cobra.MinimumNArgs(1),
		Long: `Predict a recorded workload's performance over a longer round trip.

TRACE is Chrome JSON of the PyTorch profiler (.json or .json.gz, of any version),
a sqlite export of Nsight Systems, a database of rocprofv3 (.db), or a Chakra
execution trace in protocol buffers (.et), which has no times and gets a wide
range. The command reconstructs the run from calls
on host threads and operations on streams, and replays it with the added cost of
each operation: idle gaps absorb latency, synchronisations expose it. It prints
the paper's additive estimate for comparison. Where the verdict rests on what a
trace cannot tell (how much of the idle time is the profiler's own, what a node of
a CUDA graph costs), it prints a range and the reason. So it does for --what-if and
--ranks.

--costs selects the added costs: "hardware" is fitted to the paper's
measurements; "paper" is its model, one added round trip per kernel, as the
driver library injects it. "dxpu model explain" prints both. A file has those of
your own GPU ("dxpu model fit").

A profiler slows the host down, and a slow host hides latency. Given the time of
a training step without the profiler, --native-step removes the profiler's share
of the host's time before the command adds latency.

Several traces give a table with a line for each. With --ranks they are the ranks
of one distributed run: the command joins them by their collectives (kernels of
NCCL and RCCL), tells the waiting for other ranks from the work, and predicts the
job, which is as fast as its slowest rank. --remote names the ranks whose GPUs
have the longer round trip, and --peer-rate the rate between GPUs that is left,
such as 0.74 across two proxies. --at-least finds the longest round trip for a
performance.

--what-if computes what a change of the program would give, natively and over the
round trip: "graphs" (the launches between two waits become one CUDA graph),
"pinned" (copies from pinned memory, for which the host does not wait), "batch=2"
(operations take twice as long and do twice the work).

The command drops and counts damaged events and reports them on standard error,
with contradictions in the trace (overlapping operations on a stream, clocks that
disagree, several processes in one trace); --strict makes them an error. It gives
no verdict on an incomplete trace: one that is truncated, lacks the operations of
many launches, or has long training steps without GPU work.`,
		Example: `  dxpu model predict resnet50.pt.trace.json.gz --rtt 6.8us
  dxpu model predict report.sqlite --rtt 4.9us --plot --svg sweep.svg --cdf cdf.svg
  dxpu model predict resnet50.pt.trace.json.gz --at-least 95% --what-if graphs,batch=2
  dxpu model predict --ranks rank0.json rank1.json rank2.json --remote 1,2`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.OutOrStdout(), cmd.ErrOrStderr(), args)
		},
	}
	o.setting.NativeRTT, o.setting.RTT = perf.NativeRTT, paper.RTTLong
	f := cmd.Flags()
	rttVar(f, &o.setting.RTT, "rtt", "round trip of a PCIe memory read with disaggregation")
	rttVar(f, &o.setting.NativeRTT, "native-rtt", "round trip of the recorded run")
	f.IntVar(&o.setting.Requester.Tags, "tags", perf.V100.Tags, "number of requests that the GPU keeps in flight")
	f.IntVar(&o.mrrs, "mrrs", int(perf.V100.MRRS), "Max_Read_Request_Size in bytes")
	f.StringVar(&o.costs, "costs", "hardware", `added cost of each operation: "hardware", "paper", or a file of "dxpu model fit"`)
	f.StringVar(&o.sweep, "sweep", "", "round trips to compare, such as 2us,4us,8us or 2us:20us:2us")
	f.StringVar(&o.svg, "svg", "", "write performance against round trip to this SVG file")
	f.StringVar(&o.cdf, "cdf", "", "write the distributions of kernel duration to this SVG file")
	f.StringVar(&o.perfetto, "perfetto", "", "write the replayed run with its critical path to this file, for ui.perfetto.dev")
	f.BoolVar(&o.plot, "plot", false, "draw performance against round trip in the terminal")
	o.form = jsonFlag(cmd)
	f.BoolVar(&o.strict, "strict", false, "fail on a damaged or doubtful trace")
	f.BoolVar(&o.quiet, "quiet", false, "do not show progress")
	f.IntVar(&o.top, "top", 10, "kernels to list by name")
	durationVar(f, &o.native, "native-step", 0, "measured time of a step (or of the whole) without the profiler")
	f.Var(&o.least, "at-least", "performance for which to find the longest round trip, such as 95%")
	f.StringSliceVar(&o.whatIf, "what-if", nil, "changes of the program to compute: graphs, pinned, batch=FACTOR")
	f.BoolVar(&o.ranks, "ranks", false, "the traces are the ranks of one distributed run")
	f.StringVar(&o.remote, "remote", "", "with --ranks: the ranks with the longer round trip, such as 0,4-7 (default all)")
	f.Float64Var(&o.peerRate, "peer-rate", 1, "with --ranks: rate between GPUs relative to the recorded run, for collectives with a remote rank")
	f.StringVar(&o.steps, "step-prefix", trace.DefaultStepPrefix, "prefix of the annotations that mark training steps")
	return cmd
}

// analysis holds the contents of a report on a prediction.
type analysis struct {
	file    string
	plan    *predict.Plan
	setting predict.Setting
	result  predict.Result
	span    predict.Range // of result
	sweep   []predict.Result
	spans   []predict.Range // of sweep
	stats   predict.Stats
	verdict predict.Verdict
	limit   *limitJSON // or nil
	whatIf  []whatIfJSON
	path    []predict.PathSum // the critical path
	byRange []predict.PathSum
	notes   []string // assumptions
}

// memoryLimit makes the garbage collector run more often for a large trace, which
// would otherwise take twice the memory of its contents.
const memoryLimit = 400 << 20

func (o *predictOptions) run(out, errOut io.Writer, files []string) error {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(memoryLimit))
	rtts, err := o.prepare(files)
	if err != nil {
		return err
	}
	if o.ranks {
		return o.predictRanks(out, errOut, files, rtts)
	}
	if len(files) > 1 {
		return o.predictMany(out, errOut, files, rtts)
	}
	a, err := o.analyse(errOut, files[0], rtts)
	if err != nil {
		return err
	}
	if o.svg != "" {
		if err := writeSweepSVG(o.svg, a); err != nil {
			return err
		}
	}
	if o.cdf != "" {
		if err := writeCDFSVG(o.cdf, a); err != nil {
			return err
		}
	}
	if o.form.structured() {
		return writeJSON(out, a.json(o.top))
	}
	return printText(out, false, func(w io.Writer) { a.print(w, o.top, o.plot, isTerminal(out)) })
}

// open reads a trace and reports its defects.
func (o *predictOptions) open(errOut io.Writer, file string) (*predict.Plan, error) {
	w, err := trace.Open(file, trace.Options{StepPrefix: o.steps, Progress: o.progress(errOut)})
	if err != nil {
		return nil, err
	}
	if warn := w.Report.Warning(); warn != "" {
		if o.strict {
			return nil, fmt.Errorf("%s: %s", file, warn)
		}
		warnOfTrace(errOut, &w.Report)
	}
	return predict.NewPlan(w), nil
}

// analyse predicts the run of one trace.
func (o *predictOptions) analyse(errOut io.Writer, file string, rtts []time.Duration) (*analysis, error) {
	plan, err := o.open(errOut, file)
	if err != nil {
		return nil, err
	}
	a := &analysis{file: file, plan: plan, setting: o.setting}
	if own := overheadOf(plan.Workload()); own > 0 {
		a.setting.WithoutOverhead = true
		a.notes = append(a.notes, fmt.Sprintf("%v of the host's time that the profiler recorded as its own are taken out", own.Round(time.Microsecond)))
	}
	if o.native > 0 {
		if a.setting.HostScale, err = a.plan.CalibrateHost(a.setting, o.native); err != nil {
			return nil, err
		}
	}
	if a.result, err = a.plan.Run(a.setting); err != nil {
		return nil, err
	}
	if a.sweep, err = a.plan.Sweep(a.setting, rtts); err != nil {
		return nil, err
	}
	path, err := a.plan.Critical(a.setting)
	if err != nil {
		return nil, err
	}
	a.path, a.byRange = a.plan.Sums(path), a.plan.SumsByRange(path)
	if o.perfetto != "" {
		if err := a.writeTimeline(o.perfetto, path); err != nil {
			return nil, err
		}
	}
	a.notes = append(a.notes, foreignGPU(o.costs, plan.Workload().Devices)...)
	window := a.plan.InFlight(a.setting)
	if window > o.setting.Requester.Window() {
		a.notes = append(a.notes, fmt.Sprintf("the fastest copy to the device keeps %v in flight at the native round trip, more than %d tags x %v: Equation 1 uses this value; set --tags and --mrrs to those of this GPU",
			window, o.setting.Requester.Tags, o.setting.Requester.MRRS))
	}
	a.stats = a.plan.Stats(window)
	if a.whatIf, err = a.changes(o.whatIf); err != nil {
		return nil, err
	}
	if err := a.ranges(o); err != nil {
		return nil, err
	}
	a.verdict = predict.Judge(&a.stats, &a.result, a.span, &plan.Workload().Report, window)
	return a, nil
}

// ranges finds the ranges of the prediction and of the sweep, and the answers to --at-least.
func (a *analysis) ranges(o *predictOptions) error {
	settings := slices.Repeat([]predict.Setting{a.setting}, len(a.sweep)+1)
	for i := range a.sweep {
		settings[i].RTT = a.sweep[i].RTT
	}
	spans, err := a.plan.Ranges(settings, append(slices.Clone(a.sweep), a.result), &a.stats)
	if err != nil {
		return err
	}
	a.spans, a.span = spans[:len(a.sweep)], spans[len(a.sweep)]
	predicted := func(s predict.Setting) (predict.Setting, predict.Result, error) {
		s.HostScale, s.WithoutOverhead = a.setting.HostScale, a.setting.WithoutOverhead
		r, err := a.plan.Run(s)
		return s, r, err
	}
	a.limit, err = o.limit(func(s predict.Setting) (float64, error) {
		_, r, err := predicted(s)
		return r.Relative, err
	}, func(s predict.Setting) (float64, error) {
		s, r, err := predicted(s)
		if err != nil {
			return 0, err
		}
		span, err := a.plan.Range(s, &r, &a.stats)
		return span.Low, err
	})
	return err
}

// overheadOf returns the time of the threads that the profiler spent for itself.
func overheadOf(w *workload.Workload) (sum time.Duration) {
	for _, o := range w.Overheads {
		sum += o.Dur
	}
	return sum
}

// foreignGPU returns a note if the costs are those of another GPU than the trace's.
func foreignGPU(costs string, devices []string) []string {
	if costs != "hardware" || len(devices) == 0 || strings.Contains(devices[0], "V100") {
		return nil
	}
	return []string{fmt.Sprintf("the costs are fitted to V100 GPUs and were not measured on %s: \"dxpu model fit\" finds those of your own GPU", printable(devices[0]))}
}

// warnOfTrace prints the defects of a trace that is used nevertheless.
func warnOfTrace(errOut io.Writer, r *workload.Report) {
	rest := ""
	if r.Dropped() > 0 {
		rest = "; the report covers the rest"
	}
	fmt.Fprintf(errOut, "warning: %s%s\n", r.Warning(), rest)
}

// prepare checks the flags and returns the round trips of the sweep.
func (o *predictOptions) prepare(files []string) ([]time.Duration, error) {
	var err error
	if o.setting.Costs, err = costsOf(o.costs); err != nil {
		return nil, err
	}
	switch {
	case o.top < 0:
		return nil, usagef("--top %d: want 0 or more", o.top)
	case o.native < 0:
		return nil, usagef("--native-step %v: want a time above zero", o.native)
	case len(files) > 1 && (o.native > 0 || o.svg != "" || o.cdf != "" || o.perfetto != "" || o.plot):
		return nil, usagef("--native-step, --svg, --cdf, --perfetto and --plot are for one trace: give them with one of the %d", len(files))
	case o.ranks && len(o.whatIf) > 0:
		return nil, usagef("--what-if is for one run's trace: leave out --ranks")
	case len(files) > 1 && len(o.whatIf) > 0 && !o.form.structured():
		return nil, usagef("--what-if is for one trace, or for the JSON of several: give it with one of the %d, or add --json", len(files))
	case o.ranks && len(files) < 2:
		return nil, usagef("--ranks: want the traces of two or more ranks of a run")
	case o.ranks && len(slices.Compact(slices.Sorted(slices.Values(files)))) < len(files):
		return nil, usagef("--ranks: a trace is given twice: give one for each rank of a run")
	case !o.ranks && (o.remote != "" || o.peerRate != 1):
		return nil, usagef("--remote and --peer-rate are for the ranks of one run: add --ranks")
	case !(o.peerRate > 0 && o.peerRate <= 1):
		return nil, usagef("--peer-rate %v: want above 0 and at most 1", o.peerRate)
	}
	for _, name := range o.whatIf {
		if _, err := parseChange(name); err != nil {
			return nil, usage(err)
		}
	}
	path := pathFlags{mrrs: o.mrrs}
	path.path.Requester.Tags = o.setting.Requester.Tags
	p, _ := path.get()
	o.setting.Requester = p.Requester
	if err := o.setting.Validate(); err != nil {
		return nil, usage(err)
	}
	rtts, err := parseSweep("--sweep", o.sweep, o.setting.NativeRTT)
	return rtts, usage(err)
}

// defaultSweep holds the round trips of the paper and some between and above them.
var defaultSweep = []time.Duration{
	1200, 2000, 3000, paper.RTTShort, paper.RTTLong, 8000, 10000, 12000, 15000, 19000, 25000,
}

const maxSweep = 1000

// parseSweep parses the value of a flag, "a,b,c" or "from:to:step". It refuses round
// trips below native.
func parseSweep(flag, s string, native time.Duration) ([]time.Duration, error) {
	var out []time.Duration
	switch parts := strings.Split(s, ":"); {
	case s == "":
		for _, d := range defaultSweep {
			if d >= native {
				out = append(out, d)
			}
		}
	case len(parts) == 3:
		var v [3]time.Duration
		for i, p := range parts {
			var err error
			if v[i], err = perf.ParseRTT(p); err != nil {
				return nil, err
			}
		}
		if v[0] > v[1] {
			return nil, fmt.Errorf("%s %q: %v is above %v: want from:to:step", flag, s, v[0], v[1])
		}
		for d := v[0]; d <= v[1]; d += v[2] {
			if out = append(out, d); len(out) > maxSweep {
				return nil, fmt.Errorf("%s %q: more than %d steps", flag, s, maxSweep)
			}
		}
	case len(parts) == 1:
		for _, p := range strings.Split(s, ",") {
			d, err := perf.ParseRTT(p)
			if err != nil {
				return nil, err
			}
			out = append(out, d)
		}
	default:
		return nil, fmt.Errorf("%s %q: want 2us,4us,8us or 2us:20us:2us", flag, s)
	}
	for _, d := range out {
		if d < native {
			return nil, fmt.Errorf("%s %q: %v is below the native round trip of %v", flag, s, d, native)
		}
	}
	return out, nil
}

// progress returns a function that shows the progress of large files on a terminal.
func (o *predictOptions) progress(errOut io.Writer) func(read, size int64) {
	const large = 64 << 20
	if o.quiet || !isTerminal(errOut) {
		return nil
	}
	return func(read, size int64) {
		if size < large {
			return
		}
		fmt.Fprintf(errOut, "\rreading %3d %% of %v", 100*read/size, perf.Bytes(size))
		if read >= size {
			fmt.Fprint(errOut, "\r\x1b[K")
		}
	}
}
