package predict

import (
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// Change is a change of the program whose effect a replay computes.
type Change struct {
	// Graphs launches the work of a thread between two waits, and at most a step, as
	// one CUDA graph: the calls after the first one, and the host's time between
	// them, are gone, and a kernel costs as much as a node of a graph.
	Graphs bool
	// Pinned makes copies between host and device return at once, as those of pinned
	// memory do.
	Pinned bool
	// Batch is by how much the batch is larger: operations take and move as much more,
	// and the host does what it did. 0 means 1.
	Batch float64
}

// Validate returns an error for a batch out of range.
func (c Change) Validate() error {
	const most = 1 << 10
	if c.Batch < 0 || c.Batch > most {
		return fmt.Errorf("predict: a batch of %v times the recorded one: want above 0 and at most %d", c.Batch, most)
	}
	return nil
}

// scale returns the factor of the durations and sizes of operations.
func (c Change) scale() float64 {
	if c.Batch == 0 {
		return 1
	}
	return c.Batch
}

// WhatIf is the outcome of a change. Performance is work per time.
type WhatIf struct {
	Change
	// Native is the performance of the changed program at the native round trip, and
	// Disaggregated at the longer one, both relative to the recorded run.
	Native, Disaggregated float64
	// The ranges of both. A change can gain more than by the replay if the host takes no
	// time, so High can be above it.
	NativeRange, DisaggregatedRange Range
}

// WhatIf replays the workload with a change of the program. The ranges come from what
// widens those of predictions. With Change.Graphs all kernels are nodes of graphs.
func (p *Plan) WhatIf(s Setting, c Change, st *Stats) (WhatIf, error) {
	s.Change = c
	native, longer, err := p.changed(s)
	if err != nil {
		return WhatIf{}, err
	}
	out := WhatIf{c, native, longer, Range{Low: native, High: native}, Range{Low: longer, High: longer}}
	if busy := st.Utilisation(); p.idles(s, busy) {
		if err := p.widenByHost(s, &out, hostReason(busy)); err != nil {
			return WhatIf{}, err
		}
	}
	nodes, whole := st.GraphKernels, st.WholeGraphs
	if c.Graphs {
		nodes = st.Kernels
	}
	if nodes > 0 && s.Costs.GraphNode != s.Costs.Kernel {
		_, longer, err := p.changed(s.costlyNodes())
		if err != nil {
			return WhatIf{}, err
		}
		out.DisaggregatedRange.widen(out.Disaggregated, longer, nodesReason(nodes, whole, longer))
	}
	return out, nil
}

// widenByHost widens the ranges of a change by replays with parts of the host's time. The
// most that a change gives can lie between all of it and none: it can move the limit of a
// run from the host to the GPU.
func (p *Plan) widenByHost(s Setting, out *WhatIf, why string) error {
	for _, scale := range [...]float64{0.75, 0.5, 0.25, leastHost} {
		s.HostScale = scale
		native, longer, err := p.changed(s)
		if err != nil {
			return err
		}
		out.NativeRange.widen(out.Native, native, why)
		out.DisaggregatedRange.widen(out.Disaggregated, longer, why)
	}
	return nil
}

// changed returns the performance of a changed program at the native and at the longer
// round trip, relative to the recorded program's at the native one.
func (p *Plan) changed(s Setting) (native, longer float64, err error) {
	over, err := p.Run(s)
	if err != nil {
		return 0, 0, err
	}
	s.RTT = s.NativeRTT
	at, err := p.Run(s)
	scale := s.Change.scale()
	return scale * at.Relative, scale * over.Relative, err
}

// planSegments finds the calls that one CUDA graph could replace: for each call that
// launches work, the first one of its thread since the thread waited, or since the
// step began.
func (p *Plan) planSegments() []int32 {
	out := nones(len(p.calls))
	open := nones(len(p.w.Threads)) // by thread: the first call of its segment
	step := make([]int, len(p.w.Threads))
	for i := range p.w.Calls {
		c := &p.w.Calls[i]
		now := p.stepAt(c.Start)
		if now != step[c.Thread] {
			open[c.Thread], step[c.Thread] = none, now
		}
		captured := c.Kind == workload.Launch || c.Kind == workload.MemsetCall || c.Kind.IsCopy()
		if !captured || p.calls[i].waited {
			open[c.Thread] = none
			continue
		}
		if open[c.Thread] == none {
			open[c.Thread] = int32(i)
		}
		out[i] = open[c.Thread]
	}
	return out
}

// graphOf returns the call that launches the graph of call i in a replay with graphs,
// or none.
func (p *Plan) graphOf(rc *rttCosts, i int32) int32 {
	if !rc.change.Graphs || i == none {
		return none
	}
	return p.segments[i]
}

// duration returns the length of an operation with the change of a replay.
func (rc *rttCosts) duration(op *workload.Op) time.Duration {
	if scale := rc.change.scale(); scale != 1 {
		return time.Duration(float64(op.Dur) * scale)
	}
	return op.Dur
}
