package cluster

import (
	"cmp"
	"slices"
)

// popularity is the share of all pods that the typical ones cover, in per cent.
const popularity = 95

// typicalPod is a shape of pods and how often it occurs.
type typicalPod struct {
	shape
	count int64
}

// typicalPods returns the most frequent shapes, without memory, that together are
// at least popularity of all pods. The order breaks ties as the authors' does.
func typicalPods(pods []Pod) []typicalPod {
	count := map[shape]int64{}
	for i := range pods {
		s := pods[i].shape()
		s.memory = 0
		count[s]++
	}
	all := make([]typicalPod, 0, len(count))
	for s, n := range count {
		all = append(all, typicalPod{s, n})
	}
	slices.SortFunc(all, func(a, b typicalPod) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(b.cpu, a.cpu), cmp.Compare(b.milli, a.milli), cmp.Compare(b.gpus, a.gpus), cmp.Compare(b.models, a.models))
	})
	var covered int64
	n := 0
	for covered*100 < popularity*int64(len(pods)) && n < len(all) {
		covered += all[n].count
		n++
	}
	return all[:n]
}

// fgd scores servers by how much the pod would reduce their fragmentation: the GPU
// that a typical pod could not use, weighted by how often it occurs.
type fgd struct {
	model map[string][]fragGroup // by model of the node's GPUs
	pods  int64                  // all typical pods
}

// fragGroup holds the typical pods with the same GPUs; a node of this model takes
// them if it has the processors.
type fragGroup struct {
	gpus  int
	milli int64
	// cpu is ascending, and within[i] is the number of pods with at most cpu[i].
	cpu, within []int64
}

func newFGD(nodes []Node, typical []typicalPod) *fgd {
	f := &fgd{model: map[string][]fragGroup{}}
	for i := range nodes {
		if m := nodes[i].Model; f.model[m] == nil {
			f.model[m] = groupsFor(m, typical)
		}
	}
	for _, t := range typical {
		f.pods += t.count
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
	var useless int64
	for _, t := range typical {
		p := Pod{GPUs: t.gpus, MilliGPU: t.milli, Models: t.models}
		if t.milli == 0 || !p.accepts(model) {
			useless += t.count
			continue
		}
		g := gpus{t.gpus, t.milli}
		by[g] = append(by[g], t)
	}
	out := []fragGroup{{gpus: MaxGPUs + 1, cpu: []int64{0}, within: []int64{useless}}}
	for g, pods := range by {
		slices.SortFunc(pods, func(a, b typicalPod) int { return cmp.Compare(a.cpu, b.cpu) })
		group := fragGroup{gpus: g.n, milli: g.milli}
		var sum int64
		for _, t := range pods {
			sum += t.count
			group.cpu = append(group.cpu, t.cpu)
			group.within = append(group.within, sum)
		}
		out = append(out, group)
	}
	return out
}

// fragmented returns the GPU of a server that typical pods cannot use, in thousandths and
// summed over the pods. Whole numbers are exact: the score of a server that a pod does not
// fragment is just at the step between two.
func fragmented(groups []fragGroup, cpu int64, free []int64) (sum int64) {
	var total int64
	for _, f := range free {
		total += f
	}
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
			sum += all * total
			continue
		}
		at, _ := slices.BinarySearch(g.cpu, cpu+1) // the first that needs more
		var enough int64
		if at > 0 {
			enough = g.within[at-1]
		}
		sum += enough*below + (all-enough)*total
	}
	return sum
}

func (f *fgd) score(s *server, p *Pod) (int64, int) {
	groups := f.model[s.spec.Model]
	now := fragmented(groups, s.cpu, s.free)
	cpu := s.cpu - p.MilliCPU
	free := make([]int64, len(s.free), MaxGPUs)
	copy(free, s.free)
	gain := func() int64 {
		less := float64(now-fragmented(groups, cpu, free)) / float64(f.pods*Milli)
		return int64(sigmoid(less) * maxScore)
	}
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
