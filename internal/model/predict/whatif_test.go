package predict

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// shape is a training loop on one stream: kernels of one length, and a copy from
// pageable memory first, which the host waits for.
type shape struct {
	steps, kernels int
	length, copies time.Duration
	think          time.Duration // of the host between two launches
	graph, pinned  bool
	batch          int
}

// Costs of the simulated loop: those of the paper's model.
func (sh shape) simulate(t *testing.T, delta time.Duration) (*program, time.Duration) {
	p := &program{delta: delta, streams: map[int]*simStream{}, out: record(t)}
	s := p.stream(compute)
	for range sh.steps {
		if sh.copies > 0 {
			corr := p.out.corr + 1
			start := max(p.host+simLaunch, s.end+simNext)
			dur := sh.copies * time.Duration(sh.batch)
			s.end = start + dur + delta
			call := simCall
			if !sh.pinned {
				call = s.end + simReturn - p.host
			}
			p.out.launch(workload.CopyCall, 1, p.host, call)
			p.out.op(workload.CopyHtoD, corr, compute, start, dur)
			p.host += call + simCompute
		}
		length := sh.length * time.Duration(sh.batch)
		if sh.graph {
			at := max(p.host+simLaunch+delta, s.end+simNext)
			s.end = at + time.Duration(sh.kernels)*length + time.Duration(sh.kernels-1)*simNext
			p.host += simCall + simCompute
		} else {
			for range sh.kernels {
				p.launch(compute, length)
				p.host += sh.think
			}
		}
		p.sync(compute)
	}
	return p, p.host
}

func whatIf(p *Plan, s Setting, c Change) (WhatIf, error) {
	st := p.Stats(p.InFlight(s))
	return p.WhatIf(s, c, &st)
}

// The effect of a change is that of a simulation of the changed program.
func TestWhatIf(t *testing.T) {
	base := shape{steps: 5, kernels: 100, length: 6 * us, copies: 200 * us, think: 8 * us, batch: 1}
	for name, change := range map[string]func(*shape) Change{
		"graphs": func(s *shape) Change { s.graph = true; return Change{Graphs: true} },
		"pinned": func(s *shape) Change { s.pinned = true; return Change{Pinned: true} },
		"batch":  func(s *shape) Change { s.batch = 4; return Change{Batch: 4} },
	} {
		for _, delta := range []time.Duration{5 * us, 18 * us} {
			recorded, before := base.simulate(t, 0)
			changed := base
			c := change(&changed)
			_, native := changed.simulate(t, 0)
			_, longer := changed.simulate(t, delta)
			got, err := whatIf(recorded.out.plan(), at(perf.NativeRTT+delta), c)
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range []struct {
				what      string
				got, want float64
			}{
				{"native", got.Native, float64(before) / float64(native)},
				{"disaggregated", got.Disaggregated, float64(before) / float64(longer)},
			} {
				want := v.want * float64(changed.batch)
				t.Logf("%s, %v more, %s: %.4f, the simulation %.4f", name, delta, v.what, v.got, want)
				if math.Abs(v.got/want-1) > 0.02 {
					t.Errorf("%s, %v more, %s: %.4f, the simulation %.4f", name, delta, v.what, v.got, want)
				}
			}
		}
	}
}

// No change makes a run on a longer round trip better than on a shorter one, and no
// change at all is the recording.
func TestWhatIfIsMonotone(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		sh := shape{
			steps: 2, kernels: rapid.IntRange(1, 40).Draw(rt, "kernels"), batch: 1,
			length: time.Duration(rapid.IntRange(1, 60).Draw(rt, "length")) * us, copies: time.Duration(rapid.IntRange(0, 60).Draw(rt, "copies")) * us,
		}
		recorded, _ := sh.simulate(t, 0)
		p := recorded.out.plan()
		c := Change{Graphs: rapid.Bool().Draw(rt, "graphs"), Pinned: rapid.Bool().Draw(rt, "pinned"), Batch: rapid.Float64Range(0, 8).Draw(rt, "batch")}
		last := math.Inf(1)
		for _, d := range []time.Duration{0, us, 5 * us, 30 * us} {
			got, err := whatIf(p, at(perf.NativeRTT+d), c)
			if err != nil {
				rt.Fatal(err)
			}
			if got.Disaggregated > last || got.Disaggregated > got.Native {
				rt.Fatalf("%v more: %+v, with less %v", d, got, last)
			}
			last = got.Disaggregated
		}
		if same, err := whatIf(p, at(perf.NativeRTT), Change{}); err != nil || same.Native != 1 || same.Disaggregated != 1 {
			rt.Fatalf("no change: %+v, %v", same, err)
		}
	})
}

// The range of a change holds its effect on the program without the profiler, whatever part
// of the host's time was the profiler's. Graphs have a lower end of their own: their nodes
// may cost as much as other kernels.
func TestRangeOfWhatIf(t *testing.T) {
	base := shape{steps: 5, kernels: 100, length: 6 * us, copies: 200 * us, think: 24 * us, batch: 1}
	for name, change := range map[string]func(*shape) Change{
		"graphs": func(s *shape) Change { s.graph = true; return Change{Graphs: true} },
		"pinned": func(s *shape) Change { s.pinned = true; return Change{Pinned: true} },
		"batch":  func(s *shape) Change { s.batch = 4; return Change{Batch: 4} },
	} {
		const delta = 10 * us
		recorded, _ := base.simulate(t, 0)
		changed := base
		c := change(&changed)
		got, err := whatIf(recorded.out.plan(), at(delta10), c)
		if err != nil {
			t.Fatal(err)
		}
		for _, own := range []time.Duration{0, base.think / 2, base.think} {
			plain := base
			plain.think, changed.think = base.think-own, base.think-own
			_, before := plain.simulate(t, 0)
			_, native := changed.simulate(t, 0)
			_, longer := changed.simulate(t, delta)
			for _, v := range []struct {
				what string
				got  Range
				took time.Duration
			}{{"native", got.NativeRange, native}, {"disaggregated", got.DisaggregatedRange, longer}} {
				truth := float64(changed.batch) * float64(before) / float64(v.took)
				t.Logf("%s, a profiler of %v, %s: %.4f, the range %.4f to %.4f", name, own, v.what, truth, v.got.Low, v.got.High)
				if truth < 0.98*v.got.Low || truth > 1.02*v.got.High {
					t.Errorf("%s, a profiler of %v, %s: %.4f, the range %.4f to %.4f", name, own, v.what, truth, v.got.Low, v.got.High)
				}
			}
		}
		if want := map[bool]int{true: 2, false: 1}[c.Graphs]; len(got.DisaggregatedRange.Why) != want || len(got.NativeRange.Why) > 1 {
			t.Errorf("%s: %d reasons %q, want %d", name, len(got.DisaggregatedRange.Why), got.DisaggregatedRange.Why, want)
		}
	}
}

func TestChangesAreChecked(t *testing.T) {
	for _, batch := range []float64{-1, 1e9} {
		if _, err := whatIf(hostBound(t), at(delta10), Change{Batch: batch}); err == nil {
			t.Errorf("a batch of %v is accepted", batch)
		}
	}
}
