package cluster

import (
	"fmt"
	"math"
	"slices"
)

// scorer is a policy that gives each server that fits a score: the highest wins, and
// of equals the first. gpu is the GPU of a fraction.
type scorer interface {
	score(s *server, p *Pod) (score int64, gpu int)
}

// policies are the policies of servers that own their GPUs, by name. Score functions
// and their scales follow the FGD authors' simulator, so that results compare
// (Weng et al., "Beware of Fragmentation", USENIX ATC 2023).
var policies = map[string]func(nodes []Node, typical []typicalPod) scorer{
	// any server that fits
	"random": func([]Node, []typicalPod) scorer { return randomFit{} },
	// the first server of the list that fits
	"first-fit": func(n []Node, _ []typicalPod) scorer { return newFirstFit(n) },
	// the server with the least processors and GPU left
	"best-fit": func([]Node, []typicalPod) scorer { return bestFit{} },
	// the server whose free resources are least aligned with the request (Tetris)
	"dot-product": func([]Node, []typicalPod) scorer { return dotProduct{} },
	// GPUs in use first, then used servers
	"gpu-packing": func([]Node, []typicalPod) scorer { return gpuPacking{} },
	// servers that run pods with as many GPUs
	"gpu-clustering": func([]Node, []typicalPod) scorer { return gpuClustering{} },
	// the server where the GPU becomes least fragmented (fragmentation gradient descent)
	"fgd": func(n []Node, t []typicalPod) scorer { return newFGD(n, t) },
}

// Scales of the resources in the authors' scores.
const (
	maxMilliCPU = 128_000
	maxMilliGPU = 8_000
	maxScore    = 100
)

type randomFit struct{}

func (randomFit) score(*server, *Pod) (int64, int) { return 0, -1 } // the scheduler draws both

type firstFit struct{ place map[*Node]int64 }

func newFirstFit(nodes []Node) firstFit {
	f := firstFit{map[*Node]int64{}}
	for i := range nodes {
		f.place[&nodes[i]] = int64(i)
	}
	return f
}

func (f firstFit) score(s *server, p *Pod) (int64, int) {
	return -f.place[s.spec], s.tightest(p.MilliGPU)
}

type bestFit struct{}

func (bestFit) score(s *server, p *Pod) (int64, int) {
	rest := float64(s.cpu-p.MilliCPU)/maxMilliCPU*0.5 + float64(s.left-p.Demand())/maxMilliGPU*0.5
	return int64((1 - rest) * maxScore), s.tightest(p.MilliGPU)
}

type dotProduct struct{}

func (dotProduct) score(s *server, p *Pod) (int64, int) {
	cpu := float64(s.cpu) / maxMilliCPU * float64(p.MilliCPU) / maxMilliCPU
	gpu := float64(s.left) / maxMilliGPU * float64(p.Demand()) / maxMilliGPU
	return int64((1 - (cpu+gpu)/2) * maxScore), s.tightest(p.MilliGPU)
}

type gpuPacking struct{}

func (gpuPacking) score(s *server, p *Pod) (int64, int) {
	gpu := s.tightest(p.MilliGPU)
	if p.GPUs == 0 {
		return 0, gpu
	}
	whole := 0
	for _, f := range s.free {
		if f == Milli {
			whole++
		}
	}
	if whole == len(s.free) {
		return int64(max(maxScore/3-whole, whole)), gpu
	}
	free := slices.Clone(s.free)
	slices.Sort(free)
	var fresh int
	var room int64
	for _, need := 0, p.GPUs; need > 0 && len(free) > 0; free = free[1:] {
		if free[0] >= p.MilliGPU {
			need--
			room += free[0] * 100 / Milli
			if free[0] == Milli {
				fresh++
			}
		}
	}
	if fresh > 0 {
		return int64(max(maxScore/2-fresh, maxScore/3)), gpu
	}
	return max(maxScore-room/10, maxScore/2), gpu
}

type gpuClustering struct{}

func (gpuClustering) score(s *server, p *Pod) (int64, int) {
	gpu := s.tightest(p.MilliGPU)
	kind := gpuKind(p)
	if kind == kindNone {
		return 0, gpu
	}
	used := 0
	for k := kindShared; k < kinds; k++ {
		if s.kinds[k] > 0 {
			used++
		}
	}
	quarter := int64(maxScore) / 4 * (maxMilliGPU - s.left) / maxMilliGPU
	switch {
	case s.kinds[kind] > 0 && used == 1:
		return quarter + maxScore*3/4, gpu
	case s.kinds[kind] > 0:
		return quarter + maxScore*2/4, gpu
	case used == 0:
		return quarter + maxScore/4, gpu
	}
	return quarter, gpu
}

// sigmoid maps a change of fragmentation to 0..1.
func sigmoid(x float64) float64 { return 1 / (1 + math.Exp(-x)) }

func policyOf(name string, nodes []Node, typical []typicalPod) (scorer, error) {
	p, ok := policies[name]
	if !ok {
		return nil, fmt.Errorf("cluster: no policy %q", name)
	}
	return p(nodes, typical), nil
}
