package predict

import (
	"fmt"
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
	var world int32
	incomplete, hidden := 0, 0
	for _, p := range j.plans {
		world = max(world, p.w.World)
		if p.w.Report.Incomplete {
			incomplete++
		}
		if slices.ContainsFunc(p.w.Ops, func(o workload.Op) bool { return o.Kind == workload.WholeGraph }) {
			hidden++
		}
	}
	if int(world) > len(j.plans) {
		add("the run has %d ranks and only %d traces are given, so the time of collectives contains waiting for the others", world, len(j.plans))
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
