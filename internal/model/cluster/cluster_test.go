package cluster

import (
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

func drawNodes(t *rapid.T) []Node {
	models := []string{"A", "B", ""}
	out := []Node{{Name: "n", MilliCPU: 64_000, MemoryMiB: 1 << 20, GPUs: 8, Model: "A"}}
	for i := range rapid.IntRange(0, 12).Draw(t, "nodes") {
		out = append(out, Node{
			Name: fmt.Sprint("n", i), MilliCPU: rapid.Int64Range(0, 128_000).Draw(t, "cpu"), MemoryMiB: rapid.Int64Range(0, 1<<20).Draw(t, "memory"),
			GPUs: rapid.IntRange(0, 9).Draw(t, "gpus"), Model: rapid.SampledFrom(models).Draw(t, "model"),
		})
	}
	return out
}

func drawPods(t *rapid.T) []Pod {
	out := []Pod{{Name: "p", GPUs: 1, MilliGPU: Milli}}
	for i := range rapid.IntRange(1, 30).Draw(t, "pods") {
		p := Pod{
			Name: fmt.Sprint("p", i), MilliCPU: rapid.Int64Range(0, 20_000).Draw(t, "cpu"), MemoryMiB: rapid.Int64Range(0, 1<<18).Draw(t, "memory"),
			GPUs: rapid.IntRange(0, 9).Draw(t, "gpus"), MilliGPU: Milli, Models: rapid.SampledFrom([]string{"", "A", "A|B", "C", "|"}).Draw(t, "models"),
		}
		switch p.GPUs {
		case 0:
			p.MilliGPU = 0
		case 1:
			p.MilliGPU = rapid.Int64Range(1, Milli).Draw(t, "milli")
		}
		out = append(out, p)
	}
	return out
}

// Every policy gives only what is free, to pods that fit, and takes all of it back.
func TestServersGiveWhatTheyHave(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, pods := drawNodes(t), drawPods(t)
		name := rapid.SampledFrom(Policies()).Draw(t, "policy")
		policy, err := policyOf(name, nodes, typicalPods(pods))
		if err != nil {
			t.Fatal(err)
		}
		c := newScheduler(nodes, policy, rngOf(1, 2))
		type run struct {
			pod *Pod
			at  placed
		}
		var runs []run
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			if len(runs) > 0 && rapid.IntRange(0, 3).Draw(t, "end") == 0 {
				i := rapid.IntRange(0, len(runs)-1).Draw(t, "which")
				c.remove(runs[i].pod, runs[i].at)
				runs = append(runs[:i], runs[i+1:]...)
				continue
			}
			p := &pods[rapid.IntRange(0, len(pods)-1).Draw(t, "pod")]
			fits := false
			for i := range c.servers {
				fits = fits || c.servers[i].fits(p)
			}
			first := firstOfBest(c, p)
			at, ok := c.place(p)
			if ok != fits {
				t.Fatalf("%s: %+v is placed: %v, fits: %v", name, p, ok, fits)
			}
			if ok && at.node != first && name != "random" {
				t.Fatalf("%s: %+v is on server %d, the first of the best is %d", name, p, at.node, first)
			}
			if ok {
				if !p.accepts(nodes[at.node].Model) && p.GPUs > 0 {
					t.Fatalf("%s: %+v on a GPU of model %q", name, p, nodes[at.node].Model)
				}
				runs = append(runs, run{p, at})
			}
			for i := range c.servers {
				checkServer(t, &c.servers[i])
			}
		}
		for _, r := range runs {
			c.remove(r.pod, r.at)
		}
		fresh := newServers(nodes)
		for i := range c.servers {
			if d := cmp.Diff(fresh[i].free, c.servers[i].free); d != "" || c.servers[i].cpu != fresh[i].cpu || c.servers[i].memory != fresh[i].memory || c.servers[i].kinds != fresh[i].kinds {
				t.Fatalf("server %d after all have ended: %s", i, d)
			}
		}
	})
}

// firstOfBest is where a scheduler places a pod, by a look at each server.
func firstOfBest(c *scheduler, p *Pod) int {
	best, score := -1, int64(0)
	for i := range c.servers {
		if v := &c.servers[i]; v.fits(p) {
			if s, _ := c.policy.score(v, p); best < 0 || s > score {
				best, score = i, s
			}
		}
	}
	return best
}

func checkServer(t *rapid.T, s *server) {
	var sum int64
	for _, f := range s.free {
		if f < 0 || f > Milli {
			t.Fatalf("a GPU has %d thousandths left", f)
		}
		sum += f
	}
	if sum != s.left || s.cpu < 0 || s.memory < 0 {
		t.Fatalf("%d left, the GPUs sum up to %d; %d millicores, %d MiB", s.left, sum, s.cpu, s.memory)
	}
}

