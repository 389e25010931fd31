package workload

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Bounds of a correction of a GPU's clock. A larger error is damage, not a clock.
const (
	mostShift = 10 * time.Millisecond
	mostDrift = 1e-3
)

// align moves the times of the operations of each GPU where they contradict the host's: no
// operation starts before the call that launched it, and no call ends before the work for
// which it waited. Where nothing contradicts, it changes nothing.
func (w *Workload) align(awaited []Awaited, keys []key) {
	if w.Scheduled {
		return
	}
	clocks := w.clocks(awaited, keys)
	moved := false
	for _, g := range w.gpus() {
		line, ok := clocks[g].correction()
		switch {
		case !ok:
			w.Report.Doubt("the clock of GPU %d contradicts the host's by a distance that varies: calls end before the work for which they waited, or operations begin before their launch", g.device)
		case line != clockLine{}:
			w.move(g, line)
			moved = true
		}
	}
	if !moved {
		return
	}
	slices.SortStableFunc(w.Ops, func(x, y Op) int { return cmp.Compare(x.Start, y.Start) })
	w.Report.Skewed = 0
	for i := range w.Ops {
		if op := &w.Ops[i]; op.Call != None && op.Start < w.Calls[op.Call].Start {
			w.Report.Skewed++
		}
	}
}

// gpus returns the devices of all processes in the order of their streams.
func (w *Workload) gpus() (out []gpu) {
	seen := map[gpu]bool{}
	for _, s := range w.Streams {
		if g := (gpu{s.Process, s.Device}); !seen[g] {
			seen[g] = true
			out = append(out, g)
		}
	}
	return out
}

// move corrects the times of the operations of a GPU, and tells so.
func (w *Workload) move(g gpu, line clockLine) {
	var most time.Duration
	for i := range w.Ops {
		op := &w.Ops[i]
		if w.gpuOf(op.Stream) != g {
			continue
		}
		by, end := line.at(op.Start), op.End()
		op.Start += by
		op.Dur = max(end+line.at(end)-op.Start, 0)
		if by.Abs() > most.Abs() {
			most = by
		}
	}
	how, why := "at least %v late", "calls end before the work for which they waited"
	if most > 0 {
		how, why = "about %v early", "operations begin before their launch"
	}
	w.Report.Note("the clock of GPU %d is "+how+" against the host's, so that %s: its times were corrected by up to that much", g.device, most.Abs(), why)
}

// clocks returns what the trace tells of the clock of each GPU.
func (w *Workload) clocks(awaited []Awaited, keys []key) map[gpu]*clock {
	clocks := map[gpu]*clock{}
	of := map[uint64][]gpu{} // by process
	for _, g := range w.gpus() {
		clocks[g] = &clock{most: bounds{most: true}}
		of[g.process] = append(of[g.process], g)
	}
	streams := syncedStreams(awaited, keys, w.Calls)
	first, next := w.opsOfCalls()
	type queue struct{ thread, stream int32 }
	ends := map[queue]time.Duration{}                              // of the last work that a thread has launched on a stream
	since := slices.Repeat([]time.Duration{never}, len(w.Threads)) // and of all work since its last wait for the device
	for i := range w.Calls {
		c := &w.Calls[i]
		for o := first[i]; o != None; o = next[o] {
			op := &w.Ops[o]
			k := clocks[w.gpuOf(op.Stream)]
			k.least.add(c.Start, c.Start-op.Start)
			if op.Kind == CopyDtoH && (c.Kind == SyncCopy || c.Kind == CopyCall && op.Pageable) {
				k.most.add(c.Start, c.End()-op.End())
			}
			ends[queue{c.Thread, op.Stream}] = op.End()
			since[c.Thread] = max(since[c.Thread], op.End())
		}
		st, named := streams[int32(i)]
		switch {
		case c.Kind == StreamSync && named:
			if end, ok := ends[queue{c.Thread, st}]; ok {
				clocks[w.gpuOf(st)].most.add(c.Start, c.End()-end)
			}
		case c.Kind == DeviceSync && since[c.Thread] != never:
			// The trace does not tell which of several GPUs the thread waits for.
			if gpus := of[w.Threads[c.Thread].Process]; len(gpus) == 1 {
				clocks[gpus[0]].most.add(c.Start, c.End()-since[c.Thread])
			}
			since[c.Thread] = never
		}
	}
	return clocks
}

// opsOfCalls returns the first operation that each call launched, and for each operation the
// next one of its call.
func (w *Workload) opsOfCalls() (first, next []int32) {
	first, next = slices.Repeat([]int32{None}, len(w.Calls)), make([]int32, len(w.Ops))
	for i := int32(len(w.Ops)) - 1; i >= 0; i-- {
		if call := w.Ops[i].Call; call != None {
			first[call], next[i] = i, first[call]
		}
	}
	return first, next
}

func (w *Workload) gpuOf(stream int32) gpu {
	s := w.Streams[stream]
	return gpu{s.Process, s.Device}
}

const never time.Duration = math.MinInt64

// syncedStreams returns for which stream each synchronisation of one stream waits, as far as
// the trace tells.
func syncedStreams(awaited []Awaited, keys []key, calls []Call) map[int32]int32 {
	out := map[int32]int32{}
	for i := range awaited {
		a := &awaited[i]
		if a.Stream == None || a.Event != 0 || a.From != None {
			continue
		}
		if found := find(keys, a.Process, a.Corr); len(found) == 1 && calls[found[0].call].Kind == StreamSync {
			out[found[0].call] = a.Stream
		}
	}
	return out
}
