package cli

import (
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/predict"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// print writes the report as text.
func (a *analysis) print(out io.Writer, top int, plot, colours bool) {
	w := a.plan.Workload()
	device := "unnamed GPU"
	if len(w.Devices) > 0 {
		device = printable(w.Devices[0])
	}
	fmt.Fprintf(out, "%s: %s, %s, %d operations on %d streams, %d calls on %d threads, %v\n",
		filepath.Base(a.file), w.Format, device, len(w.Ops), len(w.Streams), len(w.Calls), len(w.Threads), ms(w.Span()))
	for _, n := range append(w.Report.Notes, a.notes...) {
		fmt.Fprintf(out, "note: %s\n", n)
	}
	if k := a.setting.HostScale; k != 0 {
		fmt.Fprintf(out, "note: the host's time is scaled by %.3f, so that the native run takes as long as without the profiler\n", k)
	}
	r := &a.result
	fmt.Fprintf(out, "\n%s\n", a.verdict.Summary)
	for _, why := range a.span.Why {
		fmt.Fprintf(out, "range: %s.\n", why)
	}
	fmt.Fprintln(out)
	t := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "replay, %s costs\t%.2f %%\t%s\n", a.setting.Costs.Name, 100*r.Relative, r.Basis)
	fmt.Fprintf(t, "whole trace\t%.2f %%\t%v -> %v\n", 100*r.Whole.Relative(), ms(r.Whole.Recorded), ms(r.Whole.Replayed))
	fmt.Fprintf(t, "paper's additive estimate\t%.2f %%\t%v of GPU time + %v, without absorption\n", 100*r.Additive.Relative, ms(r.Additive.GPUTime), ms(r.Additive.Added))
	t.Flush()
	a.limit.print(out)
	a.printChanges(out)
	a.printSteps(out)
	a.printBreakdown(out, top)
	a.printCritical(out, top)
	a.printCDF(out)
	a.printSweep(out)
	if plot {
		fmt.Fprintf(out, "\n%s\n", plotSweep(a.sweep, colours))
	}
	fmt.Fprintf(out, "\nadvice\n")
	for _, s := range a.verdict.Advice {
		fmt.Fprintf(out, "  - %s\n", s)
	}
}

const maxStepLines = 12

// copyNames are the names of predict.Stats.Copies.
var copyNames = [...]string{"copies to the device", "copies to the host", "copies on the device", "other copies"}

func (a *analysis) printSteps(out io.Writer) {
	if len(a.result.Steps) == 0 {
		return
	}
	t := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\nstep\trecorded\treplayed\t\t\n")
	for i, s := range a.result.Steps {
		if i == maxStepLines {
			fmt.Fprintf(t, "%d more\t\t\t\t\n", len(a.result.Steps)-i)
			break
		}
		relative := "no GPU work"
		if s.Operations > 0 {
			relative = fmt.Sprintf("%.2f %%", 100*predict.Span{Recorded: s.Recorded, Replayed: s.Replayed}.Relative())
		}
		fmt.Fprintf(t, "%s\t%v\t%v\t%s\t\n", short(s.Name), ms(s.Recorded), ms(s.Replayed), relative)
	}
	t.Flush()
}

func (a *analysis) printBreakdown(out io.Writer, top int) {
	s := &a.stats
	t := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintf(t, "\nwhere the time went\tnumber\ttime\tshare\t\n")
	line := func(name string, n int, d time.Duration, of time.Duration, more string) {
		if n > 0 {
			fmt.Fprintf(t, "%s\t%d\t%v\t%.1f %%\t%s\n", name, n, ms(d), percent(d, of), more)
		}
	}
	line("kernels", s.Kernels, s.KernelTime, s.GPUTime, fmt.Sprintf("mean %v, %.1f %% short (up to %v)", s.MeanKernel(), 100*s.ShortShare(), predict.ShortKernel))
	for i, name := range copyNames {
		c := s.Copies[i]
		line(name, c.Count, c.Time, s.GPUTime, rate(c))
	}
	line("memsets", s.Memsets.Count, s.Memsets.Time, s.GPUTime, rate(s.Memsets))
	fmt.Fprintf(t, "GPU busy\t\t%v\t%.1f %%\tof the time from its first to its last operation\n", ms(s.Busy), 100*s.Utilisation())
	line("host waits", s.Syncs, s.SyncWait, a.result.Whole.Recorded, "in synchronisations of all threads, of the whole trace")
	line("host blocked", s.Blocked, s.BlockedWait, a.result.Whole.Recorded, "in enqueuing calls of all threads, of the whole trace")
	for i, k := range s.ByName {
		if i == 0 && top > 0 {
			fmt.Fprintf(t, "\nkernel\tnumber\ttime\tshare\tmean\n")
		}
		if i >= top {
			break
		}
		fmt.Fprintf(t, "%s\t%d\t%v\t%.1f %%\t%v\n", short(k.Name), k.Count, ms(k.Time), percent(k.Time, s.KernelTime), k.Mean())
	}
	t.Flush()
}

