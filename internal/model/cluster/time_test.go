package cluster

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// line runs jobs on one server of 8 GPUs.
func line(queue Queueing, stays ...stay) timelineResult {
	nodes := []Node{{Name: "n", MilliCPU: 64_000, MemoryMiB: 1 << 20, GPUs: 8}}
	t := timeline{pl: newScheduler(nodes, bestFit{}, nil), queue: queue, to: 100}
	i := 0
	return t.run(func() (stay, bool) {
		if i == len(stays) {
			return stay{}, false
		}
		i++
		return stays[i-1], true
	})
}

func whole(name string, gpus int) *Pod { return &Pod{Name: name, GPUs: gpus, MilliGPU: Milli} }

// A job of 6 GPUs runs for 10 hours; behind it wait one of 4 and one of 1.
func TestQueues(t *testing.T) {
	six, four, one := stay{pod: whole("six", 6), life: 10}, stay{pod: whole("four", 4), at: 1, life: 5}, stay{pod: whole("one", 1), at: 2, life: 1}
	for _, tc := range []struct {
		queue Queueing
		want  string
	}{
		{Refuse, "2 of 3 started, waits [0 0], 61 GPU hours"},
		{FIFO, "3 of 3 started, waits [0 9 8], 81 GPU hours"},
		{Backfill, "3 of 3 started, waits [0 0 9], 81 GPU hours"},
	} {
		r := line(tc.queue, six, four, one)
		if got := fmt.Sprintf("%d of %d started, waits %v, %v GPU hours", r.Started, r.Jobs, r.Waits, r.GPU/Milli); got != tc.want {
			t.Errorf("%v: %s, want %s", tc.queue, got, tc.want)
		}
	}
}

// A job on several hosts gets all of them or none.
func TestCopies(t *testing.T) {
	two := &Pod{Name: "two", GPUs: 8, MilliGPU: Milli, Copies: 2}
	if r := line(Refuse, stay{pod: two, life: 1}, stay{pod: whole("eight", 8), at: 0.5, life: 1}); r.Started != 1 || r.GPU != 8*Milli {
		t.Errorf("%+v: want the job of one host only", r)
	}
}

// Slower jobs hold their GPUs for longer and do no more work.
func TestSpeed(t *testing.T) {
	nodes := []Node{{Name: "n", MilliCPU: 64_000, MemoryMiB: 1 << 20, GPUs: 8}}
	tl := timeline{pl: newPool(nodes, PoolOptions{}), to: 100, speed: func(*Pod) float64 { return 0.8 }}
	done := false
	r := tl.run(func() (stay, bool) {
		s, ok := stay{pod: whole("p", 2), life: 8}, !done
		done = true
		return s, ok
	})
	if r.GPU != 20*Milli || math.Abs(r.Work-16*Milli) > 1e-6 {
		t.Errorf("%v GPU hours held, %v worked, want 20 and 16", r.GPU/Milli, r.Work/Milli)
	}
}

// A timeline gives back all that it took, counts each job once, and
// never gives more than there is.
func TestTimeline(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes, pods := drawNodes(t), drawPods(t)
		for i := range pods {
			pods[i].Copies = rapid.IntRange(0, 2).Draw(t, "copies")
		}
		queue := rapid.SampledFrom([]Queueing{Refuse, FIFO, Backfill}).Draw(t, "queue")
		pl := newPool(nodes, PoolOptions{PartsAnywhere: rapid.Bool().Draw(t, "anywhere")})
		tl := timeline{pl: pl, queue: queue, to: 1e6}
		n, at := rapid.IntRange(0, 60).Draw(t, "jobs"), 0.0
		jobs := 0
		r := tl.run(func() (stay, bool) {
			if jobs == n {
				return stay{}, false
			}
			jobs++
			at += rapid.Float64Range(0, 2).Draw(t, "gap")
			return stay{pod: &pods[rapid.IntRange(0, len(pods)-1).Draw(t, "pod")], at: at, life: rapid.Float64Range(0, 10).Draw(t, "life")}, true
		})
		counted := 0
		for _, s := range r.BySize {
			counted += s.Pods
		}
		if r.Jobs != n || counted != n || queue == Refuse && r.Unstarted > 0 || r.PeakGPU > float64(totalGPU(nodes)) {
			t.Fatalf("%d jobs: %+v", n, r)
		}
		for i := range pl.hosts.hosts {
			if h := &pl.hosts.hosts[i]; h.cpu != nodes[i].MilliCPU || h.gpus != 0 {
				t.Fatalf("host %d at the end: %+v", i, h.hostState)
			}
		}
		if tl.held.gpu != 0 {
			t.Fatalf("%v thousandths held at the end", tl.held.gpu)
		}
	})
}

