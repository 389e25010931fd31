package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	"go.yaml.in/yaml/v4"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// Scenario is an experiment as a person writes it, in YAML.
type Scenario struct {
	Description string `yaml:"description"`
	// Nodes and Pods are CSV files; without them, Servers and
	// Requests describe a cluster and its jobs.
	Nodes    string    `yaml:"nodes"`
	Pods     string    `yaml:"pods"`
	Servers  []Servers `yaml:"servers"`
	Requests []Request `yaml:"requests"`

	Demand    float64  `yaml:"demand"` // most that arrives, relative to the cluster's GPU; 0: 1.3
	Seeds     int      `yaml:"seeds"`  // number of runs; 0: 5
	WholeGPUs bool     `yaml:"whole-gpus"`
	Policies  []string `yaml:"policies"` // of servers that own their GPUs
	Pools     []Pool   `yaml:"pools"`
}

// Servers are equal servers of a made-up cluster.
type Servers struct {
	Count     int    `yaml:"count"`
	Cores     int64  `yaml:"cores"`
	MemoryGiB int64  `yaml:"memory-gib"`
	GPUs      int    `yaml:"gpus"`
	Model     string `yaml:"model"`
}

// Request is a kind of jobs of a made-up cluster.
type Request struct {
	Weight    int     `yaml:"weight"` // how often it comes, relative to the others
	GPUs      float64 `yaml:"gpus"`   // a whole number, or a part of one GPU
	Cores     float64 `yaml:"cores"`
	MemoryGiB float64 `yaml:"memory-gib"`
	Models    string  `yaml:"models"`
}

// Pool is a pool of the cluster's GPUs.
type Pool struct {
	Name       string `yaml:"name"`
	BoxSize    int    `yaml:"box-size"`
	OneBox     string `yaml:"one-box"` // preferred (the default), required or avoided
	MaxPerHost int    `yaml:"max-per-host"`
	WholeGPUs  bool   `yaml:"whole-gpus"`
}

// Limits of a scenario.
const (
	maxScenario = 1 << 20
	maxSeeds    = 1000
	maxServers  = 200_000
	maxRuns     = 64 // policies and pools
	maxDemand   = 4
)

// Load reads a scenario and the files that it names, which are in data.
func Load(fsys fs.FS, name string, data fs.FS) (*Scenario, *Fill, error) {
	raw, err := readFile(fsys, name)
	if err != nil {
		return nil, nil, err
	}
	var s Scenario
	if err := yaml.Load(raw, &s, yaml.WithKnownFields(true)); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	f, err := s.prepare(data)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	return &s, f, nil
}

func readFile(fsys fs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxScenario+1)) // a pipe has no size to ask for
	if len(raw) > maxScenario {
		return nil, fmt.Errorf("%s: a scenario has at most %d bytes", name, maxScenario)
	}
	return raw, err
}

// prepare checks the scenario, sets what it leaves open, and reads its cluster.
func (s *Scenario) prepare(data fs.FS) (*Fill, error) {
	if s.Demand == 0 {
		s.Demand = 1.3
	}
	if s.Seeds == 0 {
		s.Seeds = 5
	}
	switch n := len(s.Policies) + len(s.Pools); {
	case s.Demand < 0.1 || s.Demand > maxDemand:
		return nil, fmt.Errorf("demand %v: want 0.1 to %d", s.Demand, maxDemand)
	case s.Seeds < 1 || s.Seeds > maxSeeds:
		return nil, fmt.Errorf("seeds %d: want 1 to %d", s.Seeds, maxSeeds)
	case n == 0 || n > maxRuns:
		return nil, fmt.Errorf("%d policies and pools: want 1 to %d", n, maxRuns)
	case (s.Nodes == "") == (len(s.Servers) == 0):
		return nil, errors.New("want either nodes (a CSV file) or servers")
	case (s.Pods == "") == (len(s.Requests) == 0):
		return nil, errors.New("want either pods (a CSV file) or requests")
	}
	for _, p := range s.Policies {
		if _, ok := policies[p]; !ok {
			return nil, fmt.Errorf("policy %q: want one of %s", p, strings.Join(Policies(), ", "))
		}
	}
	for i := range s.Pools {
		if _, err := s.Pools[i].options(); err != nil {
			return nil, err
		}
	}
	f := &Fill{Demand: s.Demand}
	var err error
	if f.Nodes, err = s.nodes(data); err != nil {
		return nil, err
	}
	if f.Pods, err = s.pods(data); err != nil {
		return nil, err
	}
	if s.WholeGPUs {
		f.Pods = Whole(f.Pods)
	}
	return f, nil
}

