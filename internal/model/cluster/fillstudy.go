package cluster

import (
	"context"
	"fmt"
	"math"
	"slices"
)

// fillStudy fills the cluster by each contestant with each seed, and then pools with fewer
// hosts.
type fillStudy struct {
	e       *Experiment
	who     []contestant
	results []FillResult // by contestant, then seed
	times   allocTimes
}

func newFillStudy(e *Experiment) *fillStudy {
	s := &fillStudy{e: e, who: e.contestants()}
	for _, kept := range e.HostsKept {
		for _, c := range e.contestants() {
			if c.pool != nil {
				c.pool.HostsKept = kept / 100
				s.who = append(s.who, c)
			}
		}
	}
	s.results, s.times = make([]FillResult, s.runs()), make(allocTimes, s.runs())
	return s
}

func (s *fillStudy) runs() int { return len(s.who) * s.e.Seeds }

func (s *fillStudy) run(ctx context.Context, i int) {
	c, seed := s.who[i/s.e.Seeds], uint64(i%s.e.Seeds)
	f := Fill{Nodes: s.e.Nodes, Pods: s.e.Pods, Demand: s.e.Demand, Seed: seed}
	pl := c.placer(f.Nodes, f.Pods, seed, s.e.goOn(ctx, c.name, "boxes"))
	s.results[i] = f.run(s.e.goOn(ctx, c.name, "jobs"), c.name, s.times.of(i, pl, s.e.Clock), f.arrivals(rngOf(seed, 1)))
}

// of returns the runs of a contestant.
func (s *fillStudy) of(who int) []FillResult {
	return s.results[who*s.e.Seeds : (who+1)*s.e.Seeds]
}

func (s *fillStudy) report(r *Report) {
	main := len(s.e.Policies) + len(s.e.Pools)
	n := len(s.results[0].Points)
	alloc := Table{Name: "allocation", Title: "GPU allocated, % of the cluster, by the demand so far", First: "policy"}
	sizes := newSizeTable()
	idle := Table{Name: "stranded", Title: "At a demand of 100 %: what no job with GPUs of the list can use, % of the cluster", First: "policy", Columns: []Column{
		{"gpu", "GPU", 2}, {"cpu", "processors", 1}, {"memory", "memory", 1}, {"cpu_used", "processors in use", 1},
	}}
	plot := Plot{Title: "GPU allocated", X: "demand so far, % of the cluster's GPU", Y: "allocated, %"}
	for k := range n {
		alloc.Columns = append(alloc.Columns, Column{fmt.Sprintf("gpu_at_%.0f", steps[k]), fmt.Sprintf("%.0f %%", steps[k]), 2})
	}
	alloc.Columns = append(alloc.Columns, Column{"demand_at_1_percent_refused", "1 % refused at", 0})
	for who := range main {
		name, runs := s.who[who].name, s.of(who)
		row, line := Row{Name: name}, Line{Name: name}
		for k := range n {
			v := meanRuns(runs, func(r *FillResult) float64 { return pointOf(r, k).GPU })
			row.Values = append(row.Values, v)
			line.X, line.Y = append(line.X, steps[k]), append(line.Y, v)
		}
		row.Values = append(row.Values, refusedAt(runs))
		alloc.Rows = append(alloc.Rows, row)
		plot.Lines = append(plot.Lines, line)
		idle.Rows = append(idle.Rows, Row{name, []float64{
			meanRuns(runs, func(r *FillResult) float64 { return r.StrandedGPU }),
			meanRuns(runs, func(r *FillResult) float64 { return r.StrandedCPU }),
			meanRuns(runs, func(r *FillResult) float64 { return r.StrandedMemory }),
			meanRuns(runs, func(r *FillResult) float64 { return pointOf(r, 2).CPU }),
		}})
		for i := range runs {
			sizes.add(name, runs[i].BySize)
		}
	}
	r.Tables = append(r.Tables, alloc, sizes.table())
	if n > 2 {
		r.Tables = append(r.Tables, idle)
	}
	if n > 1 {
		r.Plots = append(r.Plots, plot)
	}
	s.reportHosts(r, main)
	if s.e.Clock != nil {
		r.Tables = append(r.Tables, s.times.table(s.who[:main], func(who int) []int { return span(who*s.e.Seeds, s.e.Seeds) }))
	}
}

