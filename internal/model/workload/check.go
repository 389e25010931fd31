package workload

import (
	"fmt"
	"time"
)

// Thresholds of the checks.
const (
	roundedTime   = time.Microsecond // traces of 2021 count whole microseconds
	overlapShare  = 0.10             // programmatic dependent launches overlap by less
	nestedShare   = 0.05             // and do not end before what they depend on
	skewedShare   = 0.05
	unnamedShare  = 0.05
	silenceShare  = 0.50
	silenceLength = 100 * time.Millisecond
)

// MaxCopyRate is above what any link between host and GPU carries, in bytes per
// second: NVLink-C2C has 450 GB/s.
const MaxCopyRate = 500e9

// check looks for what no recording of one process on working clocks shows. It
// fails where nothing can be said at all, and notes doubts otherwise.
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
		note("%d of %d operations begin before the call that launched them: the clocks of host and GPU differ in this trace", n, len(w.Ops))
	}
	w.checkCopies()
	w.checkCalls()
	w.noteOrphans()
	w.noteSilence()
	return nil
}

// checkCopies: a copy that no link can carry has a wrong duration or size. Where
// durations are whole microseconds, one that took less may seem that fast.
func (w *Workload) checkCopies() {
	n := 0
	for i := range w.Ops {
		op := &w.Ops[i]
		if (op.Kind == CopyHtoD || op.Kind == CopyDtoH) && float64(op.Bytes) > MaxCopyRate*(op.Dur+roundedTime).Seconds() {
			n++
		}
	}
	if n > 0 {
		w.Report.Doubt("%d copies between host and GPU would have been faster than %.0f GB/s: their durations or sizes are wrong", n, MaxCopyRate/1e9)
	}
}

// checkCalls: without calls, or without their names, nothing says what waited.
func (w *Workload) checkCalls() {
	if len(w.Calls) == 0 {
		w.Report.Doubt("the trace holds no calls of the host, so that nothing says which gaps would absorb latency: they are kept as they are")
		return
	}
	unnamed := 0
	for i := range w.Calls {
		if w.Calls[i].Name == 0 {
			unnamed++
		}
	}
	if float64(unnamed) > unnamedShare*float64(len(w.Calls)) {
		w.Report.Doubt("%d of %d calls of the host have no name, so that nothing says which of them launched work and which waited", unnamed, len(w.Calls))
	}
}

// checkOverlap: a stream runs one operation at a time. Branches of a graph may
// be recorded on one stream; they are left out.
func (w *Workload) checkOverlap(total time.Duration) {
	ends := make([]time.Duration, len(w.Streams))
	var n, nested int
	var sum time.Duration
	for i := range w.Ops {
		op := &w.Ops[i]
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
		w.Report.Doubt("%d of %d operations begin before the one before them on their stream has ended, by %v in all: a duration is wrong, or several processes are in one trace", n, len(w.Ops), sum.Round(time.Microsecond))
	}
}

func (w *Workload) noteOrphans() {
	r := &w.Report
	if r.Uncorrelated > 0 {
		r.Note("%d of %d operations have no correlation number: what launched them is not known, and they follow the operation before them", r.Uncorrelated, len(w.Ops))
	}
	if n := r.Orphans - r.Uncorrelated; n > 0 {
		r.Note("%d of %d operations were launched before the recording began, or their launch is missing", n, len(w.Ops))
	}
}

// noteSilence finds the longest time in which nothing was recorded.
func (w *Workload) noteSilence() {
	var until, longest, from time.Duration
	calls := w.Calls
	for i := 0; i <= len(w.Ops); i++ {
		for len(calls) > 0 && (i == len(w.Ops) || calls[0].Start <= w.Ops[i].Start) {
			if gap := calls[0].Start - until; gap > longest {
				longest, from = gap, until
			}
			until, calls = max(until, calls[0].End()), calls[1:]
		}
		if i == len(w.Ops) {
			break
		}
		if gap := w.Ops[i].Start - until; gap > longest {
			longest, from = gap, until
		}
		until = max(until, w.Ops[i].End())
	}
	if longest > silenceLength && float64(longest) > silenceShare*float64(until) {
		w.Report.Note("nothing is recorded for %v of %v, from %v on: if the run did not pause there, what is said of that step or of the whole trace is too good",
			longest.Round(time.Millisecond), until.Round(time.Millisecond), from.Round(time.Millisecond))
	}
}