// The pool binds each GPU to one host at most, and keeps to its limits.
func TestPoolGivesWhatItHas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, pods := drawNodes(t), drawPods(t)
		opt := PoolOptions{
			BoxSize: rapid.IntRange(1, 10).Draw(t, "box"), MaxPerHost: rapid.IntRange(0, 9).Draw(t, "most"), WholeGPUs: rapid.Bool().Draw(t, "whole"),
			ManagerParts: rapid.Bool().Draw(t, "manager"), PartsAnywhere: rapid.Bool().Draw(t, "anywhere"), WorstFit: rapid.Bool().Draw(t, "worst"), BlindToModels: rapid.Bool().Draw(t, "blind"),
			OneBox: rapid.SampledFrom([]placement.Preference{placement.Indifferent, placement.Required, placement.Avoided}).Draw(t, "one box"),
		}
		c := newPool(nodes, opt)
		total := int(totalGPU(nodes) / Milli)
		type run struct {
			pod *Pod
			at  placed
		}
		var runs []run
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			if len(runs) > 0 && rapid.IntRange(0, 3).Draw(t, "end") == 0 {
				i := rapid.IntRange(0, len(runs)-1).Draw(t, "which")
				c.remove(runs[i].pod, runs[i].at)
				runs = append(runs[:i], runs[i+1:]...)
			} else {
				p := &pods[rapid.IntRange(0, len(pods)-1).Draw(t, "pod")]
				if at, ok := c.place(p); ok {
					runs = append(runs, run{p, at})
				}
			}
			bound := 0
			for i := range c.hosts.hosts {
				h := &c.hosts.hosts[i]
				bound += h.gpus
				if h.cpu < 0 || h.memory < 0 || h.gpus < 0 || opt.MaxPerHost > 0 && h.gpus > opt.MaxPerHost {
					t.Fatalf("host %d: %+v", i, h)
				}
				if want := firstBest(c.hosts.hosts, &pods[0], opt.MaxPerHost); c.hosts.best(&pods[0], opt.MaxPerHost) != want {
					t.Fatalf("the index finds another host than %d", want)
				}
			}
			for _, b := range c.served {
				for i := range b.GPUs {
					n := int64(0)
					for _, s := range b.Parts {
						if s.GPU == b.GPUs[i].Slot && s.Taken {
							n++
						}
					}
					bound -= int(max(n-1, 0)) // one slot for each part
					if n > 0 && b.GPUs[i].Whole {
						t.Fatalf("parts on a GPU that is bound as a whole: %+v", b)
					}
				}
			}
			for left, step := range c.parts {
				for _, g := range step {
					if g.left != int64(left) || g.left >= Milli || g.pods < 1 {
						t.Fatalf("a shared GPU: %+v", g)
					}
					if g.host < 0 {
						bound -= g.pods - 1 // one slot for each part
					}
				}
			}
			free := 0
			for _, n := range c.free {
				free += n
			}
			if bound+free != total {
				t.Fatalf("%d bound and %d free of %d", bound, free, total)
			}
		}
		for _, r := range runs {
			c.remove(r.pod, r.at)
		}
		for i := range c.hosts.hosts {
			if h := &c.hosts.hosts[i]; h.cpu != nodes[i].MilliCPU || h.memory != nodes[i].MemoryMiB || h.gpus != 0 {
				t.Fatalf("host %d after all have ended: %+v", i, h)
			}
		}
	})
}

// firstBest is what hostIndex.best finds, by a look at each host.
func firstBest(hosts []host, p *Pod, most int) int {
	best := -1
	for i := range hosts {
		if hosts[i].fits(p, most) && (best < 0 || hosts[i].cpu < hosts[best].cpu) {
			best = i
		}
	}
	return best
}

// The fragmentation of a server is the sum over typical pods of what each of them
// cannot use (the definition, computed without groups).
func TestFragmentation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, pods := drawNodes(t), drawPods(t)
		typical := typicalPods(pods)
		f := newFGD(nodes, typical)
		for _, s := range newServers(nodes) {
			for i := range s.free {
				s.free[i] = rapid.Int64Range(0, Milli).Draw(t, "free")
			}
			cpu := rapid.Int64Range(0, 128_000).Draw(t, "cpu")
			var want int64
			for _, p := range typical {
				pod := Pod{MilliCPU: p.cpu, GPUs: p.gpus, MilliGPU: p.milli, Models: p.models}
				var total, below int64
				n := 0
				for _, free := range s.free {
					total += free
					if free >= p.milli {
						n++
					} else {
						below += free
					}
				}
				if p.gpus > 0 && pod.accepts(s.spec.Model) && n >= p.gpus && cpu >= p.cpu {
					want += p.count * below
				} else {
					want += p.count * total
				}
			}
			if got := fragmented(f.model[s.spec.Model], cpu, s.free); got != want {
				t.Fatalf("%v, want %v: %v free, %d millicores", got, want, s.free, cpu)
			}
		}
	})
}