// Policies returns the names of the policies.
func Policies() []string { return slices.Sorted(maps.Keys(policies)) }

// About says in a few words what a policy does, or "".
func About(policy string) string { return policies[policy].about }

func (s *Scenario) nodes(data fs.FS) ([]Node, error) {
	if s.Nodes != "" {
		f, err := data.Open(s.Nodes)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		nodes, err := ReadNodes(f)
		return withGPUs(nodes), err
	}
	var out []Node
	for i, v := range s.Servers {
		if v.Count < 1 || v.Count > maxServers-len(out) {
			return nil, fmt.Errorf("servers %d: count %d: want 1 to %d in all", i+1, v.Count, maxServers)
		}
		if v.Cores < 0 || v.Cores > 1<<20 || v.MemoryGiB < 0 || v.MemoryGiB > 1<<20 {
			return nil, fmt.Errorf("servers %d: %d cores, %d GiB: want 0 to %d of each", i+1, v.Cores, v.MemoryGiB, 1<<20)
		}
		for range v.Count {
			out = append(out, Node{Name: fmt.Sprintf("server%06d", len(out)), MilliCPU: v.Cores * 1000, MemoryMiB: v.MemoryGiB << 10, GPUs: v.GPUs, Model: v.Model})
		}
	}
	return out, checkNodes(out)
}

// maxWeight bounds the sum of the weights, which is the number of pods to draw from.
const maxWeight = 100_000

func (s *Scenario) pods(data fs.FS) ([]Pod, error) {
	if s.Pods != "" {
		f, err := data.Open(s.Pods)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		return ReadPods(f)
	}
	var out []Pod
	for i, r := range s.Requests {
		if r.Weight < 1 || r.Weight > maxWeight-len(out) {
			return nil, fmt.Errorf("requests %d: weight %d: want 1 to %d in all", i+1, r.Weight, maxWeight)
		}
		if !(r.GPUs >= 0 && r.GPUs <= MaxGPUs && r.Cores >= 0 && r.Cores <= 1<<20 && r.MemoryGiB >= 0 && r.MemoryGiB <= 1<<20) {
			return nil, fmt.Errorf("requests %d: %v GPUs, %v cores, %v GiB: want 0 to %d GPUs and nothing negative", i+1, r.GPUs, r.Cores, r.MemoryGiB, MaxGPUs)
		}
		p := Pod{MilliCPU: int64(r.Cores * 1000), MemoryMiB: int64(r.MemoryGiB * 1024), GPUs: int(r.GPUs), MilliGPU: Milli, Models: r.Models}
		switch {
		case r.GPUs == 0:
			p.MilliGPU = 0
		case r.GPUs < 1:
			p.GPUs, p.MilliGPU = 1, int64(r.GPUs*Milli)
		case float64(p.GPUs) != r.GPUs:
			return nil, fmt.Errorf("requests %d: %v GPUs: want a whole number or a part of one", i+1, r.GPUs)
		}
		for range r.Weight {
			p.Name = fmt.Sprintf("pod%06d", len(out))
			out = append(out, p)
		}
	}
	return out, checkPods(out)
}

