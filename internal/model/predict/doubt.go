package predict

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// doubtful is the share of collectives that may be damaged without a doubt about the job.
const doubtful = 0.1

// leavesEarly reports whether a member ended clearly before last, when the last one came.
// A true collective of this kind needs the data of all members before any can end.
func (j *Job) leavesEarly(ms []member, last time.Duration) bool {
	return slices.ContainsFunc(ms, func(m member) bool {
		return j.plans[m.rank].w.Ops[m.op].End()+j.shift[m.rank]+crossGap < last
	})
}

// doubt collects why the job may not be the recorded run.
func (j *Job) doubt() {
	add := func(format string, args ...any) { j.Doubts = append(j.Doubts, fmt.Sprintf(format, args...)) }
	var world, least, last int32 = 0, math.MaxInt32, workload.None
	incomplete, hidden := 0, 0
	for _, p := range j.plans {
		world, last = max(world, p.w.World), max(last, p.w.Rank)
		if p.w.World > 0 {
			least = min(least, p.w.World)
		}
		if p.w.Report.Incomplete {
			incomplete++
		}
		if slices.ContainsFunc(p.w.Ops, func(o workload.Op) bool { return o.Kind == workload.WholeGraph }) {
			hidden++
		}
	}
	if least < world {
		add("the traces are of runs of different numbers of ranks, %d to %d", least, world)
	}
	switch given := len(j.plans); {
	case world > 0 && int(world) < given:
		add("%d traces are given of a run of %d ranks", given, world)
	case int(world) <= given && int(last) >= given:
		add("there is a trace of rank %d and only %d traces are given, so the time of collectives contains waiting for ranks that are missing", last, given)
	case int(world) > given:
		add("the run has %d ranks and only %d traces are given, so the time of collectives contains waiting for the others", world, given)
	}
	if incomplete > 0 {
		add("%d traces are incomplete", incomplete)
	}
	if hidden > 0 {
		add("%d traces have CUDA graphs without their kernels, which may be collectives", hidden)
	}
	if all := j.Matched + j.Unmatched; float64(j.Unmatched) > doubtful*float64(all) {
		add("%d of %d operations in collectives have no members in the other traces", j.Unmatched, all)
	}
	if all := len(j.collectives); float64(j.apart) > doubtful*float64(all) {
		add("in %d of %d collectives a rank ends before another one has come, so the ranks belong to different groups or runs", j.apart, all)
	}
}
