package predict

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

func TestStats(t *testing.T) {
	s := gpuBound(t).Stats(17920)
	if s.Kernels != 100 || s.KernelTime != 2000*us || s.MeanKernel() != 20*us || s.ShortShare() != 0 || s.Utilisation() != 1 {
		t.Errorf("%+v", s)
	}
	if s.Syncs != 1 || s.SyncWait != 1310*us {
		t.Errorf("%d waits of %v", s.Syncs, s.SyncWait)
	}
	if p := At(s.Durations, 20*us); p.ByNumber != 1 || p.ByTime != 1 {
		t.Errorf("%+v", p)
	}
	if p := At(s.Durations, 19*us); p.ByNumber != 0 {
		t.Errorf("%+v", p)
	}
	var none Stats
	if none.MeanKernel() != 0 || none.ShortShare() != 0 || none.Utilisation() != 0 || none.MemoryShare() != 0 {
		t.Error("statistics of nothing")
	}
}

func TestDistribution(t *testing.T) {
	var durs []time.Duration
	for i := range 10_000 {
		durs = append(durs, time.Duration(i%1000)*us)
	}
	points := distribution(durs)
	if len(points) < 100 || len(points) > 2*maxPoints {
		t.Errorf("%d points", len(points))
	}
	for i := 1; i < len(points); i++ {
		a, b := points[i-1], points[i]
		if b.Duration <= a.Duration || b.ByNumber <= a.ByNumber || b.ByTime <= a.ByTime || b.ByTime > b.ByNumber {
			t.Fatalf("%+v after %+v", b, a)
		}
	}
	if last := points[len(points)-1]; last.ByNumber != 1 || last.ByTime != 1 {
		t.Errorf("%+v", last)
	}
}

// inGraphs returns one launch of a graph of 100 short kernels.
func inGraphs(t *testing.T) *Plan {
	r := record(t)
	c := r.launch(workload.GraphLaunch, 1, 0, 5*us)
	for i := range 100 {
		r.op(workload.GraphKernel, c, 7, 6*us+time.Duration(i)*6*us, 5*us)
	}
	return r.plan()
}

func TestVerdict(t *testing.T) {
	for _, tc := range []struct {
		name  string
		plan  *Plan
		delta time.Duration
		want  []string
	}{
		{"nothing added", gpuBound(t), 0, []string{"No round trip is added"}},
		{"GPU bound", gpuBound(t), 10 * us, []string{"66.8 % of native", "not suited", "A kernel takes 20µs on average and becomes 10µs longer", "CUDA graph"}},
		{"GPU bound, little added", gpuBound(t), us, []string{"95.3 % of native", "well suited", "Nothing stands out"}},
		{"graphs", inGraphs(t), 10 * us, []string{"100 % of the kernels run in CUDA graphs"}},
		{"host bound", hostBound(t), 10 * us, []string{"well suited", "99 % of the added", "short", "CUDA graph", "host limits the run"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := run(t, tc.plan, at(perf.NativeRTT+tc.delta))
			s := tc.plan.Stats(17920)
			v := Judge(&s, &r, rangeOf(t, tc.plan, &r, &s), &tc.plan.w.Report, 17920)
			text := v.Summary + strings.Join(v.Advice, " ")
			for _, w := range tc.want {
				if !strings.Contains(text, w) {
					t.Errorf("%q is not in %q", w, text)
				}
			}
		})
	}
}

