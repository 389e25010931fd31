//go:build linux

package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime/debug"
	"time"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/bench"
	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/perf/paper"
	"github.com/dxpu-project/dxpu/internal/model/playback"
	"github.com/dxpu-project/dxpu/internal/model/predict"
	"github.com/dxpu-project/dxpu/internal/model/trace"
	"github.com/dxpu-project/dxpu/internal/model/workload"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/pcie"
)

// workloadOptions are the flags of "dxpu bench workload".
type workloadOptions struct {
	spec         playback.Spec
	rtts, prefix string
	cipher       string
	mrrs, steps  int
	stretch      int
	limit        time.Duration
	real, strict bool
	silence      bool
	form         *output
}

func newBenchWorkloadCommand() *cobra.Command {
	o := &workloadOptions{}
	cmd := &cobra.Command{
		Use: "workload TRACE", Short: "Replay a recorded workload and compare it with the model's prediction", Args: cobra.ExactArgs(1),
		Long: `Replay a recorded workload on the software GPU and compare the result with the
model's prediction.

TRACE is a file that "dxpu model predict" reads. The replay makes the calls with the
recorded gaps between them. A launch rings a doorbell, after which the GPU reads its
commands; a copy is DMA; a synchronisation waits for the fence that the GPU writes.
Only the computation is replaced, by delays of the recorded length.

By default the replay runs in virtual time, with the link, the host and the GPU that
the daemons run, and a network whose delay gives a memory read the round trip --rtt.
The result is deterministic.

With --real the replay runs on this machine, through both proxies and UDP on the
loopback interface. All times, including round trips, are multiplied by --stretch, so
that timers and sockets can keep up. Only the first steps that fit into --limit are
replayed.

The prediction uses the costs of the software GPU, which differ from those of a
physical one: a launch takes 1.5 round trips until the kernel starts but occupies no
stream, so launches made ahead are free. The last column is the prediction for a
physical GPU.`,
		Example: `  dxpu bench workload resnet50.pt.trace.json.gz --rtt 4.9us,6.8us
  dxpu bench workload resnet50.pt.trace.json.gz --real --steps 1 --rtt 6.8us`,
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.run(cmd.Context(), cmd.OutOrStdout(), cmd.ErrOrStderr(), args[0])
		},
	}
	o.spec.NativeRTT = perf.NativeRTT
	f := cmd.Flags()
	f.StringVar(&o.rtts, "rtt", "4.9us,6.8us,10us,19us", "round trips of a PCIe memory read, such as 2us,4us,8us or 2us:20us:2us")
	rttVar(f, &o.spec.NativeRTT, "native-rtt", "round trip of the recorded run")
	f.IntVar(&o.spec.Requester.Tags, "tags", perf.V100.Tags, "number of requests that the GPU keeps in flight; more if the recording needs them")
	f.IntVar(&o.mrrs, "mrrs", int(perf.V100.MRRS), "Max_Read_Request_Size in bytes")
	f.IntVar(&o.steps, "steps", 0, "number of training steps to replay (default: all)")
	f.BoolVar(&o.real, "real", false, "replay in real time, over UDP on the loopback interface")
	f.IntVar(&o.stretch, "stretch", 0, "factor for all times in real time (default: chosen for this machine)")
	durationVar(f, &o.limit, "limit", 0, "longest duration of one replay, in virtual or real time (default: 30s in real time)")
	f.StringVar(&o.cipher, "cipher", link.CipherAES256GCM.String(), "cipher for --real: aes-256-gcm or none")
	f.StringVar(&o.prefix, "step-prefix", trace.DefaultStepPrefix, "prefix of the annotations that mark training steps")
	f.BoolVar(&o.strict, "strict", false, "fail on a damaged trace")
	f.BoolVar(&o.silence, "quiet", false, "show no progress")
	o.form = jsonFlag(cmd)
	return cmd
}

// replayed is the data of a report.
type replayed struct {
	Trace                string   `json:"trace"`
	Mode                 string   `json:"mode"` // "virtual time" or "real time"
	Operations           int      `json:"operations"`
	Calls                int      `json:"calls"`
	Streams              int      `json:"streams"`
	Devices              int      `json:"devices"`
	Bytes                int64    `json:"bytes"`
	Tags                 int      `json:"tags"`
	MRRS                 int      `json:"mrrs"`
	Stretch              int      `json:"stretch,omitempty"`
	Loopback             int64    `json:"loopback_rtt_ns,omitempty"` // with no delay added, not stretched
	Dropped              string   `json:"dropped,omitempty"`
	Notes                []string `json:"notes,omitempty"`
	*playback.Comparison `json:"-"`
}