func rate(c predict.CopyStats) string {
	if c.Time <= 0 {
		return c.Bytes.String()
	}
	return fmt.Sprintf("%v at %v", c.Bytes, perf.BytesPerSecond(float64(c.Bytes)/c.Time.Seconds()))
}

func (a *analysis) printCDF(out io.Writer) {
	if len(a.stats.Durations) == 0 {
		return
	}
	t := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\nkernels up to\tby number\tby time\t\n")
	for _, us := range []int{1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000} {
		p := predict.At(a.stats.Durations, time.Duration(us)*time.Microsecond)
		fmt.Fprintf(t, "%v\t%.1f %%\t%.1f %%\t\n", p.Duration, 100*p.ByNumber, 100*p.ByTime)
		if p.ByNumber >= 1 {
			break
		}
	}
	t.Flush()
}

func (a *analysis) printSweep(out io.Writer) {
	if len(a.sweep) == 0 {
		return
	}
	t := tabwriter.NewWriter(out, 0, 4, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\nround trip\treplay\tlower end\tadditive\t\n")
	for i, r := range a.sweep {
		fmt.Fprintf(t, "%v\t%.2f %%\t%.2f %%\t%.2f %%\t\n", r.RTT, 100*r.Relative, 100*a.spans[i].Low, 100*r.Additive.Relative)
	}
	t.Flush()
}

func percent(a, b time.Duration) float64 {
	if b <= 0 {
		return 0
	}
	return 100 * float64(a) / float64(b)
}

// ms formats a duration with a fixed unit, so that columns can be compared.
func ms(d time.Duration) string { return fmt.Sprintf("%.3f ms", float64(d)/float64(time.Millisecond)) }

// short truncates a name, such as that of a C++ kernel with its arguments.
func short(name string) string {
	const width = 60
	name = strings.Join(strings.Fields(printable(name)), " ")
	if r := []rune(name); len(r) > width {
		name = string(r[:width-3]) + "..."
	}
	return name
}

// printable replaces control characters: a trace is not trusted.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

type resultJSON struct {
	RTT        int64   `json:"rtt_ns"`
	Delta      int64   `json:"delta_rtt_ns"`
	Relative   float64 `json:"relative"`
	Low        float64 `json:"low,omitempty"` // the lower end of the range; 0: not computed
	Basis      string  `json:"basis"`
	Idle       int     `json:"steps_without_gpu_work"`
	Recorded   int64   `json:"whole_recorded_ns"`
	Replayed   int64   `json:"whole_replayed_ns"`
	Charged    int64   `json:"charged_ns"`
	Exposed    int64   `json:"exposed_ns"`
	Additive   float64 `json:"additive"`
	GPUTime    int64   `json:"gpu_time_ns"`
	AdditiveNS int64   `json:"additive_added_ns"`
}

type countJSON struct {
	Name  string `json:"name"`
	Count int    `json:"count"`
	Bytes int64  `json:"bytes,omitempty"`
	Time  int64  `json:"time_ns"`
}

type analysisJSON struct {
	File        string             `json:"file"`
	Format      string             `json:"format"`
	Devices     []string           `json:"devices"`
	Events      int64              `json:"events"`
	Dropped     int64              `json:"dropped"`
	Drops       []workload.Drop    `json:"drops"`
	Notes       []string           `json:"notes"`
	Doubts      []string           `json:"doubts"`
	Operations  int                `json:"operations"`
	Calls       int                `json:"calls"`
	Costs       string             `json:"costs"`
	NativeRTT   int64              `json:"native_rtt_ns"`
	HostScale   float64            `json:"host_scale,omitempty"`
	Prediction  resultJSON         `json:"prediction"`
	Range       predict.Range      `json:"range"` // of the prediction
	Steps       []predict.StepTime `json:"steps"`
	Sweep       []resultJSON       `json:"sweep"`
	Limit       *limitJSON         `json:"limit,omitempty"`   // for --at-least
	WhatIf      []whatIfJSON       `json:"what_if,omitempty"` // for --what-if
	MeanKernel  int64              `json:"mean_kernel_ns"`
	ShortShare  float64            `json:"short_kernel_share"`
	Utilisation float64            `json:"gpu_utilisation"`
	Time        []countJSON        `json:"time"`
	Kernels     []countJSON        `json:"kernels"`
	Path        []pathJSON         `json:"critical_path"`
	ByRange     []pathJSON         `json:"critical_path_by_range,omitempty"`
	CDF         []predict.CDFPoint `json:"kernel_durations"`
	Summary     string             `json:"summary"`
	Doubt       string             `json:"doubt,omitempty"` // why the summary may not hold
	Advice      []string           `json:"advice"`
}

func resultOf(r *predict.Result) resultJSON {
	return resultJSON{
		RTT: r.RTT.Nanoseconds(), Delta: r.Delta.Nanoseconds(), Relative: r.Relative, Basis: r.Basis, Idle: r.Idle,
		Recorded: r.Whole.Recorded.Nanoseconds(), Replayed: r.Whole.Replayed.Nanoseconds(),
		Charged: r.Charged.Nanoseconds(), Exposed: r.Exposed.Nanoseconds(),
		Additive: r.Additive.Relative, GPUTime: r.Additive.GPUTime.Nanoseconds(), AdditiveNS: r.Additive.Added.Nanoseconds(),
	}
}

// json returns the report for --json.
func (a *analysis) json(top int) analysisJSON {
	w, s := a.plan.Workload(), &a.stats
	out := analysisJSON{
		File: a.file, Format: w.Format, Devices: w.Devices, Events: w.Report.Events, Dropped: w.Report.Dropped(), Notes: append(w.Report.Notes, a.notes...), Doubts: w.Report.Doubts,
		Operations: len(w.Ops), Calls: len(w.Calls), Costs: a.setting.Costs.Name, NativeRTT: a.setting.NativeRTT.Nanoseconds(), HostScale: a.setting.HostScale,
		Prediction: resultOf(&a.result), Range: a.span, MeanKernel: s.MeanKernel().Nanoseconds(), ShortShare: s.ShortShare(), Utilisation: s.Utilisation(),
		Summary: a.verdict.Summary, Doubt: a.verdict.Doubt, Advice: a.verdict.Advice,
		Limit: a.limit, WhatIf: a.whatIf, Drops: w.Report.Drops, Steps: a.result.Steps, CDF: s.Durations,
	}
	out.Prediction.Low = a.span.Low
	for i := range a.sweep {
		one := resultOf(&a.sweep[i])
		one.Low = a.spans[i].Low
		out.Sweep = append(out.Sweep, one)
	}
	for _, p := range a.byRange[:min(top, len(a.byRange))] {
		out.ByRange = append(out.ByRange, pathJSON{p.Name, p.Count, p.Time.Nanoseconds(), p.Added.Nanoseconds()})
	}
	for _, p := range a.path[:min(top, len(a.path))] {
		out.Path = append(out.Path, pathJSON{p.Name, p.Count, p.Time.Nanoseconds(), p.Added.Nanoseconds()})
	}
	out.Time = []countJSON{{"kernels", s.Kernels, 0, s.KernelTime.Nanoseconds()}}
	for i, name := range copyNames {
		c := s.Copies[i]
		out.Time = append(out.Time, countJSON{name, c.Count, int64(c.Bytes), c.Time.Nanoseconds()})
	}
	out.Time = append(out.Time,
		countJSON{"memsets", s.Memsets.Count, int64(s.Memsets.Bytes), s.Memsets.Time.Nanoseconds()},
		countJSON{"synchronisations", s.Syncs, 0, s.SyncWait.Nanoseconds()},
		countJSON{"blocked calls", s.Blocked, 0, s.BlockedWait.Nanoseconds()})
	for _, k := range s.ByName[:min(top, len(s.ByName))] {
		out.Kernels = append(out.Kernels, countJSON{k.Name, k.Count, 0, k.Time.Nanoseconds()})
	}
	return out
}
