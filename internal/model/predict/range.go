package predict

import (
	"fmt"
	"slices"
	"strings"
)

// Range is a prediction with what is uncertain about it.
type Range struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	// Why has a reason for each part of the range that is not negligible.
	Why []string `json:"why"`
}

// negligible is the part of a range that is not worth a word.
const negligible = 0.005

// widen makes the range include a value. The reason counts if the value is not negligibly
// far from replay, the prediction itself.
func (g *Range) widen(replay, to float64, why string) {
	g.Low, g.High = min(g.Low, to), max(g.High, to)
	if (to < replay-negligible || to > replay+negligible) && !slices.Contains(g.Why, why) {
		g.Why = append(g.Why, why)
	}
}

// Wide reports whether the ends differ by more than is negligible.
func (g Range) Wide() bool { return g.High-g.Low > negligible }

// Suitability says in words what the range means, and with which reasons its ends mean
// different things.
func (g Range) Suitability() (text, doubt string) {
	text = Suitability(g.High)
	if low := Suitability(g.Low); low != text {
		return fmt.Sprintf("between %q and %q", low, text), strings.Join(g.Why, "; ")
	}
	return text, ""
}

// leastHost scales the host's time to next to nothing. Zero would stand for no scale.
const leastHost = 0.01

// withoutHost takes all of the time that the host computes for the profiler's.
func (s Setting) withoutHost() Setting {
	s.HostScale = leastHost
	return s
}

// costlyNodes has the nodes of CUDA graphs cost as much as other kernels.
func (s Setting) costlyNodes() Setting {
	s.Costs.GraphNode = s.Costs.Kernel
	return s
}

// Reasons of ranges.
func idleReason(busy float64) string {
	return fmt.Sprintf("the GPU is busy %.0f %% of the time, and idle time absorbs latency, but a part of it is the profiler's own; the lower end is the additive estimate, for a GPU that never idles, or a replay in which the host takes no time of its own. Measure a step without the profiler and give --native-step", 100*busy)
}

// scheduleReason is idleReason for a workload whose times are those of a schedule.
const scheduleReason = "the trace has no times of the run, and the idle time that absorbs latency is that of a schedule of its nodes; the lower end is the additive estimate, for a GPU that never idles, or a replay in which the host takes no time of its own"

func hostReason(busy float64) string {
	return fmt.Sprintf("the GPU is busy %.0f %% of the time, and a part of the host's time is the profiler's own; the ends are those of replays with all, a part or none of the host's time. Measure a step without the profiler and give --native-step", 100*busy)
}

func rankIdleReason(busy float64) string {
	return fmt.Sprintf("the GPU of a rank is busy %.0f %% of the time, without its waiting for other ranks, and idle time absorbs latency, but a part of it is the profilers' own; the lower end is a replay in which the hosts take no time of their own", 100*busy)
}

// nodesReason is for kernels in graphs, whole of which are graphs that were recorded without
// their kernels.
func nodesReason(kernels, whole int, low float64) string {
	if whole == kernels {
		return fmt.Sprintf("%d CUDA graphs were recorded without their kernels: %.1f %% if each graph costs as much as one kernel outside of graphs, and less if each of its kernels does", whole, 100*low)
	}
	return fmt.Sprintf("%d kernels run in CUDA graphs: %.1f %% if each of them costs as much as other kernels; no measurement says that they do not", kernels, 100*low)
}

// waitsReason is for dependencies between streams and threads of which the trace has no record.
const waitsReason = "the trace does not tell for which event each stream waits, or whether the default stream and others wait for each other; the ends are those of replays with the fewest and with the most waits that its times allow. Record the waits (enable_cuda_sync_events of the PyTorch profiler, or Nsight Systems)"

// orderReason is for threads that come to a device in another order than in the recording.
const orderReason = "over a longer round trip the threads come to the GPU in another order; the ends are those of replays with that order and with the recorded one"

// idles reports whether idle time of the GPU may not be the run's own.
func (p *Plan) idles(s Setting, busy float64) bool {
	return s.HostScale == 0 && (busy < idleGPU || p.w.Scheduled)
}

// Range returns the range of a prediction r with setting s. Four things that a trace may
// not tell widen it: how much of the idle time that absorbs latency is the profiler's own
// (unless HostScale removes it), or that of a schedule, what a node of a CUDA graph costs,
// in which order threads come to the GPU, and which work waits for which. Only the last two
// have an end above the replay.
func (p *Plan) Range(s Setting, r *Result, st *Stats) (Range, error) {
	g, err := p.rangeOfWaits(s, r, st)
	if err != nil {
		return g, err
	}
	least, most := p.alternatives()
	for _, other := range [...]*Plan{least, most} {
		if err := other.widen(&g, s, r); err != nil {
			return g, err
		}
	}
	return g, nil
}

// Ranges returns the range of each of several predictions, as Range does. It holds one plan with other
// waits at a time, which saves memory.
func (p *Plan) Ranges(settings []Setting, results []Result, st *Stats) ([]Range, error) {
	out := make([]Range, len(settings))
	for i := range out {
		var err error
		if out[i], err = p.rangeOfWaits(settings[i], &results[i], st); err != nil {
			return nil, err
		}
	}
	for _, with := range [...]func() *Plan{p.withLeast, p.withMost} {
		other := with()
		for i := range out {
			if err := other.widen(&out[i], settings[i], &results[i]); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// widen makes the range of a prediction include that of p, which has other waits. A nil p is one
// that would be the same.
func (p *Plan) widen(g *Range, s Setting, r *Result) error {
	if p == nil {
		return nil
	}
	o, err := p.Run(s)
	if err == nil {
		g.widen(r.Relative, o.Relative, waitsReason)
	}
	return err
}

// rangeOfWaits returns the range with the waits of the plan.
func (p *Plan) rangeOfWaits(s Setting, r *Result, st *Stats) (Range, error) {
	g := Range{Low: r.Relative, High: r.Relative}
	if busy := st.Utilisation(); p.idles(s, busy) {
		without, err := p.Run(s.withoutHost())
		if err != nil {
			return g, err
		}
		why := idleReason(busy)
		if p.w.Scheduled {
			why = scheduleReason
		}
		g.widen(r.Relative, min(r.Relative, r.Additive.Relative, without.Relative), why)
	}
	if st.GraphKernels > 0 && s.Costs.GraphNode != s.Costs.Kernel {
		nodes, err := p.Run(s.costlyNodes())
		if err != nil {
			return g, err
		}
		g.widen(r.Relative, min(r.Relative, nodes.Relative), nodesReason(st.GraphKernels, st.WholeGraphs, nodes.Relative))
	}
	if p.arrivals != nil && !s.RecordedOrder {
		recorded := s
		recorded.RecordedOrder = true
		o, err := p.Run(recorded)
		if err != nil {
			return g, err
		}
		g.widen(r.Relative, o.Relative, orderReason)
	}
	return g, nil
}