// Under churn the GPU in use is the load, as long as all fits, and the pool of small
// servers takes jobs that servers break up.
func TestChurn(t *testing.T) {
	r := run(t, `
experiment: churn
servers: [{count: 60, cores: 64, memory-gib: 512, gpus: 4, model: A}]
requests: [{weight: 60, gpus: 1, cores: 4}, {weight: 10, gpus: 4, cores: 16}]
loads: [0.5, 0.9]
seeds: 4
lives: 20
policies: [random, best-fit]
pools: [{name: pool}]
`)
	for _, row := range []string{"best-fit", "pool"} {
		if v := cell(t, r, "use_50", row, "gpu_used"); math.Abs(v-50) > 3 {
			t.Errorf("%s uses %.1f %% at a load of 50 %%", row, v)
		}
	}
	random, pool := cell(t, r, "accepted_90", "random", "gpus_4"), cell(t, r, "accepted_90", "pool", "gpus_4")
	if random > 70 || pool < 93 {
		t.Errorf("jobs of 4 GPUs: random %.1f %%, pool %.1f %%", random, pool)
	}
}

func TestReadJobs(t *testing.T) {
	pods, err := ReadJobs(strings.NewReader(`jobid,submitted_time,duration,num_gpus,cores,gpu_type,model_name
a,2017-10-07 02:24:50,3600,1,,A|B,resnet
b,1507343090.4,0,0.25,2,,
c,100,60.4,20,240,,
d,0,,0,4,,
`), JobDefaults{Cores: 6, MemoryGiB: 10})
	if err != nil {
		t.Fatal(err)
	}
	want := []Pod{
		{Name: "a", MilliCPU: 6000, MemoryMiB: 10240, GPUs: 1, MilliGPU: Milli, Models: "A|B", Created: 1507343090, Deleted: 1507346690, Profile: "resnet"},
		{Name: "b", MilliCPU: 2000, MemoryMiB: 2560, GPUs: 1, MilliGPU: 250, Created: 1507343090, Deleted: 1507343091},
		{Name: "c", MilliCPU: 80_000, MemoryMiB: 68267, GPUs: 8, MilliGPU: Milli, Copies: 3, Created: 100, Deleted: 160},
		{Name: "d", MilliCPU: 4000},
	}
	if fmt.Sprint(pods) != fmt.Sprint(want) {
		t.Errorf("\n%+v, want\n%+v", pods, want)
	}
	pods, err = ReadJobs(strings.NewReader(`start_time,submit_time,end_time,name,job_id,gpus
70,40,90,same,a,1
,50,60,same,b,1
30,,35,same,c,1
`), JobDefaults{})
	want = []Pod{
		{Name: "a", GPUs: 1, MilliGPU: Milli, Created: 40, Deleted: 60},
		{Name: "b", GPUs: 1, MilliGPU: Milli, Created: 50, Deleted: 60},
		{Name: "c", GPUs: 1, MilliGPU: Milli, Created: 30, Deleted: 35},
	}
	if err != nil || fmt.Sprint(pods) != fmt.Sprint(want) {
		t.Errorf("%v: %+v, want %+v", err, pods, want)
	}
	pods, err = ReadJobs(strings.NewReader(`instance_sn,role,cpu_request,gpu_request,memory_request,creation_time,deletion_time
i,HN,12,1,120.5,,
k,CN,64,0,400.0,183233.0,214387.0
`), JobDefaults{})
	want = []Pod{
		{Name: "i", MilliCPU: 12_000, MemoryMiB: 123_392, GPUs: 1, MilliGPU: Milli},
		{Name: "k", MilliCPU: 64_000, MemoryMiB: 409_600, Created: 183233, Deleted: 214387},
	}
	if err != nil || fmt.Sprint(pods) != fmt.Sprint(want) {
		t.Errorf("%v: %+v, want %+v", err, pods, want)
	}
}

