package cluster

import (
	"cmp"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"
)

// The reference is a cluster of servers written down from the definitions, without
// indices, caches and groups. It looks at every server for every pod.
type refServer struct {
	node        Node
	cpu, memory int64
	free        []int64
	kinds       map[int]int // pods by refKind
}

// refKind is the number of whole GPUs, -1 for a part of one, 0 for none.
func refKind(p *Pod) int {
	if p.GPUs == 1 && p.MilliGPU < 1000 {
		return -1
	}
	return p.GPUs
}

func refServers(nodes []Node) (out []refServer) {
	for _, n := range nodes {
		s := refServer{node: n, cpu: n.MilliCPU, memory: n.MemoryMiB, kinds: map[int]int{}}
		for range n.GPUs {
			s.free = append(s.free, 1000)
		}
		out = append(out, s)
	}
	return out
}

func sumOf(values []int64) (sum int64) {
	for _, v := range values {
		sum += v
	}
	return sum
}

// enough returns the GPUs with room for the pod's share of one.
func enough(free []int64, milli int64) (out []int) {
	for i, f := range free {
		if f >= milli {
			out = append(out, i)
		}
	}
	return out
}

func (s *refServer) fits(p *Pod) bool {
	return s.cpu >= p.MilliCPU && s.memory >= p.MemoryMiB && (p.GPUs == 0 || takes(p, s.node.Model) && len(enough(s.free, p.MilliGPU)) >= p.GPUs)
}

// takes tells by the text of the models whether the pod accepts one.
func takes(p *Pod, model string) bool {
	named := slices.DeleteFunc(splitBar(p.Models), func(m string) bool { return m == "" })
	return len(named) == 0 || slices.Contains(named, model)
}

func splitBar(s string) (out []string) {
	word := ""
	for _, r := range s {
		if r == '|' {
			out, word = append(out, word), ""
			continue
		}
		word += string(r)
	}
	return append(out, word)
}

// after returns what is free of the GPUs once the pod has its own; gpu is that of a part.
func after(free []int64, p *Pod, gpu int) []int64 {
	out := slices.Clone(free)
	if refKind(p) == -1 {
		out[gpu] -= p.MilliGPU
		return out
	}
	for _, i := range enough(free, 1000)[:p.GPUs] {
		out[i] = 0
	}
	return out
}

// choices are the GPUs that a pod can take on a server; a pod of whole ones has one choice.
func (s *refServer) choices(p *Pod) []int {
	if refKind(p) == -1 {
		return enough(s.free, p.MilliGPU)
	}
	return []int{-1}
}

// best is the GPU with the least room that suffices.
func (s *refServer) best(p *Pod) int {
	c := s.choices(p)
	return slices.MinFunc(c, func(a, b int) int {
		if a < 0 {
			return 0
		}
		return cmp.Or(cmp.Compare(s.free[a], s.free[b]), cmp.Compare(a, b))
	})
}

// fragment is the GPU of a server that a pod drawn from the typical ones cannot use, in
// thousandths, as an exact number (section 2.2 of the paper on FGD).
func fragment(typical map[shape]int64, model string, cpu int64, free []int64) *big.Rat {
	sum, all := new(big.Rat), int64(0)
	for t, n := range typical {
		all += n
		lost := sumOf(free)
		p := Pod{GPUs: t.gpus, MilliGPU: t.milli, Models: t.models}
		if can := enough(free, t.milli); t.milli > 0 && takes(&p, model) && cpu >= t.cpu && len(can) >= t.gpus {
			for _, i := range can {
				lost -= free[i]
			}
		}
		sum.Add(sum, big.NewRat(n*lost, 1))
	}
	return sum.Quo(sum, big.NewRat(max(all, 1), 1))
}

// refScore is the score of a server under a policy, and the GPU of a part.
func refScore(policy string, s *refServer, place int, typical map[shape]int64, p *Pod) (int64, int) {
	left, want := sumOf(s.free), int64(p.GPUs)*p.MilliGPU
	switch policy {
	case "first-fit":
		return -int64(place), s.best(p)
	case "best-fit":
		return int64((1 - (float64(s.cpu-p.MilliCPU)/128_000*0.5 + float64(left-want)/8000*0.5)) * 100), s.best(p)
	case "dot-product":
		return int64((1 - (float64(s.cpu)/128_000*float64(p.MilliCPU)/128_000+float64(left)/8000*float64(want)/8000)/2) * 100), s.best(p)
	case "gpu-packing":
		return refPacking(s, p), s.best(p)
	case "gpu-clustering":
		return refClustering(s, p), s.best(p)
	}
	now := fragment(typical, s.node.Model, s.cpu, s.free)
	score, gpu := int64(math.MinInt64), -1
	for _, c := range s.choices(p) {
		less, _ := new(big.Rat).Sub(now, fragment(typical, s.node.Model, s.cpu-p.MilliCPU, after(s.free, p, c))).Float64()
		if v := int64(100 / (1 + math.Exp(-less/1000))); v > score {
			score, gpu = v, c
		}
	}
	return score, gpu
}

func refPacking(s *refServer, p *Pod) int64 {
	idle := int64(len(enough(s.free, 1000)))
	switch {
	case p.GPUs == 0:
		return 0
	case idle == int64(len(s.free)):
		return max(33-idle, idle)
	}
	var fresh, room int64
	can := enough(s.free, p.MilliGPU)
	slices.SortFunc(can, func(a, b int) int { return cmp.Compare(s.free[a], s.free[b]) })
	for _, i := range can[:p.GPUs] {
		if s.free[i] == 1000 {
			fresh++
		}
		room += s.free[i] / 10
	}
	if fresh > 0 {
		return max(50-fresh, 33)
	}
	return max(100-room/10, 50)
}

