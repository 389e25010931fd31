package workload

import (
	"fmt"
	"time"
)

// Thresholds of the checks.
const (
	roundedTime   = time.Microsecond // traces of 2021 count whole microseconds
	overlapShare  = 0.10             // programmatic dependent launches overlap by less
	skewedShare   = 0.05
	silenceShare  = 0.50
	silenceLength = 100 * time.Millisecond
)

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
	w.noteOrphans()
	w.noteSilence()
	return nil
}

// checkOverlap: a stream runs one operation at a time. Branches of a graph may
// be recorded on one stream; they are left out.
func (w *Workload) checkOverlap(total time.Duration) {
	ends := make([]time.Duration, len(w.Streams))
	var n int
	var sum time.Duration
	for i := range w.Ops {
		op := &w.Ops[i]
		if op.Kind == GraphKernel {
			continue
		}
		if end := ends[op.Stream]; op.Start < end-roundedTime {
			n++
			sum += min(end, op.End()) - op.Start
		}
		ends[op.Stream] = max(ends[op.Stream], op.End())
	}
	if float64(sum) > overlapShare*float64(total) {
		w.Report.Doubt("%d of %d operations begin before the one before them on their stream has ended, by %v in all: durations are wrong, or several processes are in one trace", n, len(w.Ops), sum.Round(time.Microsecond))
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
