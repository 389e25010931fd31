package cluster

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
)

// timeStudy runs jobs that come and go through each contestant, at each load and with
// each seed.
type timeStudy struct {
	e       *Experiment
	who     []contestant
	cases   []timeCase
	results []timelineResult // by case, contestant, seed
	times   allocTimes
}

// timeCase is a stream of jobs.
type timeCase struct {
	key, title string
	load       float64
	from, to   float64 // hours
	// jobs returns the jobs in the order of their arrival.
	jobs func(seed uint64) func() (stay, bool)
}

func (s *timeStudy) runs() int { return len(s.cases) * len(s.who) * s.e.Seeds }

func (s *timeStudy) run(ctx context.Context, i int) {
	c, seed := s.cases[i/s.e.Seeds/len(s.who)], uint64(i%s.e.Seeds)
	who := s.who[i/s.e.Seeds%len(s.who)]
	t := timeline{pl: s.times.of(i, who.placer(s.e.Nodes, s.e.Pods, seed, s.e.goOn(ctx, who.name, "boxes")), s.e.Clock), queue: s.e.queue(), from: c.from, to: c.to}
	if who.pool != nil && s.e.Performance != nil {
		t.speed = s.e.Performance.speed
	}
	s.results[i] = t.run(until(ctx, c.jobs(seed)))
}

// newChurnStudy makes jobs arrive at random (Poisson) so that they ask for a share of the
// cluster's GPU on average, the load. Lives are exponential.
func newChurnStudy(e *Experiment, r *Report) *timeStudy {
	s := &timeStudy{e: e, who: e.contestants()}
	from := e.WarmUp * e.Life
	for _, load := range e.Loads {
		s.cases = append(s.cases, timeCase{
			key: fmt.Sprintf("%g", 100*load), title: fmt.Sprintf("at a load of %g %%", 100*load), load: load,
			from: from, to: from + e.Lives*e.Life,
			jobs: e.arrivals(load * float64(totalGPU(e.Nodes))),
		})
	}
	r.Facts = append(r.Facts, fmt.Sprintf("jobs arrive at random and live %g h on average; figures of %g lives after %g lives", e.Life, e.Lives, e.WarmUp))
	s.results, s.times = make([]timelineResult, s.runs()), make(allocTimes, s.runs())
	return s
}

// arrivals returns the jobs of a seed. If each started at once, they would hold the given
// thousandths of GPU on average.
func (e *Experiment) arrivals(held float64) func(seed uint64) func() (stay, bool) {
	rate := held / meanDemand(e.Pods) / e.Life // jobs an hour
	return func(seed uint64) func() (stay, bool) {
		rng, at := rngOf(seed, 4), 0.0
		return func() (stay, bool) {
			at += rng.ExpFloat64() / rate
			return stay{pod: &e.Pods[rng.IntN(len(e.Pods))], at: at, life: rng.ExpFloat64() * e.Life}, true
		}
	}
}

// meanDemand is that of a job in thousandths of GPU.
func meanDemand(pods []Pod) float64 {
	var sum float64
	for i := range pods {
		sum += float64(pods[i].total())
	}
	return sum / float64(len(pods))
}

// newReplayStudy makes the jobs arrive and end when the list says.
func newReplayStudy(e *Experiment, r *Report) *timeStudy {
	var stays []stay
	first, last := math.Inf(1), 0.0
	for i := range e.Pods {
		p := &e.Pods[i]
		v := stay{pod: p, at: float64(p.Created) / 3600, life: math.Inf(1)}
		if p.Deleted > 0 {
			v.life = float64(max(p.Deleted-p.Created, 0)) / 3600
			last = max(last, float64(p.Deleted)/3600)
		}
		first, last = min(first, v.at), max(last, v.at)
		stays = append(stays, v)
	}
	for i := range stays {
		stays[i].at = (stays[i].at - first) / e.SpeedUp
	}
	slices.SortStableFunc(stays, func(a, b stay) int { return cmp.Compare(a.at, b.at) })
	to := (last - first) / e.SpeedUp
	if e.Until > 0 {
		to = min(to, e.Until)
	}
	r.Facts = append(r.Facts, fmt.Sprintf("%d jobs in %.1f h", len(stays), to))
	if e.SpeedUp != 1 {
		r.Facts = append(r.Facts, fmt.Sprintf("they arrive %g times as fast as in the list", e.SpeedUp))
	}
	s := &timeStudy{e: e, who: e.contestants(), cases: []timeCase{{key: "replay", title: "over the whole time", to: to, jobs: func(uint64) func() (stay, bool) {
		i := 0
		return func() (stay, bool) {
			if i == len(stays) {
				return stay{}, false
			}
			i++
			return stays[i-1], true
		}
	}}}}
	s.results, s.times = make([]timelineResult, s.runs()), make(allocTimes, s.runs())
	return s
}

