package cluster

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
)

// placer is a way to give pods their resources.
type placer interface {
	place(p *Pod) (placed, bool)
	remove(p *Pod, at placed)
	// stranded returns what none of the pods can use.
	stranded(pods []*Pod) Stranded
}

// placeJob places all copies of a pod, or none, and adds where they are to at.
func placeJob(pl placer, p *Pod, at []placed) ([]placed, bool) {
	before := len(at)
	for range p.copies() {
		one, ok := pl.place(p)
		if !ok {
			removeJob(pl, p, at[before:])
			return at[:before], false
		}
		at = append(at, one)
	}
	return at, true
}

func removeJob(pl placer, p *Pod, at []placed) {
	for _, one := range at {
		pl.remove(p, one)
	}
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
	// Refused1 is the demand, in per cent of the cluster and from 50 on, at which 1 % of the
	// demand so far had been refused; 0 if that did not happen.
	Refused1 float64
	// BySize is the share of pods that were accepted, by number of GPUs; 0.5 is a fraction.
	BySize []SizeShare
	Pods   int
	// Stranded is in per cent of the cluster, at a demand of 100 %.
	StrandedGPU, StrandedCPU, StrandedMemory float64
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
		sum += f.Pods[i].total()
	}
	slices.SortStableFunc(out, func(a, b *Pod) int { return cmp.Compare(a.Name, b.Name) })
	rng.Shuffle(len(out), func(i, j int) { out[i], out[j] = out[j], out[i] })
	for float64(sum) > most && len(out) > 0 { // the order is random, so the last is as good as any
		sum -= out[len(out)-1].total()
		out = out[:len(out)-1]
	}
	for {
		p := &f.Pods[rng.IntN(len(f.Pods))]
		if float64(sum+p.MilliGPU) > most || len(out) >= maxRows {
			return out
		}
		sum += p.total()
		out = append(out, p)
	}
}

// steps are the demands, in per cent, at which the state is noted.
var steps = []float64{80, 90, 100, 110, 120, 130}

// filling is a run on its way.
type filling struct {
	FillResult
	nodes                []Node
	smallest             []*Pod
	total, cpus, memory  float64
	asked, given, usedIn int64 // GPU that was asked for and given, and processors given
	sizes                sizeShares
}

// run places the arrivals, as long as it shall go on.
func (f *Fill) run(goOn progress, name string, pl placer, arrivals []*Pod) FillResult {
	r := filling{nodes: f.Nodes, smallest: smallest(f.Pods), total: float64(totalGPU(f.Nodes)), sizes: sizeShares{}}
	r.Policy, r.Seed, r.Pods = name, f.Seed, len(arrivals)
	for i := range f.Nodes {
		r.cpus += float64(f.Nodes[i].MilliCPU)
		r.memory += float64(f.Nodes[i].MemoryMiB)
	}
	var at []placed
	for i, p := range arrivals {
		if i%checkEvery == 0 && !goOn.on(i, len(arrivals)) {
			return r.FillResult
		}
		r.asked += p.total()
		var ok bool
		if at, ok = placeJob(pl, p, at[:0]); ok {
			r.given += p.total()
			r.usedIn += int64(p.copies()) * p.MilliCPU
		}
		r.sizes.count(p, ok)
		if r.Refused1 == 0 && float64(r.asked-r.given) > 0.01*float64(r.asked) && float64(r.asked) > 0.5*r.total {
			r.Refused1 = 100 * float64(r.asked) / r.total
		}
		r.note(pl)
	}
	if n := len(r.Points); n < len(steps) && f.Demand*100 >= steps[n] { // the last arrival did not fit into the demand
		r.asked = int64(f.Demand * r.total)
		r.note(pl)
	}
	r.BySize = r.sizes.list()
	return r.FillResult
}

// note adds the points that the demand has reached.
func (r *filling) note(pl placer) {
	for len(r.Points) < len(steps) && 100*float64(r.asked)/r.total >= steps[len(r.Points)]-1e-9 {
		demand := steps[len(r.Points)]
		r.Points = append(r.Points, FillPoint{demand, 100 * float64(r.given) / r.total, 100 * float64(r.usedIn) / max(r.cpus, 1)})
		if demand == 100 {
			s := pl.stranded(r.smallest)
			r.StrandedGPU = 100 * float64(s.GPU) / r.total
			r.StrandedCPU = 100 * float64(s.CPU) / max(r.cpus, 1)
			r.StrandedMemory = 100 * float64(s.Memory) / max(r.memory, 1)
		}
	}
}

// sizeShares counts jobs by their size.
type sizeShares map[float64]*SizeShare

func (s sizeShares) count(p *Pod, accepted bool) {
	size := float64(p.GPUs * p.copies())
	if p.shared() {
		size = 0.5
	}
	if s[size] == nil {
		s[size] = &SizeShare{GPUs: size}
	}
	s[size].Pods++
	if accepted {
		s[size].Accepted++
	}
}

func (s sizeShares) list() []SizeShare {
	var out []SizeShare
	for _, one := range s {
		out = append(out, *one)
	}
	slices.SortFunc(out, func(a, b SizeShare) int { return cmp.Compare(a.GPUs, b.GPUs) })
	return out
}

// rngOf returns the random numbers of a seed; each use has a stream of its own.
func rngOf(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }

// orderOf returns the servers in the order that decides between equal scores. The FGD
// authors' simulator draws another one for each run: it puts a random number before the name
// of each server and takes the first name. First-fit is about the order of the list; for the
// others it does not matter.
func orderOf(policy string, nodes []Node, rng *rand.Rand) []Node {
	if policy == "first-fit" {
		return nodes
	}
	nodes = slices.Clone(nodes)
	slices.SortStableFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	rng.Shuffle(len(nodes), func(i, j int) { nodes[i], nodes[j] = nodes[j], nodes[i] })
	return nodes
}

// Run fills the servers under a policy.
func (f *Fill) Run(ctx context.Context, policy string) (FillResult, error) {
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
	return f.run(func(int, int) bool { return ctx.Err() == nil }, policy, newScheduler(nodes, s, rngOf(f.Seed, 2)), arrivals), nil
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
