package workload

import (
	"slices"
	"time"
)

// owner is a process of the host: a trace names it in one of two ways, see Thread.
type owner struct{ process, owner uint64 }

func (w *Workload) ownerOf(thread int32) owner {
	t := &w.Threads[thread]
	return owner{t.Process, t.Owner}
}

// chooseSteps keeps the steps of one thread where several mark some: steps of two threads
// run at the same time, so one is not over when the next begins. It keeps those of the thread
// that launched most work, since the profiler repeats the names of steps for the GPU, or else
// of the one that marked the first. The work of the others, and of other processes, belongs
// to no step.
func (w *Workload) chooseSteps() {
	if len(w.Steps) == 0 {
		return
	}
	launched := make([]int, len(w.Threads))
	for i := range w.Ops {
		if call := w.Ops[i].Call; call != None {
			launched[w.Calls[call].Thread]++
		}
	}
	chosen, markers := w.Steps[0].Thread, map[int32]bool{}
	for _, s := range w.Steps {
		if s.Thread != None && launched[s.Thread] > 0 {
			markers[s.Thread] = true
			if chosen == None || launched[s.Thread] > launched[chosen] {
				chosen = s.Thread
			}
		}
	}
	w.Steps = slices.DeleteFunc(w.Steps, func(s Step) bool { return s.Thread != chosen })
	w.joinSteps()
	if len(markers) > 1 {
		w.Report.Doubt("%d threads mark training steps and launch work: the figure is that of the steps of one of them, without the work of the others", len(markers))
	}
	if chosen == None || launched[chosen] == 0 && !w.launchesWork(w.ownerOf(chosen), launched) {
		return // the steps are of a process that only controls others
	}
	delete(markers, chosen)
	beside := make([]bool, len(w.Threads))
	for th := range beside {
		beside[th] = markers[int32(th)] || w.ownerOf(int32(th)) != w.ownerOf(chosen)
	}
	if slices.Contains(beside, true) {
		w.beside, w.stepProcess = beside, w.Threads[chosen].Process
	}
}

// launchesWork reports whether a thread of a process launched work.
func (w *Workload) launchesWork(o owner, launched []int) bool {
	for th, n := range launched {
		if n > 0 && w.ownerOf(int32(th)) == o {
			return true
		}
	}
	return false
}

// joinSteps drops a step that repeats the name of the one before it while that lasts: some
// profilers write a mark as an annotation and as an operator.
func (w *Workload) joinSteps() {
	kept := w.Steps[:0]
	for _, s := range w.Steps {
		if n := len(kept); n == 0 || kept[n-1].Name != s.Name || s.Start >= kept[n-1].End() {
			kept = append(kept, s)
		}
	}
	w.Steps = kept
}

// Beside reports whether an operation belongs to no training step, because another process
// than that of the steps launched it, or a thread with steps of its own.
func (w *Workload) Beside(op *Op) bool {
	switch {
	case w.beside == nil:
		return false
	case op.Call == None:
		return w.Streams[op.Stream].Process != w.stepProcess
	}
	return w.beside[w.Calls[op.Call].Thread]
}

// mostSame bounds how many operations with one start dropDoubled compares with each other.
const mostSame = 64

// dropDoubled drops operations that the trace has twice, as where it was put together from
// parts that overlap. The nodes of a graph may be alike, and what takes no time.
func (w *Workload) dropDoubled() {
	kept := w.Ops[:0]
	for _, op := range w.Ops {
		doubled := false
		for n := len(kept) - 1; n >= max(0, len(kept)-mostSame) && kept[n].Start == op.Start && !doubled; n-- {
			doubled = kept[n] == op && op.Dur > 0 && op.Corr != 0 && op.Kind != GraphKernel
		}
		if !doubled {
			kept = append(kept, op)
		}
	}
	if n := len(w.Ops) - len(kept); n > 0 {
		w.Report.DropN("that are operations which the trace has twice", "", int64(n))
		w.Report.Used -= int64(n)
	}
	w.Ops = kept
}

// checkProcesses finds traces of several processes. Each waits for the others in collectives,
// and for a GPU that they share, of which a trace tells nothing.
func (w *Workload) checkProcesses(total time.Duration) {
	work := map[owner]time.Duration{}
	for i := range w.Ops {
		if op := &w.Ops[i]; op.Call != None {
			work[w.ownerOf(w.Calls[op.Call].Thread)] += op.Dur
		}
	}
	n := 0
	for _, d := range work {
		if float64(d) >= processShare*float64(total) {
			n++
		}
	}
	if n > 1 {
		w.Report.Doubt("%d processes launched work, and the trace does not tell when one of them waits for another, in a collective or for a GPU that both use: use one trace for each process (rank)", n)
	}
}
