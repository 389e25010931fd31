package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/perf/paper"
	"github.com/dxpu-project/dxpu/internal/model/predict"
	"github.com/dxpu-project/dxpu/internal/model/trace"
)

// costsOf returns the costs of --costs: two names, or a file.
func costsOf(name string) (perf.Costs, error) {
	switch name {
	case "hardware":
		return paper.HardwareCosts(), nil
	case "paper":
		return perf.PaperCosts(), nil
	}
	f, err := os.Open(name)
	if err != nil {
		return perf.Costs{}, usagef("--costs %q: want hardware, paper, or a file of \"dxpu model fit\": %w", name, err)
	}
	defer func() { _ = f.Close() }()
	c, err := perf.ReadCosts(f)
	if err != nil {
		return c, fmt.Errorf("--costs %s: %w", name, err)
	}
	return c, nil
}

// modelFit are the flags of model fit.
type modelFit struct {
	predict  predictOptions
	measured []string
	write    string
}

func newModelFitCommand() *cobra.Command {
	o := &modelFit{}
	o.predict.quiet = true
	cmd := valueCommand(&cobra.Command{
		Use: "fit TRACE --measured RTT=STEP,...", Short: "Fit the cost of a kernel to measured steps of one's own GPU", Args: cobra.ExactArgs(1),
		Long: `Fit the cost of a kernel to measured training steps of one's own GPU.

The constants of "dxpu model predict" are fitted to the paper's V100s. With a trace
of a program and the time of its step over one or more longer round trips, this
command finds the cost of a kernel, fixed + slope x dRTT, with which the replay of
the trace comes closest to these times. Give --native-step, the time of a step
without the profiler and without an added round trip, because a profiler makes
steps longer. One round trip gives the slope alone. --write writes a file for
"dxpu model predict --costs FILE".`,
		Example: `  dxpu model fit run.json --native-step 177ms --measured 4.9us=182ms,6.8us=185ms --write h100.json
  dxpu model predict other.json --costs h100.json`,
	}, func(cmd *cobra.Command, args []string) (fitJSON, error) { return o.run(cmd.ErrOrStderr(), args[0]) }, printFit)
	f := cmd.Flags()
	s := &o.predict.setting
	s.NativeRTT, s.RTT = perf.NativeRTT, perf.NativeRTT
	rttVar(f, &s.NativeRTT, "native-rtt", "round trip of the recorded run")
	f.IntVar(&s.Requester.Tags, "tags", perf.V100.Tags, "number of requests that the GPU keeps in flight")
	f.IntVar(&o.predict.mrrs, "mrrs", int(perf.V100.MRRS), "Max_Read_Request_Size in bytes")
	durationVar(f, &o.predict.native, "native-step", 0, "measured time of a step without profiler and added round trip (default: as recorded)")
	f.StringSliceVar(&o.measured, "measured", nil, "round trips and the measured times of a step over them")
	f.StringVar(&o.write, "write", "", "write the costs to this file")
	f.StringVar(&o.predict.steps, "step-prefix", trace.DefaultStepPrefix, "prefix of the annotations that mark training steps")
	_ = cmd.MarkFlagRequired("measured")
	return cmd
}

type fittedJSON struct {
	RTT       int64   `json:"rtt_ns"`
	Measured  float64 `json:"measured"` // relative to the native step
	Predicted float64 `json:"predicted"`
}

type fitJSON struct {
	File   string       `json:"file"`
	Native int64        `json:"native_step_ns"`
	Costs  perf.Costs   `json:"costs"`
	Points []fittedJSON `json:"points"`
}

// run fits the costs and writes the file.
func (o *modelFit) run(errOut io.Writer, file string) (fitJSON, error) {
	p := &o.predict
	p.costs, p.peerRate = "paper", 1
	if _, err := p.prepare([]string{file}); err != nil {
		return fitJSON{}, err
	}
	plan, err := p.open(errOut, file)
	if err != nil {
		return fitJSON{}, err
	}
	s := p.setting
	if p.native > 0 {
		if s.HostScale, err = plan.CalibrateHost(s, p.native); err != nil {
			return fitJSON{}, err
		}
	}
	native, err := nativeStep(plan, s)
	if err != nil {
		return fitJSON{}, err
	}
	ms, err := o.measurements(native)
	if err != nil {
		return fitJSON{}, err
	}
	fit, err := plan.FitKernel(s, ms)
	if err != nil {
		return fitJSON{}, usage(err)
	}
	out := fitJSON{File: file, Native: native.Nanoseconds(), Costs: perf.KernelCosts("fitted", "dxpu model fit "+file, fit.Kernel)}
	for i, m := range ms {
		out.Points = append(out.Points, fittedJSON{m.RTT.Nanoseconds(), m.Relative, m.Relative + fit.Deviations[i]})
	}
	if o.write == "" {
		return out, nil
	}
	text, err := json.MarshalIndent(out.Costs, "", "  ")
	if err != nil {
		return out, fmt.Errorf("model fit: %w", err)
	}
	if err := atomicfile.Write(o.write, append(text, '\n')); err != nil {
		return out, fmt.Errorf("model fit: %w", err)
	}
	return out, nil
}

// nativeStep returns the mean time of a training step with GPU work, or of the active
// part of a trace without steps.
func nativeStep(plan *predict.Plan, s predict.Setting) (time.Duration, error) {
	r, err := plan.Run(s)
	if err != nil {
		return 0, err
	}
	return r.Covered.Recorded / time.Duration(max(len(r.Steps)-r.Idle, 1)), nil
}

// measurements parses --measured and divides by the native step.
func (o *modelFit) measurements(native time.Duration) ([]predict.Measurement, error) {
	var out []predict.Measurement
	for _, m := range o.measured {
		at, step, ok := strings.Cut(m, "=")
		if !ok {
			return nil, usagef("--measured %q: want a round trip and a time, such as 6.8us=185ms", m)
		}
		rtt, err := perf.ParseRTT(at)
		if err != nil {
			return nil, usagef("--measured %q: %w", m, err)
		}
		took, err := time.ParseDuration(step)
		if err != nil || took <= 0 {
			return nil, usagef("--measured %q: want the time of a step, such as 6.8us=185ms", m)
		}
		out = append(out, predict.Measurement{RTT: rtt, Relative: native.Seconds() / took.Seconds()})
	}
	slices.SortFunc(out, func(a, b predict.Measurement) int { return int(a.RTT - b.RTT) })
	return out, nil
}

func printFit(out io.Writer, r fitJSON) {
	k := r.Costs.Kernel
	fmt.Fprintf(out, "A kernel costs %v + %.3f x dRTT", k.Fixed, k.Slope)
	if k.Knee > 0 {
		fmt.Fprintf(out, ", below a dRTT of %v a straight line to zero", k.Knee)
	}
	fmt.Fprintf(out, ". Native step: %v.\n\n", ms(time.Duration(r.Native)))
	t := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "round trip\tmeasured\tfitted\tpoints\t\n")
	for _, p := range r.Points {
		fmt.Fprintf(t, "%v\t%.2f %%\t%.2f %%\t%+.2f\t\n", time.Duration(p.RTT), 100*p.Measured, 100*p.Predicted, 100*(p.Predicted-p.Measured))
	}
	t.Flush()
}
