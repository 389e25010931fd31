package cluster

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v4"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
	"github.com/dxpu-project/dxpu/internal/yamltext"
)

// Scenario is an experiment as a person writes it, in YAML.
type Scenario struct {
	Name        string `yaml:"-"` // of the file
	Description string `yaml:"description"`
	// Kind is fill (the default), churn, replay, failures or size.
	Kind string `yaml:"experiment"`
	// Nodes and Pods are CSV files; without them, Servers and
	// Requests describe a cluster and its jobs.
	Nodes    string    `yaml:"nodes"`
	Pods     string    `yaml:"pods"`
	Servers  []Servers `yaml:"servers"`
	Requests []Request `yaml:"requests"`

	Demand    float64  `yaml:"demand"` // most that arrives, relative to the cluster's GPU
	Seeds     int      `yaml:"seeds"`  // number of runs
	WholeGPUs bool     `yaml:"whole-gpus"`
	Policies  []string `yaml:"policies"` // of servers that own their GPUs
	Pools     []Pool   `yaml:"pools"`
	// HostsKept are shares of the hosts, in per cent, with which pools are filled, too.
	HostsKept []float64 `yaml:"hosts-kept"`

	// Loads are those of churn, relative to the cluster's GPU; Life is the mean life of a
	// job in hours, WarmUp and Lives the time before and during the measurement, in lives.
	Loads  []float64 `yaml:"loads"`
	Life   float64   `yaml:"life-hours"`
	WarmUp float64   `yaml:"warm-up-lives"`
	Lives  float64   `yaml:"lives"`
	// Queue is what jobs do that fit nowhere: refuse (the default for churn), fifo or
	// backfill (the default for replay).
	Queue string `yaml:"queue"`
	// SpeedUp makes the jobs of a replay arrive faster; Until ends it, in hours.
	SpeedUp float64 `yaml:"speed-up"`
	Until   float64 `yaml:"until-hours"`
	// CoresPerGPU and MemoryPerGPU are for lists that do not tell them.
	CoresPerGPU  float64 `yaml:"cores-per-gpu"`
	MemoryPerGPU float64 `yaml:"memory-gib-per-gpu"`

	Performance *Performance `yaml:"performance"`
	Failures    *Failures    `yaml:"failures"`
	Size        *Size        `yaml:"size"`
}

// Kinds of experiments.
const (
	kindFill   = "fill"
	kindChurn  = "churn"
	kindReplay = "replay"

	kindFailures = "failures"
	kindSize     = "size"
)

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
	Profile   string  `yaml:"profile"` // of performance
}

// Pool is a pool of the cluster's GPUs.
type Pool struct {
	Name       string `yaml:"name"`
	BoxSize    int    `yaml:"box-size"`
	OneBox     string `yaml:"one-box"` // preferred (the default), required or avoided
	MaxPerHost int    `yaml:"max-per-host"`
	WholeGPUs  bool   `yaml:"whole-gpus"`
	Parts      string `yaml:"parts"`      // of GPUs: manager (the default), host or anywhere
	BoxChoice  string `yaml:"box-choice"` // best-fit (the default) or worst-fit
	Blind      bool   `yaml:"blind-to-models"`
}

// Limits of a scenario.
const (
	maxScenario = 1 << 20
	maxError    = 500 // bytes of the parser's text
	maxPoolName = 80  // bytes; it is in each line of each table
	maxSeeds    = 1000
	maxServers  = 200_000
	maxRuns     = 64 // policies and pools
	maxDemand   = 4
)

// Load reads a scenario and the files that it names, which are in data.
func Load(fsys fs.FS, name string, data fs.FS) (*Experiment, error) {
	raw, err := readFile(fsys, name)
	if err != nil {
		return nil, err
	}
	s, err := decode(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, yamltext.Error(err, maxError))
	}
	s.Name = strings.TrimSuffix(path.Base(name), path.Ext(name))
	e, err := s.prepare(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return e, nil
}