// A pod that fragments no server scores the same on all, however many GPUs are free: a
// third of the pods finds less useless GPU, and a third more.
func TestFragmentationIsExact(t *testing.T) {
	typical := typicalPods([]Pod{{MilliCPU: 1000, GPUs: 4, MilliGPU: Milli, Models: "B"}, {MilliCPU: 1000, GPUs: 1, MilliGPU: Milli}, {MilliCPU: 1000, GPUs: 1, MilliGPU: 500}})
	pod := &Pod{MilliCPU: 1000, GPUs: 1, MilliGPU: 500}
	for n := 1; n <= MaxGPUs; n++ {
		nodes := []Node{{MilliCPU: 64_000, MemoryMiB: 1, GPUs: n, Model: "A"}}
		if got, gpu := newFGD(nodes, typical).score(&newServers(nodes)[0], pod); got != maxScore/2 || gpu != 0 {
			t.Errorf("%d GPUs: score %d and GPU %d, want %d and 0", n, got, gpu, maxScore/2)
		}
	}
}

func load(t *testing.T, text string) (*Experiment, error) {
	t.Helper()
	fsys := fstest.MapFS{
		"s.yaml":    {Data: []byte(text)},
		"nodes.csv": {Data: []byte("sn,cpu_milli,memory_mib,gpu,model\nb,64000,262144,2,P100\na,32000,262144,0,\nc,96000,393216,8,G2\n")},
		"pods.csv":  {Data: []byte("name,cpu_milli,memory_mib,num_gpu,gpu_milli\nx,4000,1024,1,460\ny,8000,2048,2,1000\nz,1000,100,0,0\n")},
	}
	return Load(fsys, "s.yaml", fsys)
}