func TestWrongJobs(t *testing.T) {
	for _, tc := range [][2]string{
		{"", "no header"},
		{"job\na\n", "no column gpus"},
		{"job,gpus\na,1.5\n", "line 2: 1.5 GPUs"},
		{"job,gpus\na,99999\n", "line 2: 99999 GPUs"},
		{"job,gpus,submit\na,1,yesterday\n", `line 2: submit "yesterday"`},
		{"job,gpus,submit\na,1,-4\n", `submit "-4"`},
		{"job,gpus,submit,start\na,1,4,3\n", "line 2: started at 3 s, before its submission at 4 s"},
		{"job,gpus,submit,start,end\na,1,1,5,4\n", "line 2: ended at 4 s, before its start at 5 s"},
		{"job,gpus\na,1\na,1\n", `line 3: job "a" is in line 2, too`},
		{"job,gpus,duration\na,1,1e300\n", `duration "1e300"`},
	} {
		if _, err := ReadJobs(strings.NewReader(tc[0]), JobDefaults{}); err == nil || !strings.Contains(err.Error(), tc[1]) {
			t.Errorf("%q: %v, want %q", tc[0], err, tc[1])
		}
	}
}

// The cost of a step is what each of its operations adds.
func TestProfile(t *testing.T) {
	p := Performance{RTT: "6.8us", Profiles: []Profile{{Name: "a", StepMS: 100, Kernels: 1000}, {Name: "b", StepMS: 100, CopiesToHost: 1000, MBToDevice: 26.35}}}
	if err := p.prepare(); err != nil {
		t.Fatal(err)
	}
	// 1000 kernels of one dRTT, 5.6 us. 1000 copies of half of it, and 26.35 MB at 2.635
	// instead of 11.9 GB/s or so, the rate of the link.
	if v := p.speeds["a"]; math.Abs(v-100/105.6) > 1e-9 {
		t.Errorf("%v", v)
	}
	if v := p.speeds["b"]; v < 100/112.9 || v > 100/109.8 {
		t.Errorf("%v", v)
	}
	for text, want := range map[string]string{
		"{rtt: 6.8}":                        "unit",
		"{rtt: 6.8us}":                      "0 profiles",
		"{rtt: 6.8us, costs: x}":            `costs "x"`,
		"{rtt: 6us, profiles: [{name: a}]}": "step-ms",
		"{rtt: 6us, profiles: [{name: a, step-ms: 1, kernels: -1}]}":                    "-1",
		"{rtt: 6us, profiles: [{name: a, step-ms: 1}, {name: a, step-ms: 1}]}":          "name of its own",
		"{rtt: 6us, profiles: [{name: a, step-ms: 1}], mix: [{profile: b, weight: 1}]}": `profile "b"`,
		"{rtt: 6us, profiles: [{name: a, step-ms: 1}], prices: {gpu-hour: .inf}}":       "price",
	} {
		_, err := load(t, "nodes: nodes.csv\npods: pods.csv\npolicies: [fgd]\nperformance: "+text+"\n")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// A job of no time holds its GPUs for a second; only one without a duration stays.
func TestJobOfNoTime(t *testing.T) {
	pods, err := ReadJobs(strings.NewReader("job,gpus,submit,duration\na,1,5,0\nb,1,5,0.2\nc,1,5,\n"), JobDefaults{})
	if err != nil || pods[0].Deleted != 6 || pods[1].Deleted != 6 || pods[2].Deleted != 0 {
		t.Errorf("%+v, %v", pods, err)
	}
	pods, err = ReadJobs(strings.NewReader("job,gpus,submit,end\na,1,5,5\n"), JobDefaults{})
	if err != nil || pods[0].Deleted != 6 {
		t.Errorf("%+v, %v", pods, err)
	}
}

func FuzzReadJobs(f *testing.F) {
	f.Add("jobid,submitted_time,duration,num_gpus,cores\na,2017-10-07 02:24:50,3600,1,\nb,4,,20,7\n")
	f.Add("instance_sn,role,cpu_request,gpu_request,memory_request,creation_time,deletion_time\ni,HN,12,1,120.5,,\n")
	f.Add("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time\nx,1,2,1,460,A|B,3,4\n")
	f.Fuzz(func(t *testing.T, text string) {
		pods, err := ReadJobs(strings.NewReader(text), JobDefaults{Cores: 8, MemoryGiB: 32})
		if err == nil && checkPods(pods) != nil {
			t.Fatalf("%+v", pods)
		}
	})
}

// Waiting jobs come in the order of their arrival, whatever their shapes, and a queue with
// very many shapes ends in a bounded time.
func TestWaitingOrder(t *testing.T) {
	var w waitingJobs
	small, large := Pod{GPUs: 1, MilliGPU: Milli}, Pod{GPUs: 2, MilliGPU: Milli}
	for i, p := range []*Pod{&small, &large, &small, &small, &large} {
		w.add(stay{pod: p, at: float64(i), number: i})
	}
	for i, want := range []float64{0, 1, 2, 3, 4} {
		if at := w.order[0].jobs[0].at; at != want || w.n != 5-i {
			t.Fatalf("%v with %d waiting, want %v", at, w.n, want)
		}
		w.drop(0)
	}
	if len(w.order) > 0 || len(w.lines) > 0 {
		t.Errorf("%d lines are left", len(w.order))
	}
	w.add(stay{pod: &small, at: 1, number: 1})
	w.add(stay{pod: &large, at: 2, number: 2})
	w.add(stay{pod: &small, at: 3, number: 3})
	if w.drop(1); w.n != 2 || len(w.order) != 1 || w.order[0].jobs[0].at != 1 {
		t.Errorf("%d waiting in %d lines", w.n, len(w.order))
	}
}

// countingPlacer is a cluster of which nothing is free.
type countingPlacer struct {
	placer
	tries int
}

func (c *countingPlacer) place(*Pod) (placed, bool) { c.tries++; return placed{}, false }

// When jobs end, what is tried is bounded, and a job that asks for more than one that did
// not fit is not tried.
func TestBackfillIsBounded(t *testing.T) {
	for _, tc := range []struct {
		name string
		pod  func(i int) Pod
		want int
	}{
		{"each asks for more", func(i int) Pod { return Pod{GPUs: 1, MilliGPU: Milli, MilliCPU: int64(i)} }, 1},
		{"more of one, less of another", func(i int) Pod { return Pod{GPUs: 1, MilliGPU: Milli, MilliCPU: int64(i), MemoryMiB: int64(-i)} }, maxBackfill},
		{"other models", func(i int) Pod { return Pod{GPUs: 1, MilliGPU: Milli, Models: fmt.Sprint(i % 7), MilliCPU: int64(i)} }, 7},
	} {
		c := &countingPlacer{}
		line := timeline{pl: c}
		for i := range 3 * maxBackfill {
			p := tc.pod(i)
			line.waiting.add(stay{pod: &p, at: float64(i), number: i})
		}
		if line.startWaiting(); c.tries != tc.want {
			t.Errorf("%s: %d tries, want %d", tc.name, c.tries, tc.want)
		}
	}
}

// A copy to the device costs what it loses in bandwidth, or its later begin, as in package
// predict, and not both.
func TestCopiesToDeviceCostOnce(t *testing.T) {
	for _, tc := range []struct {
		copies, mb float64
		want       float64 // ms that a step of 100 ms takes longer
	}{{1000, 0, 5.6}, {1000, 1, 5.6}, {0, 26.35, 7.8}, {1000, 26.35, 7.8}} {
		p := Performance{RTT: "6.8us", Profiles: []Profile{{Name: "a", StepMS: 100, CopiesToDevice: tc.copies, MBToDevice: tc.mb}}}
		if err := p.prepare(); err != nil {
			t.Fatal(err)
		}
		if v := 100/p.speeds["a"] - 100; math.Abs(v-tc.want) > 0.1 {
			t.Errorf("%v copies of %v MB take %.2f ms, want %v", tc.copies, tc.mb, v, tc.want)
		}
	}
}
