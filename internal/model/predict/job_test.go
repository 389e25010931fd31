package predict

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// cluster is a data-parallel run of several ranks, simulated independently of the
// predictor. Its ranks are programs with different kernels in each step, and a
// collective ends when its work is done after the last rank has come.
type cluster struct {
	ranks []*program
	comm  time.Duration
}

// newCluster makes n ranks, of which those in remote have a longer round trip by delta.
func newCluster(t *testing.T, n int, remote func(rank int) bool, delta, comm time.Duration) *cluster {
	c := &cluster{comm: comm}
	for r := range n {
		p := &program{streams: map[int]*simStream{}, out: record(t), tell: all, host: time.Duration(r) * stagger}
		if remote(r) {
			p.delta = delta
		}
		c.ranks = append(c.ranks, p)
	}
	return c
}

// uneven is the length of a kernel, different for each rank, step and bucket.
func uneven(base time.Duration, rank, step, bucket int) time.Duration {
	return base + base*time.Duration((rank*7+step*3+bucket*5)%8)/16
}

// stagger is by how much each rank begins later than the one before it.
const stagger = 300 * us

// run simulates training steps and returns the longest time that a rank takes for them.
func (c *cluster) run(steps int) time.Duration {
	for step := range steps {
		for r, p := range c.ranks {
			p.step(fmt.Sprintf("ProfilerStep#%d", step))
			for range 40 {
				p.launch(compute, uneven(20*us, r, step, 0))
			}
		}
		for b := range buckets {
			for r, p := range c.ranks {
				for range bucket {
					p.launch(compute, uneven(40*us, r, step, b))
				}
				p.order(collectives, compute)
			}
			c.collective()
		}
		c.optimize()
	}
	return c.length()
}

// optimize ends a step of each rank: a kernel behind the collectives, and a wait.
func (c *cluster) optimize() {
	for _, p := range c.ranks {
		p.order(compute, collectives)
		p.launch(compute, 10*us)
		p.sync(compute)
	}
}

// length returns the time of the slowest host.
func (c *cluster) length() (longest time.Duration) {
	for r, p := range c.ranks {
		longest = max(longest, p.host-time.Duration(r)*stagger)
	}
	return longest
}

func (p *program) step(name string) {
	th, _ := p.out.b.Thread(workload.Thread{ID: 1})
	p.out.b.AddStep(workload.Step{Name: name, Thread: th, Start: p.host, Dur: us}, here)
}

// collective launches a collective on every rank.
func (c *cluster) collective() {
	var last time.Duration
	starts := make([]time.Duration, len(c.ranks))
	for r, p := range c.ranks {
		s := p.stream(collectives)
		starts[r] = max(p.host+simLaunch, s.wait)
		if s.end > 0 {
			starts[r] = max(starts[r], s.end+simNext)
		}
		last = max(last, starts[r]+p.delta)
	}
	for r, p := range c.ranks {
		corr := p.out.launch(workload.Launch, 1, p.host, simCall)
		s := p.stream(collectives)
		s.end, s.wait = last+c.comm, 0
		p.out.collective("AllReduce", corr, collectives, starts[r], s.end-starts[r])
		p.host += simCall + simCompute
	}
}

func (r *recorder) collective(kind string, corr uint32, stream int, at, dur time.Duration) {
	st, _ := r.b.Stream(workload.Stream{ID: uint64(stream)})
	name := r.b.Name([]byte("ncclDevKernel_" + kind + "_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"))
	r.b.AddOp(workload.Op{Kind: workload.Kernel, Corr: corr, Stream: st, Start: at, Dur: dur, Name: name}, here)
}

func (c *cluster) plans() (out []*Plan) {
	for _, p := range c.ranks {
		out = append(out, p.out.plan())
	}
	return out
}