// of returns the runs of a contestant in a case.
func (s *timeStudy) of(at, who int) []timelineResult {
	i := (at*len(s.who) + who) * s.e.Seeds
	return s.results[i : i+s.e.Seeds]
}

func (s *timeStudy) report(r *Report) {
	accepted := Plot{Title: "Demand that is accepted", X: "load, % of the cluster's GPU", Y: "accepted, % of the GPUs asked for"}
	accepted.Lines = make([]Line, len(s.who))
	for at := range s.cases {
		c := &s.cases[at]
		t, sizes := s.table(c), newSizeTable()
		for who := range s.who {
			runs := s.of(at, who)
			t.Rows = append(t.Rows, Row{s.who[who].name, s.row(runs, len(t.Columns))})
			for i := range runs {
				sizes.add(s.who[who].name, runs[i].BySize)
			}
			l := &accepted.Lines[who]
			l.Name = s.who[who].name
			l.X, l.Y = append(l.X, 100*c.load), append(l.Y, t.Rows[who].Values[1])
		}
		st := sizes.table()
		st.Name, st.Title = "accepted_"+c.key, "Jobs that started, %, by their number of GPUs, "+c.title
		r.Tables = append(r.Tables, t, st)
		if s.e.Performance != nil {
			r.Tables = append(r.Tables, s.worth(at))
		}
	}
	if len(s.cases) > 1 && s.e.queue() == Refuse {
		r.Plots = append(r.Plots, accepted)
	}
	if s.e.queue() != Refuse {
		r.Plots = append(r.Plots, s.waitPlot())
	}
	if s.e.Clock != nil {
		r.Tables = append(r.Tables, s.times.table(s.who, func(who int) (out []int) {
			for at := range s.cases {
				out = append(out, span((at*len(s.who)+who)*s.e.Seeds, s.e.Seeds)...)
			}
			return out
		}))
	}
}

// table returns the columns of a case.
func (s *timeStudy) table(c *timeCase) Table {
	t := Table{Name: "use_" + c.key, Title: "Use of the cluster " + c.title, First: "policy", Columns: []Column{
		{"gpu_used", "GPU used, %", 2}, {"gpu_accepted", "started, % of the GPUs asked for", 2}, {"cpu_used", "processors used, %", 1}, {"gpu_peak", "GPU peak, %", 1},
	}}
	if s.e.queue() != Refuse {
		t.Columns = append(t.Columns,
			Column{"wait_mean_min", "wait: mean, min", 1}, Column{"wait_p50_min", "median", 1}, Column{"wait_p95_min", "95 %", 1}, Column{"wait_p99_min", "99 %", 1},
			Column{"wait_multi_mean_min", "mean, several GPUs", 1}, Column{"waiting_at_the_end", "still waiting", 0})
	}
	return t
}

func (s *timeStudy) row(runs []timelineResult, columns int) []float64 {
	out := make([]float64, columns)
	gpu, cpu := float64(totalGPU(s.e.Nodes)), 0.0
	for i := range s.e.Nodes {
		cpu += float64(s.e.Nodes[i].MilliCPU)
	}
	n := float64(len(runs))
	for i := range runs {
		r := &runs[i]
		values := []float64{
			100 * r.GPU / r.Hours / gpu, 100 * r.Given / max(r.Asked, 1e-9), 100 * r.CPU / r.Hours / max(cpu, 1), 100 * r.PeakGPU / gpu,
			60 * meanOf(r.Waits), 60 * quantile(r.Waits, 0.5), 60 * quantile(r.Waits, 0.95), 60 * quantile(r.Waits, 0.99),
			60 * meanOf(r.WaitsMulti), float64(r.Unstarted),
		}
		for k := range out {
			out[k] += values[k] / n
		}
	}
	return out
}

// waitPlot draws the distribution of the waits with the first seed.
func (s *timeStudy) waitPlot() Plot {
	p := Plot{Title: "How long jobs wait " + s.cases[len(s.cases)-1].title, X: "wait, min", Y: "jobs that waited no longer, %"}
	for who := range s.who {
		waits := s.of(len(s.cases)-1, who)[0].Waits
		l := Line{Name: s.who[who].name}
		for q := 0.0; q <= 0.99; q += 0.01 {
			if v := quantile(waits, max(q, 1e-9)); !math.IsNaN(v) {
				l.X, l.Y = append(l.X, 60*v), append(l.Y, 100*q)
			}
		}
		p.Lines = append(p.Lines, l)
	}
	return p
}