func (o *workloadOptions) run(ctx context.Context, out, errOut io.Writer, file string) error {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(memoryLimit))
	rtts, err := o.prepare()
	if err != nil {
		return err
	}
	w, err := trace.Open(file, trace.Options{StepPrefix: o.prefix})
	if err != nil {
		return err
	}
	warn := w.Report.Warning()
	if warn != "" {
		if o.strict {
			return fmt.Errorf("%s: %s", file, warn)
		}
		warnOfTrace(errOut, &w.Report)
	}
	r := &replayed{Trace: file, Mode: "virtual time", Dropped: warn}
	say := progress(errOut)
	if o.silence {
		say = func(string, ...any) {}
	}
	do := o.virtual
	if o.real {
		do, r.Mode = o.inRealTime, "real time"
	}
	plan, runs, err := do(ctx, w, rtts, r, say)
	if err != nil {
		return err
	}
	if r.Comparison, err = playback.Compare(plan, o.spec.Requester, paper.HardwareCosts(), runs); err != nil {
		return err
	}
	r.describe(plan.Workload(), o.spec.Requester)
	if o.form.structured() {
		return writeJSON(out, r.json())
	}
	return printText(out, false, r.print)
}

// prepare checks the flags and returns the round trips.
func (o *workloadOptions) prepare() ([]time.Duration, error) {
	o.spec.Requester.MRRS = pcie.PayloadSize(clamp(o.mrrs, 65535))
	o.spec.RTT = o.spec.NativeRTT
	if err := o.spec.Requester.Validate(); err != nil {
		return nil, usage(err)
	}
	switch {
	case o.steps < 0 || o.limit < 0:
		return nil, usagef("--steps %d, --limit %v: want 0 or more", o.steps, o.limit)
	case o.stretch < 0 || o.stretch > playback.MaxStretch:
		return nil, usagef("--stretch %d: want 1 to %d, or 0 for the default", o.stretch, playback.MaxStretch)
	case o.spec.NativeRTT <= 0:
		return nil, usagef("--native-rtt %v: want a time above zero", o.spec.NativeRTT)
	}
	rtts, err := parseSweep("--rtt", o.rtts, o.spec.NativeRTT)
	if err != nil {
		return nil, usage(err)
	}
	return rtts, nil
}

// ready returns the plan of the replay and completes the specification.
func (o *workloadOptions) ready(w *workload.Workload, r *replayed) (*predict.Plan, error) {
	plan := predict.NewPlan(w)
	spec, note, err := o.spec.Ready(plan)
	if err != nil {
		return nil, err
	}
	if note != "" {
		r.Notes = append(r.Notes, note)
	}
	o.spec = spec
	return plan, nil
}

func (o *workloadOptions) virtual(
	ctx context.Context, w *workload.Workload, rtts []time.Duration, r *replayed, say func(string, ...any),
) (*predict.Plan, []playback.Run, error) {
	plan, err := o.ready(playback.Cut(w, o.steps, o.limit), r)
	if err != nil {
		return nil, nil, err
	}
	var runs []playback.Run
	for _, rtt := range append([]time.Duration{o.spec.NativeRTT}, rtts...) {
		spec := o.spec
		spec.RTT = rtt
		spec.Progress = func(share float64) { say("%v: %.0f %% of the workload", rtt, 100*share) }
		times, err := playback.Virtual(ctx, plan, spec)
		if err != nil {
			return nil, nil, err
		}
		runs = append(runs, playback.Run{RTT: rtt, Times: times})
	}
	return plan, runs, nil
}

// defaultLimit bounds a replay in real time.
const defaultLimit = 30 * time.Second

func (o *workloadOptions) inRealTime(
	ctx context.Context, w *workload.Workload, rtts []time.Duration, r *replayed, say func(string, ...any),
) (*predict.Plan, []playback.Run, error) {
	cipher, err := parseCipher(o.cipher)
	if err != nil {
		return nil, nil, err
	}
	plan, err := o.ready(w, r)
	if err != nil {
		return nil, nil, err
	}
	out, err := bench.Workload(ctx, bench.Options{Cipher: cipher, Progress: say}, plan, bench.WorkloadSpec{
		NativeRTT: o.spec.NativeRTT, RTTs: rtts, Requester: o.spec.Requester,
		Stretch: o.stretch, Steps: o.steps, Limit: cmp.Or(o.limit, defaultLimit),
	})
	if err != nil {
		return nil, nil, err
	}
	r.Stretch, r.Loopback = out.Stretch, out.Loopback.Nanoseconds()
	return out.Plan, out.Runs, nil
}