func (c *cluster) job(t *testing.T) *Job {
	t.Helper()
	j, err := NewJob(c.plans())
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func everyRank(int) bool { return true }

// Several ranks are predicted as a simulation of them all says, although each trace
// alone records the waiting for the others as the length of a kernel.
func TestRanks(t *testing.T) {
	const ranks, steps = 4, 6
	for _, comm := range []time.Duration{50 * us, 200 * us, 330 * us, 500 * us} {
		for _, delta := range []time.Duration{6 * us, 18 * us} {
			for name, remote := range map[string]func(int) bool{"all remote": everyRank, "one remote": func(r int) bool { return r == 2 }} {
				native := newCluster(t, ranks, remote, 0, comm)
				before := native.run(steps)
				after := newCluster(t, ranks, remote, delta, comm).run(steps)
				s := JobSetting{Setting: at(perf.NativeRTT + delta), Remote: make([]bool, ranks)}
				for r := range ranks {
					s.Remote[r] = remote(r)
				}
				j := native.job(t)
				got, err := j.Run(s)
				if err != nil {
					t.Fatal(err)
				}
				truth := 100 * float64(before) / float64(after)
				t.Logf("collectives of %v, %v more, %s: %.2f %%, the simulation %.2f %%; rank 0 alone %.2f %%", comm, delta, name, 100*got.Relative, truth, 100*run(t, j.plans[0], s.Setting).Relative)
				if math.Abs(100*got.Relative-truth) > 0.5 {
					t.Errorf("collectives of %v, %v more, %s: %.2f %%, the simulation %.2f %%", comm, delta, name, 100*got.Relative, truth)
				}
				if j.Unmatched != 0 || j.Matched != ranks*steps*buckets || len(j.Doubts) > 0 {
					t.Errorf("%d operations matched, %d not; doubts %q", j.Matched, j.Unmatched, j.Doubts)
				}
			}
		}
	}
}

// Without a longer round trip the ranks' replays are their recordings.
func TestRanksWithoutLatencyAreTheRecording(t *testing.T) {
	c := newCluster(t, 3, everyRank, 0, 100*us)
	c.run(4)
	j := c.job(t)
	got, err := j.Run(JobSetting{Setting: at(perf.NativeRTT)})
	if err != nil {
		t.Fatal(err)
	}
	for r, rank := range got.Ranks {
		if rank.Whole.Recorded != rank.Whole.Replayed || rank.Work.Recorded != rank.Work.Replayed || rank.Waiting.Recorded != rank.Waiting.Replayed {
			t.Errorf("rank %d: %+v", r, rank)
		}
		if want := 4 * buckets * 100 * us; rank.Work.Recorded != want || rank.Waiting.Recorded == 0 {
			t.Errorf("rank %d: %v of work, want %v, and %v of waiting", r, rank.Work.Recorded, want, rank.Waiting.Recorded)
		}
	}
	if got.Relative != 1 {
		t.Errorf("%v", got.Relative)
	}
}

// A lower rate between the GPUs makes the work of collectives longer, not the waiting.
func TestPeerRate(t *testing.T) {
	c := newCluster(t, 2, everyRank, 0, 500*us)
	c.run(3)
	j := c.job(t)
	got, err := j.Run(JobSetting{Setting: at(perf.NativeRTT), PeerRate: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	if w := got.Ranks[0].Work; w.Replayed != 2*w.Recorded {
		t.Errorf("%v of work became %v", w.Recorded, w.Replayed)
	}
	none, err := j.Run(JobSetting{Setting: at(delta10), PeerRate: 0.5, Remote: make([]bool, 2)})
	if err != nil || none.Relative != 1 {
		t.Errorf("no rank is remote: %v, %v", none.Relative, err)
	}
	if _, err := j.Run(JobSetting{Setting: at(delta10), PeerRate: 1.5}); err == nil {
		t.Error("a rate of 1.5 is accepted")
	}
}

// Recordings with different numbers of collectives in a step are joined by the steps
// in which they agree.
func TestRanksThatMissCollectives(t *testing.T) {
	c := newCluster(t, 2, everyRank, 0, 100*us)
	c.run(4)
	p := c.ranks[1]
	corr := p.out.launch(workload.Launch, 1, p.host, simCall)
	p.out.collective("AllReduce", corr, collectives, p.host+simLaunch, 10*us)
	j := c.job(t)
	if want := 2*buckets + 1; j.Unmatched != want || j.Matched != 2*3*buckets {
		t.Errorf("%d matched, %d not, want %d not", j.Matched, j.Unmatched, want)
	}
	if len(j.Doubts) != 1 || !strings.Contains(j.Doubts[0], "have no members") {
		t.Errorf("doubts %q", j.Doubts)
	}
}

// Ranks that the traces name and that do not make up a run are doubts.
func TestRanksOfNoRun(t *testing.T) {
	for name, tc := range map[string]struct {
		ranks, worlds []int32
		doubt         string
	}{
		"whole":                  {[]int32{0, 1}, []int32{2, 2}, ""},
		"not told":               {[]int32{workload.None, workload.None}, []int32{0, 0}, ""},
		"more ranks":             {[]int32{0, 1}, []int32{4, 4}, "the run has 4 ranks and only 2 traces"},
		"a gap":                  {[]int32{0, 2}, []int32{0, 0}, "there is a trace of rank 2 and only 2 traces"},
		"two sizes":              {[]int32{0, 1}, []int32{2, 1}, "runs of different numbers of ranks, 1 to 2"},
		"a rank beyond the last": {[]int32{0, 7}, []int32{2, 2}, "there is a trace of rank 7"},
		"one of one":             {[]int32{0, 1}, []int32{1, 1}, "2 traces are given of a run of 1 ranks"},
	} {
		c := newCluster(t, 2, everyRank, 0, 100*us)
		c.run(2)
		for r, p := range c.ranks {
			p.out.b.SetRank(tc.ranks[r])
			p.out.b.SetWorld(tc.worlds[r])
		}
		if doubts := strings.Join(c.job(t).Doubts, "; "); (doubts == "") != (tc.doubt == "") || !strings.Contains(doubts, tc.doubt) {
			t.Errorf("%s: %q", name, doubts)
		}
	}
}

// Collectives of groups of processes join the members of each group only.
func TestGroupsOfProcesses(t *testing.T) {
	var plans []*Plan
	for r := range 4 {
		rec := record(t)
		for n := range 10 {
			at := time.Duration(n) * 100 * us
			corr := rec.launch(workload.Launch, 1, at, simCall)
			st, _ := rec.b.Stream(workload.Stream{ID: 20})
			rec.b.AddOp(workload.Op{
				Kind: workload.Kernel, Corr: corr, Stream: st, Start: at + 10*us, Dur: 50 * us,
				Name: rec.b.Name([]byte("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)")), Group: rec.b.Name(fmt.Appendf(nil, "pair%d", r/2)),
			}, here)
		}
		plans = append(plans, rec.plan())
	}
	all, unmatched := match(plans)
	if len(all) != 20 || unmatched != 0 {
		t.Fatalf("%d collectives, %d unmatched operations", len(all), unmatched)
	}
	for _, c := range all {
		if len(c.members) != 2 || c.members[0].rank/2 != c.members[1].rank/2 {
			t.Fatalf("%+v", c)
		}
	}
	if _, err := NewJob(plans); err == nil {
		t.Error("ranks 0 and 2 share nothing, and are joined")
	}
	for _, p := range plans {
		for i := range p.w.Ops {
			p.w.Ops[i].Group = 0
		}
	}
	if _, err := NewJob(plans); !errors.Is(err, errNoCollectives) {
		t.Errorf("exchanges without the names of their groups: %v", err)
	}
}

// More latency never makes a job faster, and no part of it earlier.
func TestRanksAreMonotone(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := newCluster(t, rapid.IntRange(2, 4).Draw(rt, "ranks"), everyRank, 0, time.Duration(rapid.IntRange(1, 400).Draw(rt, "work"))*us)
		c.run(2)
		j := c.job(t)
		remote := rapid.SliceOfN(rapid.Bool(), len(j.plans), len(j.plans)).Draw(rt, "remote")
		var last time.Duration
		for _, d := range []time.Duration{0, us, 3 * us, 10 * us, 50 * us} {
			r, err := j.Run(JobSetting{Setting: at(perf.NativeRTT + d), Remote: remote})
			if err != nil {
				rt.Fatal(err)
			}
			if r.Covered.Replayed < last {
				rt.Fatalf("%v more: %v, with less %v", d, r.Covered.Replayed, last)
			}
			last = r.Covered.Replayed
		}
		if !slices.Contains(remote, true) && last != j.must(rt).Covered.Recorded {
			rt.Fatal("nothing is remote and the run is longer")
		}
	})
}

func (j *Job) must(t *rapid.T) JobResult {
	r, err := j.Run(JobSetting{Setting: at(perf.NativeRTT)})
	if err != nil {
		t.Fatal(err)
	}
	return r
}