// reportHosts tells how much GPU the pools give with fewer hosts.
func (s *fillStudy) reportHosts(r *Report, main int) {
	if len(s.e.HostsKept) == 0 || len(s.results[0].Points) < 3 {
		return
	}
	t := Table{Name: "hosts", Title: "GPU allocated at a demand of 100 %, by the share of the hosts that stay, with all GPUs", First: "pool"}
	for _, kept := range s.e.HostsKept {
		t.Columns = append(t.Columns, Column{fmt.Sprintf("gpu_with_%g", kept), fmt.Sprintf("%g %%", kept), 2})
	}
	t.Columns = append(t.Columns, Column{"hosts_that_can_go", "hosts that can go, %", 0})
	plot := Plot{Title: "Hosts that a pool needs", X: "hosts kept, %", Y: "GPU allocated at a demand of 100 %, %"}
	at100 := func(r *FillResult) float64 { return pointOf(r, 2).GPU }
	for i := range s.e.Pools {
		row, line := Row{Name: s.e.Pools[i].Name}, Line{Name: s.e.Pools[i].Name}
		all := meanRuns(s.of(len(s.e.Policies)+i), at100)
		needed := 100.0
		for k, kept := range s.e.HostsKept {
			v := meanRuns(s.of(main+k*len(s.e.Pools)+i), at100)
			row.Values = append(row.Values, v)
			line.X, line.Y = append(line.X, kept), append(line.Y, v)
			if v >= all-noLoss {
				needed = min(needed, kept)
			}
		}
		row.Values = append(row.Values, 100-needed)
		t.Rows = append(t.Rows, row)
		plot.Lines = append(plot.Lines, line)
	}
	t.Note = fmt.Sprintf("Hosts can go as long as the pool allocates as much as with all of them, less %g points.", noLoss)
	r.Tables = append(r.Tables, t)
	r.Plots = append(r.Plots, plot)
}

// noLoss is the difference in points that does not count as a loss.
const noLoss = 0.1

// pointOf returns a point of a run, the last one if it has fewer.
func pointOf(r *FillResult, k int) FillPoint {
	if len(r.Points) == 0 {
		return FillPoint{}
	}
	return r.Points[min(k, len(r.Points)-1)]
}

func meanRuns(runs []FillResult, f func(r *FillResult) float64) float64 {
	var sum float64
	for i := range runs {
		sum += f(&runs[i])
	}
	return sum / float64(len(runs))
}

// refusedAt is the mean over the runs in which 1 % was refused; +Inf if none was.
func refusedAt(runs []FillResult) float64 {
	var sum float64
	n := 0
	for i := range runs {
		if runs[i].Refused1 > 0 {
			sum += runs[i].Refused1
			n++
		}
	}
	if n == 0 {
		return math.Inf(1)
	}
	return sum / float64(n)
}

// sizeTable adds up the acceptance by size.
type sizeTable struct {
	names []string
	sums  map[string]sizeShares
	sizes []float64
}

func newSizeTable() *sizeTable { return &sizeTable{sums: map[string]sizeShares{}} }

func (t *sizeTable) add(name string, shares []SizeShare) {
	if t.sums[name] == nil {
		t.sums[name] = sizeShares{}
		t.names = append(t.names, name)
	}
	for _, s := range shares {
		if !slices.Contains(t.sizes, s.GPUs) {
			t.sizes = append(t.sizes, s.GPUs)
		}
		sum := t.sums[name][s.GPUs]
		if sum == nil {
			sum = &SizeShare{GPUs: s.GPUs}
			t.sums[name][s.GPUs] = sum
		}
		sum.Pods += s.Pods
		sum.Accepted += s.Accepted
	}
}

func (t *sizeTable) table() Table {
	out := Table{Name: "accepted", Title: "Jobs accepted, %, by their number of GPUs", First: "policy"}
	slices.Sort(t.sizes)
	for _, size := range t.sizes {
		title := fmt.Sprintf("%.0f", size)
		key := "gpus_" + title
		if size == 0.5 {
			title, key = "part", "part"
		}
		out.Columns = append(out.Columns, Column{key, title, 1})
	}
	for _, name := range t.names {
		row := Row{Name: name}
		for _, size := range t.sizes {
			v := none
			if s := t.sums[name][size]; s != nil && s.Pods > 0 {
				v = 100 * float64(s.Accepted) / float64(s.Pods)
			}
			row.Values = append(row.Values, v)
		}
		out.Rows = append(out.Rows, row)
	}
	return out
}
