package cluster

import (
	"cmp"
	"slices"
)

// popularity is the share of all pods that the typical ones cover.
const popularity = 0.95

// typicalPod is a shape of pods and how often it occurs.
type typicalPod struct {
	shape
	share float64
}

// typicalPods returns the most frequent shapes, without memory, that together are
// at least popularity of all pods. The order breaks ties as the authors' does.
func typicalPods(pods []Pod) []typicalPod {
	count := map[shape]int{}
	for i := range pods {
		s := pods[i].shape()
		s.memory = 0
		count[s]++
	}
	all := make([]typicalPod, 0, len(count))
	for s, n := range count {
		all = append(all, typicalPod{s, float64(n)})
	}
	slices.SortFunc(all, func(a, b typicalPod) int {
		return cmp.Or(cmp.Compare(b.share, a.share), cmp.Compare(b.cpu, a.cpu), cmp.Compare(b.milli, a.milli), cmp.Compare(b.gpus, a.gpus), cmp.Compare(b.models, a.models))
	})
	var covered float64
	n := 0
	for covered < popularity*float64(len(pods)) && n < len(all) {
		covered += all[n].share
		n++
	}
	all = all[:n]
	for i := range all {
		all[i].share /= covered
	}
	return all
}

// fgd scores servers by how much the pod would reduce their fragmentation: the GPU
// that a typical pod could not use, weighted by how often it occurs.
type fgd struct {
	model map[string][]fragGroup // by model of the node's GPUs
}

// fragGroup holds the typical pods with the same GPUs; a node of this model takes
// them if it has the processors.
type fragGroup struct {
	gpus  int
	milli int64
	// cpu is ascending, and within[i] is the share of pods with at most cpu[i].
	cpu    []int64
	within []float64
}

func newFGD(nodes []Node, typical []typicalPod) *fgd {
	f := &fgd{model: map[string][]fragGroup{}}
	for i := range nodes {
		if m := nodes[i].Model; f.model[m] == nil {
			f.model[m] = groupsFor(m, typical)
		}
	}
	return f
}

// groupsFor groups the typical pods that accept a model. The others, and those
// without a GPU, find every free GPU useless, whatever is free: they would add the
// same to each state of a server but for the sum, which the caller adds.
func groupsFor(model string, typical []typicalPod) []fragGroup {
	type gpus struct {
		n     int
		milli int64
	}
	by := map[gpus][]typicalPod{}
	var useless float64
	for _, t := range typical {
		p := Pod{GPUs: t.gpus, MilliGPU: t.milli, Models: t.models}
		if t.milli == 0 || !p.accepts(model) {
			useless += t.share
			continue
		}
		g := gpus{t.gpus, t.milli}
		by[g] = append(by[g], t)
	}
	out := []fragGroup{{gpus: MaxGPUs + 1, cpu: []int64{0}, within: []float64{useless}}}
	for g, pods := range by {
		slices.SortFunc(pods, func(a, b typicalPod) int { return cmp.Compare(a.cpu, b.cpu) })
		group := fragGroup{gpus: g.n, milli: g.milli}
		var sum float64
		for _, t := range pods {
			sum += t.share
			group.cpu = append(group.cpu, t.cpu)
			group.within = append(group.within, sum)
		}
		out = append(out, group)
	}
	// The order decides how sums are rounded.
	slices.SortFunc(out, func(a, b fragGroup) int { return cmp.Or(cmp.Compare(a.gpus, b.gpus), cmp.Compare(a.milli, b.milli)) })
	return out
}

// fragmented returns the GPU of a server that typical pods cannot use, in thousandths.
func fragmented(groups []fragGroup, cpu int64, free []int64) float64 {
	var total int64
	for _, f := range free {
		total += f
	}
	var sum float64
	for i := range groups {
		g := &groups[i]
		n, below := 0, int64(0)
		for _, f := range free {
			if f >= g.milli {
				n++
			} else {
				below += f
			}
		}
		all := g.within[len(g.within)-1]
		if n < g.gpus {
			sum += all * float64(total)
			continue
		}
		at, _ := slices.BinarySearch(g.cpu, cpu+1) // the first that needs more
		var enough float64
		if at > 0 {
			enough = g.within[at-1]
		}
		sum += enough*float64(below) + (all-enough)*float64(total)
	}
	return sum
}

func (f *fgd) score(s *server, p *Pod) (int64, int) {
	groups := f.model[s.spec.Model]
	now := fragmented(groups, s.cpu, s.free)
	cpu := s.cpu - p.MilliCPU
	free := make([]int64, len(s.free), MaxGPUs)
	copy(free, s.free)
	gain := func() int64 { return int64(sigmoid((now-fragmented(groups, cpu, free))/Milli) * maxScore) }
	if p.shared() {
		best, gpu := int64(0), -1
		for i, left := range s.free {
			if left < p.MilliGPU || slices.Contains(s.free[:i], left) {
				continue
			}
			free[i] = left - p.MilliGPU
			if g := gain(); gpu < 0 || g > best {
				best, gpu = g, i
			}
			free[i] = left
		}
		return best, gpu
	}
	for i, n := 0, p.GPUs; n > 0; i++ {
		if free[i] == Milli {
			free[i] = 0
			n--
		}
	}
	return gain(), -1
}
