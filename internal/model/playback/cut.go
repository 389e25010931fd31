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
	now := make([]int32, len(w.Ops))                       // the index of each operation in the part
	for i := range w.Ops {
		op := &w.Ops[i]
		now[i] = none
		if op.Call != none && int(op.Call) < n || op.Call == none && op.Start < until {
			now[i] = int32(len(out.Ops))
			out.Ops = append(out.Ops, *op)
		}
	}
	renumber(&out, now)
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

// renumber leaves out what names an operation or a call that is not in the part, and gives
// the rest the operations' new indices.
func renumber(w *workload.Workload, now []int32) {
	op := func(i int32) int32 {
		if i < 0 {
			return i // none, or workload.Nothing
		}
		return now[i]
	}
	w.Calls = slices.Clone(w.Calls)
	for i := range w.Calls {
		c := &w.Calls[i]
		c.Event, c.Latest, c.Record = op(c.Event), op(c.Latest), none
	}
	// A nil list stays nil, because an empty one says that there is nothing to wait for.
	waits := func(all []workload.Wait) []workload.Wait {
		part := all[:0:0]
		for _, x := range all {
			if x.Op, x.On = op(x.Op), op(x.On); x.Op != none && x.On != none {
				part = append(part, x)
			}
		}
		return part
	}
	awaits := func(all []workload.Await) []workload.Await {
		part := all[:0:0]
		for _, x := range all {
			if x.On = op(x.On); int(x.Call) < len(w.Calls) && x.On != none {
				part = append(part, x)
			}
		}
		return part
	}
	w.Waits, w.Least, w.Most = waits(w.Waits), waits(w.Least), waits(w.Most)
	w.Awaits, w.MostAwaits = awaits(w.Awaits), awaits(w.MostAwaits)
	w.Handovers = slices.DeleteFunc(slices.Clone(w.Handovers), func(h workload.Handover) bool {
		return int(max(h.Call, h.After)) >= len(w.Calls)
	})
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