// run returns the report of a scenario.
func run(t *testing.T, text string) *Report {
	t.Helper()
	e, err := load(t, text)
	if err != nil {
		t.Fatal(err)
	}
	r, err := e.Run(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// cell returns a value of a report.
func cell(t *testing.T, r *Report, table, row, column string) float64 {
	t.Helper()
	for _, tab := range r.Tables {
		for k, c := range tab.Columns {
			for _, line := range tab.Rows {
				if tab.Name == table && c.Key == column && line.Name == row {
					return line.Values[k]
				}
			}
		}
	}
	t.Fatalf("no column %s of %s in the table %s: %+v", column, row, table, r.Tables)
	return 0
}

func TestScenario(t *testing.T) {
	const text = "nodes: nodes.csv\npods: pods.csv\npolicies: [best-fit, random]\npools: [{name: pool}]\nseeds: 3\n"
	e, err := load(t, text)
	if err != nil {
		t.Fatal(err)
	}
	if len(e.Nodes) != 2 || len(e.Pods) != 3 || e.Pods[0].MilliGPU != 460 {
		t.Fatalf("%+v", e)
	}
	one := run(t, text)
	if d := cmp.Diff(fmt.Sprint(one), fmt.Sprint(run(t, text))); d != "" {
		t.Errorf("two runs differ: %s", d)
	}
	if v := cell(t, one, "allocation", "best-fit", "gpu_at_100"); v < 90 {
		t.Errorf("best-fit: %v", v)
	}
	cell(t, one, "allocation", "pool", "gpu_at_130")
}

func TestWrongScenarios(t *testing.T) {
	const rest = "nodes: nodes.csv\npods: pods.csv\npolicies: [fgd]\n"
	for _, tc := range [][2]string{
		{"description: x\n", "no policies and no pools"},
		{"nodes: [", "yaml"},
		{rest + "x: 1\n", "x"},
		{rest + "demand: -1\n", "demand -1"},
		{rest + "seeds: 100000\n", "seeds 100000"},
		{rest + "servers: [{count: 1, gpus: 8}]\n", "either nodes"},
		{"pods: pods.csv\npolicies: [fgd]\n", "either nodes"},
		{"nodes: no.csv\npods: pods.csv\npolicies: [fgd]\n", "no.csv"},
		{"nodes: pods.csv\npods: pods.csv\npolicies: [fgd]\n", `no column`},
		{"nodes: ../x\npods: pods.csv\npolicies: [fgd]\n", "../x"},
		{"nodes: nodes.csv\npods: pods.csv\npolicies: [worst]\n", "policy \"worst\": want one of best-fit"},
		{"nodes: nodes.csv\npods: pods.csv\npools: [{box-size: 4}]\n", "no name"},
		{"nodes: nodes.csv\npods: pods.csv\npools: [{name: p, one-box: x}]\n", "want preferred"},
		{"servers: [{count: 1000000, gpus: 8}]\npods: pods.csv\npolicies: [fgd]\n", "count 1000000"},
		{"servers: [{count: 1, gpus: 99}]\npods: pods.csv\npolicies: [fgd]\n", "99 GPUs"},
		{"servers: [{count: 1, cores: 8}]\npods: pods.csv\npolicies: [fgd]\n", "has a GPU"},
		{"nodes: nodes.csv\nrequests: [{weight: 1, gpus: 1.5}]\npolicies: [fgd]\n", "whole number"},
		{"nodes: nodes.csv\nrequests: [{weight: 1, gpus: .nan}]\npolicies: [fgd]\n", "NaN GPUs"},
		{"nodes: nodes.csv\nrequests: [{weight: 1, cores: 1}]\npolicies: [fgd]\n", "asks for a GPU"},
		{"nodes: nodes.csv\nrequests: [{weight: -1, gpus: 1}]\npolicies: [fgd]\n", "weight -1"},
	} {
		text, want := tc[0], tc[1]
		if _, err := load(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// A pool wins nothing where servers are equal and have processors to spare.
func TestPoolDoesNotFlatter(t *testing.T) {
	r := run(t, `
servers: [{count: 40, cores: 128, memory-gib: 1024, gpus: 8, model: A}]
requests: [{weight: 80, gpus: 1, cores: 8}, {weight: 8, gpus: 2, cores: 16}, {weight: 6, gpus: 4, cores: 32}, {weight: 6, gpus: 8, cores: 64}]
policies: [best-fit]
pools: [{name: pool}]
`)
	if a, b := cell(t, r, "allocation", "best-fit", "gpu_at_100"), cell(t, r, "allocation", "pool", "gpu_at_100"); a != b {
		t.Errorf("best-fit %v, pool %v", a, b)
	}
}

// A scheduler keeps a bounded number of scores, and decides the same without them.
func TestKeptScoresAreBounded(t *testing.T) {
	nodes := make([]Node, 10)
	for i := range nodes {
		nodes[i] = Node{MilliCPU: 64_000, MemoryMiB: 1 << 20, GPUs: 8}
	}
	few, all := newScheduler(nodes, bestFit{}, nil), newScheduler(nodes, bestFit{}, nil)
	few.most = 3 * len(nodes)
	for i := range 200 {
		p := Pod{MilliCPU: int64(1 + i*7%40), GPUs: 1, MilliGPU: int64(100 + i%3*300)}
		a, okA := few.place(&p)
		b, okB := all.place(&p)
		if a != b || okA != okB {
			t.Fatalf("pod %d: %+v, %v and %+v, %v", i, a, okA, b, okB)
		}
		if len(few.caches) > 3 {
			t.Fatalf("the scores of %d shapes are kept", len(few.caches))
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add("servers: [{count: 4, cores: 8, memory-gib: 8, gpus: 8, model: A}]\nrequests: [{weight: 1, gpus: 0.5, cores: 1}]\npolicies: [fgd]\npools: [{name: p}]\nseeds: 1\n")
	f.Fuzz(func(t *testing.T, text string) {
		fsys := fstest.MapFS{"s.yaml": {Data: []byte(text)}}
		e, err := Load(fsys, "s.yaml", fsys)
		if err != nil || len(e.Nodes) > 64 || len(e.Pods) > 64 {
			return
		}
		e.Seeds, e.Lives, e.WarmUp = 1, min(e.Lives, 2), min(e.WarmUp, 1)
		if _, err := e.Run(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	})
}

func BenchmarkFGD(b *testing.B) {
	nodes := make([]Node, 1200)
	for i := range nodes {
		nodes[i] = Node{Name: fmt.Sprint(i), MilliCPU: 96_000, MemoryMiB: 1 << 19, GPUs: 8, Model: "A"}
	}
	var pods []Pod
	for i := range 8000 {
		pods = append(pods, Pod{Name: fmt.Sprint(i), MilliCPU: int64(i%16) * 1000, MemoryMiB: 1 << 13, GPUs: 1, MilliGPU: []int64{250, 460, 1000}[i%3]})
	}
	for b.Loop() {
		f := Fill{Nodes: nodes, Pods: pods, Demand: 1.3}
		if _, err := f.Run(b.Context(), "fgd"); err != nil {
			b.Fatal(err)
		}
	}
}
