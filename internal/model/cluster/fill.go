package cluster

import (
	"cmp"
	"math/rand/v2"
	"slices"
)

// placer is a way to give pods their resources.
type placer interface {
	place(p *Pod) (placed, bool)
	remove(p *Pod, at placed)
}

// Fill is an experiment in which pods arrive and stay until their demand is a multiple
// of the cluster's GPUs. The pods of the trace come in random order, and then more of
// them, drawn from the trace, as the authors of FGD do.
type Fill struct {
	Nodes  []Node
	Pods   []Pod
	Demand float64 // of GPU, relative to the cluster's, such as 1.3
	Seed   uint64
}

// FillResult is the outcome of one run.
type FillResult struct {
	Policy string
	Seed   uint64
	// Points are the shares of GPU that were allocated, in per cent, when the demand
	// that had arrived reached 80, 90, ... per cent of the cluster.
	Points []FillPoint
	// Refused1 is the demand, in per cent of the cluster, at which 1 % of the demand so
	// far had been refused; 0 if that did not happen.
	Refused1 float64
	// BySize is the share of pods that were accepted, by number of GPUs; 0.5 is a fraction.
	BySize []SizeShare
	Pods   int
}

// FillPoint is a state on the way.
type FillPoint struct {
	Demand float64 `json:"demand"` // in per cent of the cluster's GPU
	GPU    float64 `json:"gpu"`    // allocated, in per cent
	CPU    float64 `json:"cpu"`    // allocated, in per cent of the hosts' processors
}

// SizeShare is the acceptance of pods of one size.
type SizeShare struct {
	GPUs     float64 `json:"gpus"` // 0.5: a fraction of one
	Pods     int     `json:"pods"`
	Accepted int     `json:"accepted"`
}

// arrivals returns the pods in the order of their arrival.
func (f *Fill) arrivals(rng *rand.Rand) []*Pod {
	most := f.Demand * float64(totalGPU(f.Nodes))
	out := make([]*Pod, len(f.Pods))
	var sum int64
	for i := range f.Pods {
		out[i] = &f.Pods[i]
		sum += f.Pods[i].Demand()
	}
	slices.SortStableFunc(out, func(a, b *Pod) int { return cmp.Compare(a.Name, b.Name) })
	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	for float64(sum) > most && len(out) > 0 { // the order is random, so the last is as good as any
		sum -= out[len(out)-1].Demand()
		out = out[:len(out)-1]
	}
	for {
		p := &f.Pods[rng.IntN(len(f.Pods))]
		if float64(sum+p.MilliGPU) > most || len(out) >= maxRows {
			return out
		}
		sum += p.Demand()
		out = append(out, p)
	}
}

// steps are the demands, in per cent, at which the state is noted.
var steps = []float64{80, 90, 100, 110, 120, 130}

// run places the arrivals.
func (f *Fill) run(name string, pl placer, arrivals []*Pod) FillResult {
	r := FillResult{Policy: name, Seed: f.Seed, Pods: len(arrivals)}
	total := float64(totalGPU(f.Nodes))
	var processors int64
	for i := range f.Nodes {
		processors += f.Nodes[i].MilliCPU
	}
	var asked, given, cpu int64
	sizes := map[float64]*SizeShare{}
	note := func() {
		for len(r.Points) < len(steps) && 100*float64(asked)/total >= steps[len(r.Points)]-1e-9 {
			r.Points = append(r.Points, FillPoint{steps[len(r.Points)], 100 * float64(given) / total, 100 * float64(cpu) / float64(max(processors, 1))})
		}
	}
	for _, p := range arrivals {
		size := float64(p.GPUs)
		if p.shared() {
			size = 0.5
		}
		if sizes[size] == nil {
			sizes[size] = &SizeShare{GPUs: size}
		}
		sizes[size].Pods++
		asked += p.Demand()
		if _, ok := pl.place(p); ok {
			given += p.Demand()
			cpu += p.MilliCPU
			sizes[size].Accepted++
		}
		if r.Refused1 == 0 && float64(asked-given) > 0.01*float64(asked) && float64(asked) > 0.5*total {
			r.Refused1 = 100 * float64(asked) / total
		}
		note()
	}
	if n := len(r.Points); n < len(steps) && f.Demand*100 >= steps[n] { // the last arrival did not fit into the demand
		asked = int64(f.Demand * total)
		note()
	}
	for _, s := range sizes {
		r.BySize = append(r.BySize, *s)
	}
	slices.SortFunc(r.BySize, func(a, b SizeShare) int { return cmp.Compare(a.GPUs, b.GPUs) })
	return r
}

// rngOf returns the random numbers of a seed; each use has a stream of its own.
func rngOf(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

// orderOf returns the servers in the order that decides between equal scores. The FGD
// authors' simulator draws another one for each run: it puts a random number before the name
// of each server and takes the first name. First-fit is about the order of the list.
func orderOf(policy string, nodes []Node, rng *rand.Rand) []Node {
	if policy == "first-fit" {
		return nodes
	}
	nodes = slices.Clone(nodes)
	rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	return nodes
}

// Run fills the servers under a policy.
func (f *Fill) Run(policy string) (FillResult, error) {
	if err := checkNodes(f.Nodes); err != nil {
		return FillResult{}, err
	}
	if err := checkPods(f.Pods); err != nil {
		return FillResult{}, err
	}
	arrivals := f.arrivals(rngOf(f.Seed, 1))
	nodes := orderOf(policy, f.Nodes, rngOf(f.Seed, 3))
	s, err := policyOf(policy, nodes, typicalPods(f.Pods))
	if err != nil {
		return FillResult{}, err
	}
	return f.run(policy, newScheduler(nodes, s, rngOf(f.Seed, 2)), arrivals), nil
}

// RunPool fills the hosts and the pool.
func (f *Fill) RunPool(name string, opt PoolOptions) (FillResult, error) {
	if err := checkNodes(f.Nodes); err != nil {
		return FillResult{}, err
	}
	if err := checkPods(f.Pods); err != nil {
		return FillResult{}, err
	}
	return f.run(name, newPool(f.Nodes, opt), f.arrivals(rngOf(f.Seed, 1))), nil
}

// Whole returns the pods with each fraction of a GPU rounded up to a whole one.
func Whole(pods []Pod) []Pod {
	out := slices.Clone(pods)
	for i := range out {
		if out[i].GPUs > 0 {
			out[i].MilliGPU = Milli
		}
	}
	return out
}
