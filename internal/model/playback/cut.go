package playback

import (
	"cmp"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// Cut returns the part of a workload up to the end of its first steps training
// steps, and not longer than limit; 0 stands for no bound. The part
// contains all operations launched until then. Cut returns a short workload
// unchanged, and otherwise one that shares no slice that is written to.
func Cut(w *workload.Workload, steps int, limit time.Duration) *workload.Workload {
	until := w.Span()
	if steps > 0 && steps < len(w.Steps) {
		until = w.Steps[steps-1].End()
	}
	if limit > 0 && limit < until {
		until = limit
		// Whole steps, if there is one.
		for _, s := range w.Steps {
			if s.End() <= limit {
				until = s.End()
			}
		}
	}
	if until >= w.Span() {
		return w
	}
	out := *w
	// Calls are sorted by their start, so those that stay keep their index.
	n, _ := slices.BinarySearchFunc(w.Calls, until, func(c workload.Call, t time.Duration) int { return cmp.Compare(c.Start, t) })
	out.Calls = slices.Clip(w.Calls[:n])
	out.Ops, out.Steps = nil, nil
	out.Behind, out.Events, out.EventWaits = nil, nil, nil // the system keeps the recorded order
	for i := range w.Ops {
		op := &w.Ops[i]
		if op.Call != none && int(op.Call) < n || op.Call == none && op.Start < until {
			out.Ops = append(out.Ops, *op)
		}
	}
	for _, s := range w.Steps {
		if s.End() <= until {
			out.Steps = append(out.Steps, s)
		}
	}
	if len(out.Ops) == 0 {
		return w // nothing to replay before that
	}
	return &out
}

// Traffic returns how many bytes a replay of the workload moves between host
// and GPU: each byte is moved, so large traces take long.
func Traffic(w *workload.Workload) int64 {
	var sum int64
	for i := range w.Ops {
		if op := &w.Ops[i]; op.Kind == workload.CopyHtoD || op.Kind == workload.CopyDtoH {
			sum += min(max(op.Bytes, 0), maxCopy)
		}
	}
	return sum
}
