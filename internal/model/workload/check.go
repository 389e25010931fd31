package workload

import (
	"fmt"
	"time"
)

// Thresholds of the checks.
const (
	roundedTime   = time.Microsecond      // resolution of traces of 2021
	fineTime      = 100 * time.Nanosecond // resolution of a GPU's clock in other traces
	overlapShare  = 0.10                  // programmatic dependent launches overlap by less
	nestedShare   = 0.05                  // and end after the operation they depend on
	skewedShare   = 0.05
	unnamedShare  = 0.05
	lostShare     = 0.10 // launches whose operations may be missing, and the reverse
	emptyShare    = 0.10 // kernels without a duration
	silenceShare  = 0.50
	silenceLength = 100 * time.Millisecond
	processShare  = 0.01 // of the operations' time
)

// MaxCopyRate is above the rate of any link between host and GPU, in bytes per
// second: NVLink-C2C has 450 GB/s.
const MaxCopyRate = 500e9

// check looks for contradictions that a recording of one process with correct
// clocks does not contain. It adds doubts to the report, and fails if no
// prediction is possible.
func (w *Workload) check() error {
	var total time.Duration
	for i := range w.Ops {
		total += w.Ops[i].Dur
	}
	if total == 0 {
		return fmt.Errorf("workload: none of the trace's %d operations has a duration", len(w.Ops))
	}
	w.checkOverlap(total)
	if n := w.Report.Skewed; n > 0 {
		note := w.Report.Note
		if float64(n) > skewedShare*float64(len(w.Ops)) {
			note = w.Report.Doubt
		}
		note("%d of %d operations begin before the call that launched them: the clocks of host and GPU disagree in this trace", n, len(w.Ops))
	}
	w.checkProcesses(total)
	w.checkGraphs()
	w.checkCopies()
	w.checkKernels()
	w.checkCalls()
	w.checkOrphans()
	w.checkSilence()
	return nil
}

// checkCopies finds copies that are faster than any link, whose duration or size
// must be wrong. It allows for durations rounded to whole microseconds.
func (w *Workload) checkCopies() {
	n := 0
	for _, op := range w.Ops {
		if (op.Kind == CopyHtoD || op.Kind == CopyDtoH) && float64(op.Bytes) > MaxCopyRate*(op.Dur+roundedTime).Seconds() {
			n++
		}
	}
	if n > 0 {
		w.Report.Doubt("%d copies between host and GPU exceed %.0f GB/s: their durations or sizes are wrong", n, MaxCopyRate/1e9)
	}
}

// checkKernels finds traces in which many kernels take no time, which no GPU can do.
func (w *Workload) checkKernels() {
	kernels, empty := 0, 0
	for i := range w.Ops {
		if w.Ops[i].Kind.IsKernel() {
			kernels++
			if w.Ops[i].Dur == 0 {
				empty++
			}
		}
	}
	if float64(empty) > emptyShare*float64(kernels) {
		w.Report.Doubt("%d of %d kernels have no duration", empty, kernels)
	}
}

// checkGraphs finds graphs that were recorded as one operation each.
func (w *Workload) checkGraphs() {
	n := 0
	for i := range w.Ops {
		if w.Ops[i].Kind == WholeGraph {
			n++
		}
	}
	if n > 0 {
		w.Report.Doubt("%d CUDA graphs were recorded as a whole, so the trace does not tell how many kernels and copies they have, which a longer round trip may slow: record each node (nsys profile --cuda-graph-trace=node)", n)
	}
}

// checkCalls finds traces without calls or without the names of calls.
func (w *Workload) checkCalls() {
	if len(w.Calls) == 0 {
		w.Report.Doubt("the trace holds no calls of the host, so it does not show which gaps would absorb latency: the replay keeps all of them")
		return
	}
	unnamed := 0
	for i := range w.Calls {
		if w.Calls[i].Name == 0 {
			unnamed++
		}
	}
	if float64(unnamed) > unnamedShare*float64(len(w.Calls)) {
		w.Report.Doubt("%d of %d calls of the host have no name, so the trace does not show which of them launched work and which waited", unnamed, len(w.Calls))
	}
}

// checkLost finds traces without the operations of many launches. launched tells
// which calls have the correlation number of an operation.
func (w *Workload) checkLost(launched []bool) {
	launches, lost := 0, 0
	for i := range w.Calls {
		if k := w.Calls[i].Kind; k == Launch || k == GraphLaunch {
			launches++
			if !launched[i] {
				lost++
			}
		}
	}
	// Operations without a known launch may belong to these launches.
	if lost -= int(w.Report.Orphans); float64(lost) > lostShare*float64(launches) {
		w.Report.Incomplete = true
		w.Report.Doubt("%d of %d launches have no operation: part of the GPU's record is missing, or the launches were captured into graphs", lost, launches)
	}
}

// checkOverlap finds operations that overlap on one stream, which runs one at a
// time. It ignores graphs, whose branches may be recorded on one stream.
func (w *Workload) checkOverlap(total time.Duration) {
	ends := make([]time.Duration, len(w.Streams))
	var n, nested int
	var sum time.Duration
	for _, op := range w.Ops {
		if op.Kind == GraphKernel {
			continue
		}
		if end := ends[op.Stream]; op.Start < end-roundedTime {
			n++
			if op.End() < end {
				nested++
			}
			sum += min(end, op.End()) - op.Start
		}
		ends[op.Stream] = max(ends[op.Stream], op.End())
	}
	if float64(sum) > overlapShare*float64(total) || float64(nested) > nestedShare*float64(len(w.Ops)) {
		w.Report.Doubt("%d of %d operations begin before the previous one on their stream has ended, by %v in all: a duration is wrong, or the trace holds several processes", n, len(w.Ops), sum.Round(time.Microsecond))
	}
}

// checkOrphans finds operations without a launch. If they are many, the trace does not show
// which gaps before them would absorb latency.
func (w *Workload) checkOrphans() {
	r := &w.Report
	note := r.Note
	if float64(r.Orphans) > lostShare*float64(len(w.Ops)) {
		note = r.Doubt
	}
	if r.Uncorrelated > 0 {
		note("%d of %d operations have no correlation number: their launches are unknown, and each follows the previous operation on its stream", r.Uncorrelated, len(w.Ops))
	}
	if n := r.Orphans - r.Uncorrelated; n > 0 {
		note("%d of %d operations were launched before the recording began, or their launch is missing", n, len(w.Ops))
	}
}

// checkSilence finds a time without any record that is most of the trace.
func (w *Workload) checkSilence() {
	var until, longest, from time.Duration
	record := func(start, end time.Duration) {
		if gap := start - until; gap > longest {
			longest, from = gap, until
		}
		until = max(until, end)
	}
	calls := w.Calls
	for _, op := range w.Ops {
		for ; len(calls) > 0 && calls[0].Start <= op.Start; calls = calls[1:] {
			record(calls[0].Start, calls[0].End())
		}
		record(op.Start, op.End())
	}
	for _, c := range calls {
		record(c.Start, c.End())
	}
	if longest > silenceLength && float64(longest) > silenceShare*float64(until) {
		w.Report.Doubt("nothing is recorded for %v of %v, from %v on: unless the run paused there, the prediction for that step or for the whole trace is too good",
			longest.Round(time.Millisecond), until.Round(time.Millisecond), from.Round(time.Millisecond))
	}
}
