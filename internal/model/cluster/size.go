package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/dxpu-project/dxpu/internal/model/perf"
)

// Size asks how large a cluster has to be for its jobs. The servers of the scenario are the
// kinds that can be bought, and their counts the proportions.
type Size struct {
	GPUs     float64 `yaml:"gpus"`     // that the jobs would hold on average, if each started at once
	Accepted float64 `yaml:"accepted"` // per cent of the GPUs asked for that must start
}

// maxSizeGPUs bounds the cluster, and so the time of a search.
const maxSizeGPUs = 100_000

func (s *Size) check() error {
	if s == nil {
		return nil
	}
	if !(s.GPUs >= 1 && s.GPUs <= maxSizeGPUs) || !(s.Accepted >= 50 && s.Accepted <= 99.99) {
		return fmt.Errorf("size: gpus %v, accepted %v: want 1 to %d, and 50 to 99.99 per cent", s.GPUs, s.Accepted, maxSizeGPUs)
	}
	return nil
}

func (s *Size) checkCluster(e *Experiment, f *Failures) error {
	switch {
	case totalGPU(e.Nodes) == 0 || meanDemand(e.Pods) == 0:
		return errors.New("size: want servers and jobs with GPUs")
	case f == nil:
		return nil
	case f.faults != nil:
		return errors.New("size: want failures with rates, not a list of faults")
	}
	return nil
}

// sizeResult is what one contestant needs.
type sizeResult struct {
	servers  int // of a cluster of servers; of a pool, those whose GPUs it has
	hosts    int // of a pool
	gpus     int
	boxes    int
	accepted float64 // per cent
	used     float64 // per cent of the GPUs
}

// none reports whether no cluster is large enough.
func (r sizeResult) none() bool { return r.servers == 0 || r.hosts == 0 }

// sizeStudy searches the smallest cluster for each contestant.
type sizeStudy struct {
	e       *Experiment
	who     []contestant
	jobs    func(seed uint64) func() (stay, bool)
	results []sizeResult
}

func newSizeStudy(e *Experiment, r *Report) *sizeStudy {
	r.Facts = []string{
		fmt.Sprintf("jobs that would hold %g GPUs on average, if each started at once; %g %% of the GPUs asked for must start; mean of %s", e.Size.GPUs, e.Size.Accepted, count(e.Seeds, "run")),
		fmt.Sprintf("jobs arrive at random and live %g h on average; figures of %g lives after %g lives", e.Life, e.Lives, e.WarmUp),
	}
	s := &sizeStudy{e: e, who: e.contestants(), jobs: e.arrivals(e.Size.GPUs * Milli)}
	s.results = make([]sizeResult, len(s.who))
	return s
}

func (s *sizeStudy) runs() int { return len(s.who) }

// run searches. More servers accept more jobs, up to the chance of the draws, so the search
// halves the range; it ends within half a per cent.
func (s *sizeStudy) run(ctx context.Context, i int) {
	c, out := &s.who[i], &s.results[i]
	most := s.serversFor(4 * s.e.Size.GPUs)
	if c.pool == nil {
		out.servers = least(ctx, 1, most, func(n int) bool { return s.enough(ctx, c, n, n, out) })
		out.hosts = out.servers
	} else {
		ample := 2 * most
		out.servers = least(ctx, 1, most, func(n int) bool { return s.enough(ctx, c, n, ample, out) })
		if out.servers > 0 {
			out.hosts = least(ctx, 1, ample, func(n int) bool { return s.enough(ctx, c, out.servers, n, out) })
		}
	}
	if out.servers == 0 {
		return
	}
	s.enough(ctx, c, out.servers, out.hosts, out) // the last try of the search was perhaps another one
	out.gpus = int(totalGPU(s.cluster(out.servers)) / Milli)
	if c.pool != nil {
		out.boxes = countBoxes(s.cluster(out.servers), *c.pool)
	}
}