func (p *Pool) options() (PoolOptions, error) {
	o := PoolOptions{BoxSize: p.BoxSize, MaxPerHost: p.MaxPerHost, WholeGPUs: p.WholeGPUs}
	one := map[string]placement.Preference{"": placement.Indifferent, "preferred": placement.Indifferent, "required": placement.Required, "avoided": placement.Avoided}
	var ok bool
	switch o.OneBox, ok = one[p.OneBox]; {
	case p.Name == "":
		return o, errors.New("a pool has no name")
	case !ok:
		return o, fmt.Errorf("pool %s: one-box %q: want preferred, required or avoided", p.Name, p.OneBox)
	case p.BoxSize < 0 || p.BoxSize > 1024 || p.MaxPerHost < 0:
		return o, fmt.Errorf("pool %s: box-size %d, max-per-host %d: want 1 to 1024 (0: 8), and 0 or more", p.Name, p.BoxSize, p.MaxPerHost)
	}
	return o, nil
}

// Outcome is the mean of all runs of one policy or pool.
type Outcome struct {
	Name   string      `json:"name"`
	Pool   bool        `json:"pool"`
	Points []FillPoint `json:"points"`
	// Refused1 is the mean over the runs in which 1 % was refused, and 0 if none was.
	Refused1 float64     `json:"demand_at_1_percent_refused"`
	BySize   []SizeShare `json:"by_size"`
}

// Run runs all policies and pools with each seed on all processors. done is called
// after each run, by one goroutine at a time.
func (s *Scenario) Run(ctx context.Context, f *Fill, done func(n, of int)) ([]Outcome, error) {
	type job struct{ who, seed int }
	n := len(s.Policies) + len(s.Pools)
	results := make([][]FillResult, n)
	for i := range results {
		results[i] = make([]FillResult, s.Seeds)
	}
	jobs := make(chan job)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var finished int
	var failed error
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for j := range jobs {
				r, err := s.run(f, j.who, uint64(j.seed))
				mu.Lock()
				results[j.who][j.seed] = r
				failed = errors.Join(failed, err)
				finished++
				if done != nil {
					done(finished, n*s.Seeds)
				}
				mu.Unlock()
			}
		})
	}
	for who := range n {
		for seed := range s.Seeds {
			if ctx.Err() == nil {
				jobs <- job{who, seed}
			}
		}
	}
	close(jobs)
	wg.Wait()
	if err := errors.Join(failed, context.Cause(ctx)); err != nil {
		return nil, err
	}
	out := make([]Outcome, n)
	for i := range out {
		out[i] = mean(results[i])
		out[i].Pool = i >= len(s.Policies)
	}
	return out, nil
}

// run is one run of a policy or, behind them, a pool.
func (s *Scenario) run(f *Fill, who int, seed uint64) (FillResult, error) {
	one := *f
	one.Seed = seed
	if who < len(s.Policies) {
		return one.Run(s.Policies[who])
	}
	p := &s.Pools[who-len(s.Policies)]
	o, err := p.options()
	if err != nil {
		return FillResult{}, err
	}
	return one.RunPool(p.Name, o)
}

func mean(runs []FillResult) Outcome {
	o := Outcome{Name: runs[0].Policy, Points: slices.Clone(runs[0].Points), BySize: slices.Clone(runs[0].BySize)}
	refused := 0
	for i, r := range runs {
		if r.Refused1 > 0 {
			refused++
			o.Refused1 += r.Refused1
		}
		if i == 0 {
			continue
		}
		for k := range min(len(o.Points), len(r.Points)) {
			o.Points[k].GPU += r.Points[k].GPU
			o.Points[k].CPU += r.Points[k].CPU
		}
		for _, b := range r.BySize {
			at := slices.IndexFunc(o.BySize, func(s SizeShare) bool { return s.GPUs == b.GPUs })
			if at < 0 {
				o.BySize = append(o.BySize, b)
				continue
			}
			o.BySize[at].Pods += b.Pods
			o.BySize[at].Accepted += b.Accepted
		}
	}
	for k := range o.Points {
		o.Points[k].GPU /= float64(len(runs))
		o.Points[k].CPU /= float64(len(runs))
	}
	o.Refused1 /= float64(max(refused, 1))
	return o
}