// Steps without GPU work neither count as unaffected by latency nor leave room for a
// verdict.
func TestStepsWithoutWork(t *testing.T) {
	for _, tc := range []struct {
		name       string
		with, all  int           // steps with GPU work, steps
		idle       time.Duration // duration of a step without GPU work
		basis      string
		incomplete bool
		doubt      string
		want       string
	}{
		{"complete", 4, 4, 0, "4 training steps", false, "", "not suited"},
		{"half", 2, 4, 20 * us, "2 training steps", false, "2 of 4 training steps contain no GPU work", "no verdict, because 2 of 4"},
		{"none with work", 0, 2, 20 * us, "active part of the trace (its steps contain no GPU work)", false, "2 of 2", "no verdict"},
		{"truncated trace", 4, 4, 0, "4 training steps", true, "the trace is incomplete", "no verdict, because the trace is incomplete"},
		{"short step at the end", 3, 4, 2 * us, "3 training steps", false, "", "not suited"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := record(t)
			th, _ := r.b.Thread(workload.Thread{ID: 1})
			for i := range tc.all {
				base, dur := time.Duration(i)*100*us, tc.idle
				if i < tc.with {
					dur = 20 * us
					c := r.launch(workload.Launch, 1, base+us, 5*us)
					r.op(workload.Kernel, c, 7, base+7*us, 10*us)
					r.launch(workload.StreamSync, 1, base+8*us, 10*us)
				} else {
					r.launch(workload.Other, 1, base+us, us)
				}
				r.b.AddStep(workload.Step{Name: fmt.Sprint("s", i), Thread: th, Start: base, Dur: dur}, here)
			}
			if tc.with == 0 { // work before the first step
				r.op(workload.Kernel, 0, 7, -50*us, 10*us)
			}
			r.b.Report.Incomplete = tc.incomplete
			p := r.plan()
			got := run(t, p, at(perf.NativeRTT+50*us))
			if got.Basis != tc.basis || got.Idle != tc.all-tc.with {
				t.Errorf("basis %q, %d steps without work; want %q, %d", got.Basis, got.Idle, tc.basis, tc.all-tc.with)
			}
			if tc.with > 0 && got.Relative > 0.8 {
				t.Errorf("performance %v: steps without work count", got.Relative)
			}
			s := p.Stats(17920)
			v := Judge(&s, &got, rangeOf(t, p, &got, &s), &p.w.Report, 17920)
			if !strings.Contains(v.Summary, tc.want) || !strings.Contains(v.Doubt, tc.doubt) || (v.Doubt == "") != (tc.doubt == "") {
				t.Errorf("summary %q, doubt %q; want %q, %q", v.Summary, v.Doubt, tc.want, tc.doubt)
			}
		})
	}
}

// A damaged but complete trace gets a qualified verdict.
func TestVerdictOnDamagedTrace(t *testing.T) {
	p := gpuBound(t)
	p.w.Report.Drop("broken", "here")
	r, s := run(t, p, at(perf.NativeRTT+us)), p.Stats(17920)
	v := Judge(&s, &r, rangeOf(t, p, &r, &s), &p.w.Report, 17920)
	if !strings.Contains(v.Summary, "well suited to disaggregation, but parts of the trace are damaged or doubtful") || !strings.Contains(v.Doubt, "1 broken") {
		t.Errorf("summary %q, doubt %q", v.Summary, v.Doubt)
	}
}

func rangeOf(t *testing.T, p *Plan, r *Result, s *Stats) Range {
	t.Helper()
	setting := at(r.RTT)
	g, err := p.Range(setting, r, s)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Where the verdict rests on what the trace cannot tell, it names both ends.
func TestRange(t *testing.T) {
	for _, tc := range []struct {
		name       string
		plan       *Plan
		hostScale  float64
		low, high  float64
		why, words string
	}{
		{"GPU never idles", gpuBound(t), 0, 66.78, 66.78, "", "66.8 % of native"},
		{"profiler may hide it", hostBound(t), 0, 33.33, 99.75, "busy 13 % of the time", `33.3 to 99.7 % of native at a round trip of 11.2µs: between "not suited to disaggregation as it is" and "well suited to disaggregation"`},
		{"profiler's time is removed", hostBound(t), 1, 99.75, 99.75, "", "99.7 % of native at a round trip of 11.2µs: well suited to disaggregation;"},
		{"graphs", inGraphs(t), 0, 37.46, 98.37, "100 kernels run in CUDA graphs", "37.5 to 98.4 %"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			set := at(delta10)
			set.HostScale = tc.hostScale
			r, s := run(t, tc.plan, set), tc.plan.Stats(17920)
			g, err := tc.plan.Range(set, &r, &s)
			if err != nil {
				t.Fatal(err)
			}
			if fmt.Sprintf("%.2f %.2f", 100*g.Low, 100*g.High) != fmt.Sprintf("%.2f %.2f", tc.low, tc.high) {
				t.Errorf("%.2f to %.2f %%, want %.2f to %.2f", 100*g.Low, 100*g.High, tc.low, tc.high)
			}
			v := Judge(&s, &r, g, &tc.plan.w.Report, 17920)
			if !strings.Contains(strings.Join(g.Why, "; "), tc.why) || !strings.Contains(v.Summary, tc.words) {
				t.Errorf("%v: %s", g.Why, v.Summary)
			}
		})
	}
}
