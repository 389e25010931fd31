package predict

import (
	"slices"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// JobRange is the range of a job's prediction, and those of its ranks in the job.
type JobRange struct {
	Range
	Ranks []Range
}

// Range returns the range of a prediction r with setting s. It is as wide as that which the
// traces cannot tell makes it, see Plan.Range. A job has no additive estimate: if its GPUs
// idle, the lower end is the replay in which the hosts take no time of their own.
func (j *Job) Range(s JobSetting, r *JobResult) (JobRange, error) {
	g := JobRange{Range: Range{Low: r.Relative, High: r.Relative}, Ranks: make([]Range, len(r.Ranks))}
	for i := range r.Ranks {
		own := r.Ranks[i].Relative
		g.Ranks[i] = Range{Low: own, High: own}
	}
	if busy := j.leastBusy(r); s.HostScale == 0 && busy < idleGPU {
		without := s
		without.Setting = s.withoutHost()
		low, err := j.Run(without)
		if err != nil {
			return g, err
		}
		g.lower(r, &low, rankIdleReason(busy))
	}
	if nodes, whole := j.graphKernels(); nodes > 0 && s.Costs.GraphNode != s.Costs.Kernel {
		costly := s
		costly.Setting = s.costlyNodes()
		low, err := j.Run(costly)
		if err != nil {
			return g, err
		}
		g.lower(r, &low, nodesReason(nodes, whole, low.Relative))
	}
	for _, other := range j.alternatives() {
		o, err := other.Run(s)
		if err != nil {
			return g, err
		}
		g.widenAll(r, &o, waitsReason)
	}
	return g, nil
}

// alternatives returns the job with the least and with the most waits that the traces allow on
// all ranks, without those that would be the same.
func (j *Job) alternatives() (out []*Job) {
	least, most := *j, *j
	least.plans, most.plans = slices.Clone(j.plans), slices.Clone(j.plans)
	for i, p := range j.plans {
		few, many := p.alternatives()
		if few != nil {
			least.plans[i] = few
		}
		if many != nil {
			most.plans[i] = many
		}
	}
	for _, other := range [...]*Job{&least, &most} {
		if !slices.Equal(other.plans, j.plans) {
			out = append(out, other)
		}
	}
	return out
}

// widenAll takes ends from another replay.
func (g *JobRange) widenAll(r, other *JobResult, why string) {
	g.widen(r.Relative, other.Relative, why)
	for i := range g.Ranks {
		g.Ranks[i].widen(r.Ranks[i].Relative, other.Ranks[i].Relative, why)
	}
}

// lower takes the lower ends from another replay.
func (g *JobRange) lower(r, low *JobResult, why string) {
	g.widen(r.Relative, min(r.Relative, low.Relative), why)
	for i := range g.Ranks {
		own := r.Ranks[i].Relative
		g.Ranks[i].widen(own, min(own, low.Ranks[i].Relative), why)
	}
}

// leastBusy returns the share of the time in which the most idle GPU of a rank was busy.
// The waiting in collectives does not count.
func (j *Job) leastBusy(r *JobResult) float64 {
	least := 1.0
	for i, p := range j.plans {
		var st Stats
		st.busy(p.w)
		st.Busy = max(st.Busy-r.Ranks[i].Waiting.Recorded, 0)
		least = min(least, st.Utilisation())
	}
	return least
}

// graphKernels counts the kernels in CUDA graphs of all ranks, and those of them that are graphs
// without their kernels.
func (j *Job) graphKernels() (n, whole int) {
	for _, p := range j.plans {
		for i := range p.w.Ops {
			switch p.w.Ops[i].Kind { //nolint:exhaustive // the others are in no graph
			case workload.GraphKernel:
				n++
			case workload.WholeGraph:
				n, whole = n+1, whole+1
			}
		}
	}
	return n, whole
}