// least returns the smallest n from low to high that suffices, 0 if high does not or ctx ends.
func least(ctx context.Context, low, high int, suffices func(n int) bool) int {
	if !suffices(high) {
		return 0
	}
	for high-low > high/200 {
		if ctx.Err() != nil {
			return 0
		}
		if mid := low + (high-low)/2; suffices(mid) {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return high
}

// serversFor returns the number of servers whose GPUs are at least gpus.
func (s *sizeStudy) serversFor(gpus float64) int {
	return int(math.Ceil(gpus * Milli / float64(totalGPU(s.e.Nodes)) * float64(len(s.e.Nodes))))
}

// cluster returns n servers, of the kinds of the scenario in their proportions.
func (s *sizeStudy) cluster(n int) []Node {
	kinds := s.e.Nodes
	out := make([]Node, n)
	for i := range out {
		out[i] = kinds[i*len(kinds)/n]
		out[i].Name = fmt.Sprintf("server%06d", i)
	}
	return out
}

// enough runs the jobs on a cluster, and reports whether it accepts enough of them.
func (s *sizeStudy) enough(ctx context.Context, c *contestant, servers, hosts int, out *sizeResult) bool {
	nodes, gpu := s.cluster(servers), 0.0
	doing := fmt.Sprintf("%s: trying %d GPUs and %s", c.name, totalGPU(nodes)/Milli, count(hosts, c.noun()))
	var asked, given float64
	var held, hours float64
	for seed := range uint64(s.e.Seeds) {
		if ctx.Err() != nil {
			return false
		}
		t := timeline{from: s.e.WarmUp * s.e.Life, to: (s.e.WarmUp + s.e.Lives) * s.e.Life}
		if c.pool != nil {
			t.pl = newPoolFor(s.e.Pods, s.cluster(hosts), nodes, *c.pool, s.e.goOn(ctx, doing, "boxes"))
			if s.e.Performance != nil {
				t.speed = s.e.Performance.speed
			}
		} else {
			t.pl = c.placer(nodes, s.e.Pods, seed, nil)
		}
		if s.e.Doing != nil && ctx.Err() == nil {
			s.e.Doing(doing)
		}
		r := t.run(until(ctx, s.jobs(seed)))
		asked, given, held, hours = asked+r.Asked, given+r.Given, held+r.GPU, hours+r.Hours
	}
	gpu = float64(totalGPU(nodes))
	out.accepted, out.used = 100*given/max(asked, 1e-9), 100*held/hours/max(gpu, 1)
	return out.accepted >= s.e.Size.Accepted
}

// noun returns the word for the machines that a job of the contestant runs on.
func (c *contestant) noun() string {
	if c.pool == nil {
		return "server"
	}
	return "host"
}

func (s *sizeStudy) report(r *Report) {
	t := Table{Name: "size", Title: fmt.Sprintf("The smallest cluster that starts %g %% of the GPUs asked for", s.e.Size.Accepted), First: "policy", Columns: []Column{
		{"hosts", "servers or hosts", 0}, {"gpus", "GPUs", 0}, {"boxes", "boxes", 0}, {"proxies", "box proxies", 0}, {"accepted", "started, %", 2}, {"gpu_used", "GPU used, %", 1},
	}}
	spares := s.e.Failures != nil
	if spares {
		t.Columns = append(t.Columns, Column{"spares", fmt.Sprintf("spare GPUs, %g %% of the time", s.e.Failures.Availability[0]), 0})
	}
	money := s.e.Performance != nil && s.e.Performance.Prices != Prices{}
	if money {
		t.Columns = append(t.Columns, Column{"cost_year", "cost a year", 0}, Column{"saved", "saved against the best servers, %", 1})
	}
	best := math.Inf(1)
	for i := range s.who {
		row := s.row(i, spares, money)
		if cost := row.Values[max(len(row.Values)-2, 0)]; money && s.who[i].pool == nil && !math.IsNaN(cost) {
			best = min(best, cost)
		}
		t.Rows = append(t.Rows, row)
	}
	for i := range t.Rows {
		if v := t.Rows[i].Values; money {
			v[len(v)-1] = none
			if !math.IsInf(best, 1) {
				v[len(v)-1] = 100 * (1 - v[len(v)-2]/best)
			}
		}
	}
	if slices.ContainsFunc(s.results, sizeResult.none) {
		t.Note = "A row of dashes: four times as many GPUs as the jobs hold do not suffice."
	}
	r.Tables = append(r.Tables, t)
}

func (s *sizeStudy) row(i int, spares, money bool) Row {
	c, v := &s.who[i], &s.results[i]
	row := Row{Name: c.name}
	if v.none() {
		n := 6
		if spares {
			n++
		}
		if money {
			n += 2
		}
		row.Values = slices.Repeat([]float64{none}, n)
		return row
	}
	boxes, proxies := none, none
	if c.pool != nil {
		boxes, proxies = float64(v.boxes), float64(v.boxes*s.proxies(c.pool))
	}
	row.Values = []float64{float64(v.hosts), float64(v.gpus), boxes, proxies, v.accepted, v.used}
	extra := 0.0
	if spares {
		extra = s.spares(c.pool, v)
		row.Values = append(row.Values, extra)
	}
	if money {
		const year = 365 * 24
		p := s.e.Performance.Prices
		row.Values = append(row.Values, year*(float64(v.hosts)*p.ServerHour+float64(v.boxes)*p.BoxHour+(float64(v.gpus)+extra)*p.GPUCostHour), none)
	}
	return row
}

// proxies returns how many proxies a box needs for the copies to its GPUs.
func (s *sizeStudy) proxies(o *PoolOptions) int {
	if s.e.Performance == nil {
		return 1
	}
	return perf.PaperProxy.ProxiesFor(cmp.Or(o.BoxSize, 8), s.e.Performance.traffic(s.e.Pods), 0)
}

// traffic returns the mean rate of the copies to a GPU that is in use, in the pool.
func (p *Performance) traffic(pods []Pod) perf.BytesPerSecond {
	rates := map[string]float64{}
	for _, one := range p.Profiles {
		rates[one.Name] = one.MBToDevice * 1e6 / (one.StepMS / 1e3) * p.speeds[one.Name]
	}
	var sum, gpus float64
	for i := range pods {
		n := float64(pods[i].total())
		sum, gpus = sum+n*rates[pods[i].Profile], gpus+n
	}
	return perf.BytesPerSecond(sum / gpus)
}

// spares returns the spare GPUs by the closed form: for servers the GPUs of whole servers.
func (s *sizeStudy) spares(o *PoolOptions, v *sizeResult) float64 {
	f := &failureStudy{f: s.e.Failures}
	if o == nil {
		f.e, f.gpus = &Experiment{Nodes: make([]Node, v.servers)}, max(1, v.gpus/v.servers)
	} else {
		f.e, f.gpus = &Experiment{Nodes: make([]Node, v.boxes)}, cmp.Or(o.BoxSize, 8)
	}
	return min(f.closedForm(o != nil, s.e.Failures.Availability[0]/100), float64(v.gpus))
}