// describe fills in the workload and the GPU of the replay.
func (r *replayed) describe(w *workload.Workload, q perf.Requester) {
	r.Operations, r.Calls, r.Bytes = len(w.Ops), len(w.Calls), playback.Traffic(w)
	r.Tags, r.MRRS = q.Tags, int(q.MRRS)
	type device struct {
		process uint64
		number  int64
	}
	devices, streams := map[device]bool{}, map[*workload.Stream]bool{}
	for i := range w.Ops {
		s := &w.Streams[w.Ops[i].Stream]
		streams[s] = true
		devices[device{s.Process, s.Device}] = true
	}
	r.Streams, r.Devices = len(streams), len(devices)
	if r.Streams > playback.Queues {
		r.Notes = append(r.Notes, fmt.Sprintf("%d streams on %d queues: streams that share a queue wait for each other", r.Streams, playback.Queues))
	}
	if r.Devices > 1 {
		r.Notes = append(r.Notes, fmt.Sprintf("one GPU replays the %d GPUs of the trace: their copies share its tags, which the model does not consider", r.Devices))
	}
	const disturbed = 0.05
	if off := r.Reproduction(); r.Mode == "real time" && (off > disturbed || off < -disturbed) {
		r.Notes = append(r.Notes, "the native replay differs from the recording because this machine was busy; a larger --stretch helps")
	}
}

// pointJSON is one row of the table. Times are in nanoseconds.
type pointJSON struct {
	RTT       int64   `json:"rtt_ns"`
	Unit      int64   `json:"unit_ns"`
	System    float64 `json:"system"`
	Model     float64 `json:"model"`
	Deviation float64 `json:"deviation"`
	Physical  float64 `json:"model_physical_gpu"`
}

func (r *replayed) json() any {
	points := make([]pointJSON, len(r.Points))
	for i := range r.Points {
		p := &r.Points[i]
		points[i] = pointJSON{p.RTT.Nanoseconds(), p.Unit.Nanoseconds(), p.System, p.Model, p.Deviation(), p.Physical}
	}
	return struct {
		*replayed
		Basis        string      `json:"basis"`
		Unit         string      `json:"unit"`
		Units        int         `json:"units"`
		Recorded     int64       `json:"recorded_ns"`
		Native       int64       `json:"native_ns"`
		NativeRTT    int64       `json:"native_rtt_ns"`
		Reproduction float64     `json:"reproduction"`
		Points       []pointJSON `json:"points"`
	}{
		r, r.Basis, r.Comparison.Unit, r.Units, r.Recorded.Nanoseconds(), r.Native.Nanoseconds(), r.NativeRTT.Nanoseconds(), r.Reproduction(), points,
	}
}

func (r *replayed) print(w io.Writer) {
	fmt.Fprintf(w, "%s: %d operations on %d streams, %d calls, %v of copies; basis: %s\n", r.Trace, r.Operations, r.Streams, r.Calls, perf.Bytes(r.Bytes), r.Basis)
	fmt.Fprintf(w, "software GPU with %d tags of %d bytes, in %s", r.Tags, r.MRRS, r.Mode)
	if r.Stretch > 0 {
		fmt.Fprintf(w, " stretched %d times; the round trip of the loopback interface is %v", r.Stretch, time.Duration(r.Loopback))
	}
	fmt.Fprintf(w, "\nrecorded %s %v, on the system at %v %v (%+.2f %%)\n\n", r.Comparison.Unit, r.Recorded, r.NativeRTT, r.Native, 100*r.Reproduction())
	t := newTable(w, "RTT", r.Comparison.Unit, "SYSTEM", "MODEL", "DEVIATION", "MODEL, PHYSICAL GPU")
	for i := range r.Points[1:] {
		p := &r.Points[1+i]
		t.row(p.RTT, p.Unit.Round(time.Microsecond), portion(p.System), portion(p.Model), fmt.Sprintf("%+.2f points", 100*p.Deviation()), portion(p.Physical))
	}
	t.flush()
	fmt.Fprintln(w, "\nSYSTEM is measured. MODEL is the prediction with the costs of the software GPU per round trip:")
	c := playback.Costs()
	fmt.Fprintf(w, "launch to start %.3g x dRTT, copy to the device %.3g x dRTT or Equation 1, return of a wait %.3g x dRTT, everything else 0.\n",
		c.Launch.Slope, c.HtoD.Slope, c.Sync.Slope)
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
}

func portion(v float64) string { return fmt.Sprintf("%.2f %%", 100*v) }
