package predict

import "fmt"

// Range is a prediction with what is uncertain about it. High is the replay.
type Range struct {
	Low  float64 `json:"low"`
	High float64 `json:"high"`
	// Why has a reason for each part of the range that is not negligible.
	Why []string `json:"why"`
}

// negligible is the part of a range that is not worth a word.
const negligible = 0.005

// Range returns the range of a prediction r with setting s. Two things that a trace
// cannot tell widen it: how much of the idle time that absorbs latency is the
// profiler's own (unless HostScale removes it), and what a node of a CUDA graph costs.
func (p *Plan) Range(s Setting, r *Result, st *Stats) (Range, error) {
	g := Range{Low: r.Relative, High: r.Relative}
	if busy := st.Utilisation(); s.HostScale == 0 && busy < idleGPU && r.Additive.Relative < r.Relative-negligible {
		g.Low = r.Additive.Relative
		g.Why = append(g.Why, fmt.Sprintf("the GPU is busy %.0f %% of the time, and idle time absorbs latency, but a part of it is the profiler's own; the lower end is the additive estimate, for a GPU that never idles. Measure a step without the profiler and give --native-step", 100*busy))
	}
	if st.GraphKernels > 0 && s.Costs.GraphNode != s.Costs.Kernel {
		s.Costs.GraphNode = s.Costs.Kernel
		nodes, err := p.Run(s)
		if err != nil {
			return g, err
		}
		if nodes.Relative < r.Relative-negligible {
			g.Low = min(g.Low, nodes.Relative)
			g.Why = append(g.Why, fmt.Sprintf("%d kernels run in CUDA graphs: %.1f %% if each of them costs as much as other kernels; no measurement says that they do not", st.GraphKernels, 100*nodes.Relative))
		}
	}
	return g, nil
}