func refClustering(s *refServer, p *Pod) int64 {
	if p.GPUs == 0 {
		return 0
	}
	others := 0
	for k, n := range s.kinds {
		if n > 0 && k != 0 && k != refKind(p) {
			others++
		}
	}
	score := 25 * (8000 - sumOf(s.free)) / 8000
	switch same := s.kinds[refKind(p)] > 0; {
	case same && others == 0:
		return score + 75
	case same:
		return score + 50
	case others == 0:
		return score + 25
	}
	return score
}

// refTypical has the most frequent shapes that are 95 % of all pods together.
func refTypical(pods []Pod) map[shape]int64 {
	count := map[shape]int64{}
	for i := range pods {
		p := &pods[i]
		count[shape{cpu: p.MilliCPU, milli: p.MilliGPU, gpus: p.GPUs, models: p.Models}]++
	}
	var order []shape
	for s := range count {
		order = append(order, s)
	}
	slices.SortFunc(order, func(a, b shape) int {
		return cmp.Or(-cmp.Compare(count[a], count[b]), -cmp.Compare(a.cpu, b.cpu), -cmp.Compare(a.milli, b.milli), -cmp.Compare(a.gpus, b.gpus), -cmp.Compare(a.models, b.models))
	})
	out, covered := map[shape]int64{}, 0.0
	for _, s := range order {
		if covered >= 0.95*float64(len(pods)) {
			break
		}
		out[s] = count[s]
		covered += float64(count[s])
	}
	return out
}

// drawWorld returns a small cluster and pods, hostile ones among them.
func drawWorld(rng *rand.Rand) (nodes []Node, pods []Pod) {
	pick := func(n ...int64) int64 { return n[rng.IntN(len(n))] }
	for i := range 1 + rng.IntN(7) {
		n := Node{Name: fmt.Sprintf("n%d", i), MilliCPU: pick(0, 8000, 16_000, 16_000, 64_000, 96_000, 1e9), MemoryMiB: pick(0, 1<<14, 1<<16, 1<<20), GPUs: int(pick(1, 2, 2, 4, 8, 16)), Model: []string{"A", "A", "B", ""}[rng.IntN(4)]}
		for range 1 + rng.IntN(2) { // equal servers stand together
			nodes = append(nodes, n)
		}
	}
	for i := range 1 + rng.IntN(12) {
		p := Pod{
			Name: fmt.Sprintf("p%d", i%5), MilliCPU: pick(0, 0, 1000, 3900, 4000, 8000, 12_000, 1e12), MemoryMiB: pick(0, 1, 1<<12, 1<<14, 1<<15),
			GPUs: int(pick(0, 1, 1, 1, 1, 2, 2, 3, 4, 8, 16)), Models: []string{"", "", "", "A", "B", "A|B", "|", "C", "|A|"}[rng.IntN(9)], MilliGPU: 1000,
		}
		switch p.GPUs {
		case 0:
			p.MilliGPU = pick(0, 1000)
		case 1:
			p.MilliGPU = pick(1, 50, 250, 460, 500, 810, 999, 1000, 1000)
		}
		for range 1 + rng.IntN(4) {
			pods = append(pods, p)
		}
	}
	return nodes, pods
}

// Every policy puts each pod on the server, and each part on the GPU, that the plain
// reference chooses, while pods come and go.
func TestPoliciesAgreeWithReference(t *testing.T) {
	decisions := 0
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 41))
		nodes, pods := drawWorld(rng)
		typical := refTypical(pods)
		for _, name := range []string{"first-fit", "best-fit", "dot-product", "gpu-packing", "gpu-clustering", "fgd"} {
			policy, err := policyOf(name, nodes, typicalPods(pods))
			if err != nil {
				t.Fatal(err)
			}
			c, ref := newScheduler(nodes, policy, nil), refServers(nodes)
			type run struct {
				pod *Pod
				at  placed
			}
			var runs []run
			for range 40 {
				if len(runs) > 0 && rng.IntN(4) == 0 {
					i := rng.IntN(len(runs))
					c.remove(runs[i].pod, runs[i].at)
					ref[runs[i].at.node].give(runs[i].pod, runs[i].at.gpus)
					runs = slices.Delete(runs, i, i+1)
					continue
				}
				p := &pods[rng.IntN(len(pods))]
				want, gpu, best := -1, -1, int64(0)
				for i := range ref {
					if s := &ref[i]; s.fits(p) {
						if v, g := refScore(name, s, i, typical, p); want < 0 || v > best {
							want, gpu, best = i, g, v
						}
					}
				}
				at, ok := c.place(p)
				if ok != (want >= 0) || ok && (at.node != want || refKind(p) == -1 && at.gpus != 1<<gpu) {
					t.Fatalf("seed %d, %s: %+v is on server %d (%v) and GPUs %b, want server %d and GPU %d\n%+v", seed, name, *p, at.node, ok, at.gpus, want, gpu, ref)
				}
				if ok {
					decisions++
					ref[want].take(p, gpu)
					runs = append(runs, run{p, at})
				}
			}
		}
	}
	if decisions < 10_000 {
		t.Errorf("only %d decisions", decisions)
	}
}

func (s *refServer) take(p *Pod, gpu int) {
	s.cpu, s.memory, s.free = s.cpu-p.MilliCPU, s.memory-p.MemoryMiB, after(s.free, p, gpu)
	s.kinds[refKind(p)]++
}

func (s *refServer) give(p *Pod, gpus uint32) {
	s.cpu, s.memory = s.cpu+p.MilliCPU, s.memory+p.MemoryMiB
	for i := range s.free {
		if gpus>>i&1 == 1 {
			s.free[i] += p.MilliGPU
		}
	}
	s.kinds[refKind(p)]--
}
