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
}

// WhatIf replays the workload with a change of the program.
func (p *Plan) WhatIf(s Setting, c Change) (WhatIf, error) {
	s.Change = c
	longer, err := p.Run(s)
	if err != nil {
		return WhatIf{}, err
	}
	s.RTT = s.NativeRTT
	native, err := p.Run(s)
	if err != nil {
		return WhatIf{}, err
	}
	return WhatIf{c, c.scale() * native.Relative, c.scale() * longer.Relative}, nil
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
		captured := c.Kind == workload.Launch || c.Kind == workload.MemsetCall || c.Kind == workload.CopyCall
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