// decode reads the text of a scenario. A field that it leaves out has its default, and one
// that it sets to zero is zero.
func decode(raw []byte) (*Scenario, error) {
	var given Scenario
	if err := yaml.Load(raw, &given, yaml.WithKnownFields(true)); err != nil {
		return nil, err
	}
	s := &Scenario{
		Kind: kindFill, Demand: 1.3, Seeds: 5, Life: 1, WarmUp: 8, Lives: 6, SpeedUp: 1, CoresPerGPU: 8, MemoryPerGPU: 32,
	}
	// A section has defaults of its own, and is there only if the text has it.
	if given.Failures != nil {
		s.Failures = &Failures{Years: 50, Repair: Repair{MedianDays: 0.85, MeanDays: 5.5}}
	}
	if given.Size != nil {
		s.Size = &Size{Accepted: 99}
	}
	return s, yaml.Load(raw, s, yaml.WithKnownFields(true))
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

// prepare checks the scenario, sets what it leaves open, and reads its lists.
func (s *Scenario) prepare(data fs.FS) (*Experiment, error) {
	s.complete()
	if err := s.check(); err != nil {
		return nil, err
	}
	e := &Experiment{Scenario: s}
	var err error
	if e.Nodes, err = s.nodes(data); err != nil {
		return nil, err
	}
	if s.Kind == kindFailures {
		if err := s.Failures.prepare(data); err != nil {
			return nil, err
		}
		return e, s.Failures.check(e.Nodes)
	}
	if s.Failures != nil {
		if err := s.Failures.prepare(data); err != nil {
			return nil, err
		}
	}
	if e.Pods, err = s.pods(data); err != nil {
		return nil, err
	}
	if s.WholeGPUs {
		e.Pods = Whole(e.Pods)
	}
	if s.Performance != nil {
		if err := s.Performance.prepare(); err != nil {
			return nil, err
		}
		if err := s.Performance.assign(e.Pods); err != nil {
			return nil, err
		}
	}
	return e, s.checkWork(e)
}

func (s *Scenario) complete() {
	if len(s.Loads) == 0 {
		s.Loads = []float64{0.8, 0.9, 0.95, 1}
	}
	if s.Queue == "" && s.Kind == kindReplay {
		s.Queue = "backfill"
	}
}

// queue returns what jobs do that fit nowhere.
func (s *Scenario) queue() Queueing {
	return map[string]Queueing{"fifo": FIFO, "backfill": Backfill}[s.Queue]
}

func (s *Scenario) check() error {
	within := func(v, low, high float64) bool { return v >= low && v <= high } // false for NaN
	switch n := len(s.Policies) + len(s.Pools); {
	case !slices.Contains([]string{kindFill, kindChurn, kindReplay, kindFailures, kindSize}, s.Kind):
		return fmt.Errorf("experiment %q: want fill, churn, replay, failures or size", s.Kind)
	case s.Kind != kindSize && (s.Kind == kindFailures) != (s.Failures != nil):
		return errors.New("want failures with the experiment failures, and else only with the experiment size")
	case (s.Kind == kindSize) != (s.Size != nil):
		return errors.New("want size with the experiment size, and only there")
	case !within(s.Demand, 0.1, maxDemand):
		return fmt.Errorf("demand %v: want 0.1 to %d", s.Demand, maxDemand)
	case n == 0 && s.Kind != kindFailures:
		return errors.New("there are no policies and no pools: want at least one of them")
	case n > 0 && s.Kind == kindFailures:
		return errors.New("want no policies and no pools with the experiment failures")
	case n > maxRuns:
		return fmt.Errorf("%d policies and pools: want at most %d", n, maxRuns)
	case (s.Nodes == "") == (len(s.Servers) == 0):
		return errors.New("want either nodes (a CSV file) or servers")
	case s.Kind != kindFailures && (s.Pods == "") == (len(s.Requests) == 0):
		return errors.New("want either pods (a CSV file) or requests")
	case s.Kind == kindReplay && s.Pods == "":
		return errors.New("a replay needs pods (a CSV file with times)")
	case len(s.Loads) > maxRuns || len(s.HostsKept) > maxRuns:
		return fmt.Errorf("%d loads, %d in hosts-kept: want at most %d", len(s.Loads), len(s.HostsKept), maxRuns)
	case !slices.Contains([]string{"", "refuse", "fifo", "backfill"}, s.Queue):
		return fmt.Errorf("queue %q: want refuse, fifo or backfill", s.Queue)
	case !within(s.Life, 1e-6, 1e6) || !within(s.WarmUp, 0, 1000) || !within(s.Lives, 0.1, 1000):
		return fmt.Errorf("life-hours %v, warm-up-lives %v, lives %v: want more than 0, 0 to 1000, and 0.1 to 1000", s.Life, s.WarmUp, s.Lives)
	case !within(s.SpeedUp, 1e-3, 1e6) || !within(s.Until, 0, 1e9):
		return fmt.Errorf("speed-up %v, until-hours %v: want 0.001 to 1000000, and 0 or more", s.SpeedUp, s.Until)
	case !within(s.CoresPerGPU, 0, 1024) || !within(s.MemoryPerGPU, 0, 1<<20):
		return fmt.Errorf("cores-per-gpu %v, memory-gib-per-gpu %v: want 0 to 1024, and 0 to %d", s.CoresPerGPU, s.MemoryPerGPU, 1<<20)
	}
	for _, v := range s.Loads {
		if !within(v, 0.01, maxDemand) {
			return fmt.Errorf("loads: %v: want 0.01 to %d", v, maxDemand)
		}
	}
	for _, v := range s.HostsKept {
		if !within(v, 1, 100) {
			return fmt.Errorf("hosts-kept: %v: want 1 to 100 per cent", v)
		}
	}
	return errors.Join(s.SetSeeds(s.Seeds), s.checkContestants(), s.Size.check())
}

// SetSeeds changes the number of runs.
func (s *Scenario) SetSeeds(n int) error {
	if n < 1 || n > maxSeeds {
		return fmt.Errorf("seeds %d: want 1 to %d", n, maxSeeds)
	}
	s.Seeds = n
	return nil
}

func (s *Scenario) checkContestants() error {
	names := map[string]bool{}
	for _, p := range s.Policies {
		switch _, ok := policies[p]; {
		case !ok:
			return fmt.Errorf("policy %q: want one of %s", clip(p), strings.Join(Policies(), ", "))
		case names[p]:
			return fmt.Errorf("policy %s: it is there twice: leave one", p)
		}
		names[p] = true
	}
	for i := range s.Pools {
		p := &s.Pools[i]
		if _, err := p.options(); err != nil {
			return err
		}
		if names[p.Name] {
			return fmt.Errorf("pool %s: another pool or policy has this name: give each its own", p.Name)
		}
		names[p.Name] = true
	}
	return nil
}

// maxJobs bounds the jobs of one run.
const maxJobs = 50_000_000

// checkWork bounds the jobs that arrive in one run of churn, and wants times for a replay.
func (s *Scenario) checkWork(e *Experiment) error {
	var held float64 // thousandths of GPU
	switch s.Kind {
	case kindChurn:
		held = slices.Max(s.Loads) * float64(totalGPU(e.Nodes))
	case kindSize:
		if err := s.Size.checkCluster(e, s.Failures); err != nil {
			return err
		}
		held = s.Size.GPUs * Milli
	case kindReplay:
		if !slices.ContainsFunc(e.Pods, func(p Pod) bool { return p.Created != e.Pods[0].Created || p.Deleted > p.Created }) {
			return fmt.Errorf("%s: the list has no times: want another experiment than replay", s.Pods)
		}
		return nil
	default:
		return nil
	}
	jobs := held / meanDemand(e.Pods) * (s.WarmUp + s.Lives)
	if jobs > maxJobs {
		return fmt.Errorf("%.0f jobs arrive in a run: want at most %d: lower lives or warm-up-lives", jobs, maxJobs)
	}
	return nil
}

// Policies returns the names of the policies.
func Policies() []string { return slices.Sorted(maps.Keys(policies)) }

func (s *Scenario) nodes(data fs.FS) ([]Node, error) {
	if s.Nodes != "" {
		f, err := openList(data, "nodes", s.Nodes)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		nodes, err := ReadNodes(f)
		return withGPUs(nodes), inList(s.Nodes, err)
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
		f, err := openList(data, "pods", s.Pods)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		pods, err := ReadJobs(f, JobDefaults{Cores: s.CoresPerGPU, MemoryGiB: s.MemoryPerGPU})
		return pods, inList(s.Pods, err)
	}
	var out []Pod
	for i, r := range s.Requests {
		if r.Weight < 1 || r.Weight > maxWeight-len(out) {
			return nil, fmt.Errorf("requests %d: weight %d: want 1 to %d in all", i+1, r.Weight, maxWeight)
		}
		if !(r.GPUs >= 0 && r.GPUs <= MaxGPUs && r.Cores >= 0 && r.Cores <= 1<<20 && r.MemoryGiB >= 0 && r.MemoryGiB <= 1<<20) {
			return nil, fmt.Errorf("requests %d: %v GPUs, %v cores, %v GiB: want 0 to %d GPUs, and 0 to %d cores and GiB", i+1, r.GPUs, r.Cores, r.MemoryGiB, MaxGPUs, 1<<20)
		}
		p := Pod{MilliCPU: int64(math.Round(r.Cores * 1000)), MemoryMiB: int64(math.Round(r.MemoryGiB * 1024)), GPUs: int(r.GPUs), MilliGPU: Milli, Models: r.Models, Profile: r.Profile}
		switch {
		case r.GPUs == 0:
			p.MilliGPU = 0
		case r.GPUs < 1:
			p.GPUs, p.MilliGPU = 1, max(int64(math.Round(r.GPUs*Milli)), 1)
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
	o := PoolOptions{
		BoxSize: p.BoxSize, MaxPerHost: p.MaxPerHost, WholeGPUs: p.WholeGPUs,
		PartsAnywhere: p.Parts == "anywhere", ManagerParts: (p.Parts == "" || p.Parts == "manager") && !p.WholeGPUs, WorstFit: p.BoxChoice == "worst-fit", BlindToModels: p.Blind,
	}
	one := map[string]placement.Preference{"": placement.Indifferent, "preferred": placement.Indifferent, "required": placement.Required, "avoided": placement.Avoided}
	var ok bool
	switch o.OneBox, ok = one[p.OneBox]; {
	case p.Name == "":
		return o, errors.New("a pool has no name")
	case len(p.Name) > maxPoolName:
		return o, fmt.Errorf("pool %s...: the name has %d bytes: want at most %d", p.Name[:maxPoolName], len(p.Name), maxPoolName)
	case !ok:
		return o, fmt.Errorf("pool %s: one-box %q: want preferred, required or avoided", p.Name, p.OneBox)
	case !slices.Contains([]string{"", "manager", "host", "anywhere"}, p.Parts):
		return o, fmt.Errorf("pool %s: parts %q: want manager, host or anywhere", p.Name, p.Parts)
	case !slices.Contains([]string{"", "best-fit", "worst-fit"}, p.BoxChoice):
		return o, fmt.Errorf("pool %s: box-choice %q: want best-fit or worst-fit", p.Name, p.BoxChoice)
	case p.BoxSize < 0 || p.BoxSize > maxBoxSize || p.MaxPerHost < 0:
		return o, fmt.Errorf("pool %s: box-size %d, max-per-host %d: want 1 to %d (0: 8), and 0 or more", p.Name, p.BoxSize, p.MaxPerHost, maxBoxSize)
	}
	return o, nil
}
