package predict

import (
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// slowHosts is a data-parallel run whose hosts, slowed down by a profiler, take a time for
// each launch beside that of the program.
func slowHosts(t *testing.T, own, delta time.Duration) (*cluster, time.Duration) {
	const ranks, steps, kernels = 3, 4, 40
	c := newCluster(t, ranks, everyRank, delta, 50*us)
	for step := range steps {
		for r, p := range c.ranks {
			p.step("ProfilerStep#" + string(rune('0'+step)))
			for range kernels {
				p.launch(compute, uneven(8*us, r, step, 0))
				p.host += own
			}
			p.order(collectives, compute)
		}
		c.collective()
		c.optimize()
	}
	return c, c.length()
}

// The range of a job holds its performance without the profiler, whatever part of the
// hosts' time was the profiler's.
func TestRangeOfJobHoldsTheRunWithoutProfiler(t *testing.T) {
	const profiler = 20 * us
	recorded, _ := slowHosts(t, profiler, 0)
	j := recorded.job(t)
	for _, delta := range []time.Duration{6 * us, 18 * us} {
		s := JobSetting{Setting: at(perf.NativeRTT + delta)}
		r, err := j.Run(s)
		if err != nil {
			t.Fatal(err)
		}
		g, err := j.Range(s, &r)
		if err != nil || g.High != r.Relative || len(g.Why) != 1 || !strings.Contains(g.Why[0], "profilers' own") {
			t.Fatalf("%+v, %v", g, err)
		}
		for _, own := range []time.Duration{0, profiler / 2, profiler} {
			_, before := slowHosts(t, own, 0)
			_, after := slowHosts(t, own, delta)
			truth := float64(before) / float64(after)
			t.Logf("%v more, a profiler of %v: %.4f, the range %.4f to %.4f", delta, own, truth, g.Low, g.High)
			if truth < g.Low-0.005 || truth > g.High+0.005 {
				t.Errorf("%v more, a profiler of %v: %.4f, the range %.4f to %.4f", delta, own, truth, g.Low, g.High)
			}
		}
		for i, rank := range g.Ranks {
			if rank.High != r.Ranks[i].Relative || rank.Low >= rank.High-negligible {
				t.Errorf("rank %d: %+v, the replay %v", i, rank, r.Ranks[i].Relative)
			}
		}
	}
}

// A job whose GPUs are busy and run no graphs is one figure, also where ranks wait long for
// others; kernels in graphs give it a lower end.
func TestRangeOfBusyJob(t *testing.T) {
	c := newCluster(t, 2, everyRank, 0, 50*us)
	c.run(3)
	j, s := c.job(t), JobSetting{Setting: at(delta10)}
	r, err := j.Run(s)
	if err != nil {
		t.Fatal(err)
	}
	if g, err := j.Range(s, &r); err != nil || g.Wide() || len(g.Why) > 0 {
		t.Errorf("%+v, %v", g, err)
	}
	for rank, p := range j.plans {
		for i := range p.w.Ops {
			if _, shared := j.place[rank][int32(i)]; !shared {
				p.w.Ops[i].Kind = workload.GraphKernel
			}
		}
	}
	if r, err = j.Run(s); err != nil {
		t.Fatal(err)
	}
	g, err := j.Range(s, &r)
	if err != nil || len(g.Why) != 1 || !strings.Contains(g.Why[0], "kernels run in CUDA graphs") || g.Ranks[0].Low >= g.Ranks[0].High-negligible {
		t.Errorf("%+v, %v", g, err)
	}
}

// A job's hosts can be scaled like that of one trace: scaled to the time that they take
// without a profiler, the job is the one without it.
func TestJobWithScaledHosts(t *testing.T) {
	recorded, _ := slowHosts(t, 20*us, 0)
	s := JobSetting{Setting: at(delta10)}
	s.HostScale = leastHost
	got, err := recorded.job(t).Run(s)
	if err != nil {
		t.Fatal(err)
	}
	native := s
	native.RTT = s.NativeRTT
	same, err := recorded.job(t).Run(native)
	if err != nil || same.Relative != 1 || same.Covered.Recorded != got.Covered.Recorded {
		t.Errorf("without a longer round trip %+v, with it %+v, %v", same.Covered, got.Covered, err)
	}
	for i := range got.Ranks {
		if w := got.Ranks[i].Waiting; w.Recorded != same.Ranks[i].Waiting.Replayed {
			t.Errorf("rank %d waits %v natively, want %v", i, w.Recorded, same.Ranks[i].Waiting.Replayed)
		}
	}
}

// Where the traces do not tell for which event each stream waits, wrong guesses are within the
// range of the job and of its ranks.
func TestRangeOfWaitsInAJob(t *testing.T) {
	simulate := func(delta time.Duration) (*cluster, time.Duration) {
		c := newCluster(t, 3, everyRank, delta, 10*us)
		for round := range 40 {
			for rank, p := range c.ranks {
				p.tell = calls
				p.mislead()
				p.launch(compute, uneven(10*us, rank, round, 0))
				p.order(collectives, compute)
			}
			c.collective()
			for _, p := range c.ranks {
				p.sync(collectives)
			}
		}
		return c, c.length()
	}
	native, before := simulate(0)
	_, after := simulate(18 * us)
	truth := float64(before) / float64(after)
	j, s := native.job(t), JobSetting{Setting: at(perf.NativeRTT + 18*us)}
	s.HostScale = 1 // no profiler widens the range
	r, err := j.Run(s)
	if err != nil {
		t.Fatal(err)
	}
	g, err := j.Range(s, &r)
	t.Logf("%.3f in %+v, the simulation %.3f", r.Relative, g, truth)
	if err != nil || truth > r.Relative-0.03 || truth < g.Low-negligible || truth > g.High+negligible || len(g.Why) != 1 || g.Why[0] != waitsReason {
		t.Errorf("%v: %.3f in %+v, the simulation %.3f", err, r.Relative, g, truth)
	}
	for i, rank := range g.Ranks {
		if !rank.Wide() || rank.Low > r.Ranks[i].Relative || rank.High < r.Ranks[i].Relative {
			t.Errorf("rank %d: %+v", i, rank)
		}
	}
}
