package predict

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/perf/paper"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

const us = time.Microsecond

// recorder builds a trace event by event.
type recorder struct {
	t    interface{ Fatal(...any) }
	b    *workload.Builder
	corr uint32
}

func record(t interface{ Fatal(...any) }) *recorder {
	return &recorder{t: t, b: workload.NewBuilder("test")}
}

func here() string { return "here" }

// launch makes a call of a kind and returns its correlation.
func (r *recorder) launch(kind workload.CallKind, thread int, at, dur time.Duration) uint32 {
	r.corr++
	th, _ := r.b.Thread(workload.Thread{ID: uint64(thread)})
	r.b.AddCall(workload.Call{Start: at, Dur: dur, Corr: r.corr, Name: r.b.Name([]byte("call")), Thread: th, Kind: kind}, here)
	return r.corr
}

func (r *recorder) op(kind workload.OpKind, corr uint32, stream int, at, dur time.Duration) {
	st, _ := r.b.Stream(workload.Stream{ID: uint64(stream)})
	r.b.AddOp(workload.Op{Kind: kind, Corr: corr, Stream: st, Start: at, Dur: dur, Bytes: 100}, here)
}

func (r *recorder) plan() *Plan {
	w, err := r.b.Build()
	if err != nil {
		r.t.Fatal(err)
	}
	return NewPlan(w)
}

func at(rtt time.Duration) Setting {
	return Setting{NativeRTT: perf.NativeRTT, RTT: rtt, Costs: perf.PaperCosts(), Requester: perf.V100}
}

func run(t *testing.T, p *Plan, s Setting) Result {
	t.Helper()
	r, err := p.Run(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// gpuBound returns 100 kernels of 20us back to back, launched far ahead, then a wait.
func gpuBound(t *testing.T) *Plan {
	r := record(t)
	for i := range 100 {
		c := r.launch(workload.Launch, 1, time.Duration(i)*6*us, 5*us)
		r.op(workload.Kernel, c, 7, 6*us+time.Duration(i)*20*us, 20*us)
	}
	r.launch(workload.DeviceSync, 1, 700*us, 1310*us)
	return r.plan()
}

// hostBound returns 100 kernels of 5us, one every 40us.
func hostBound(t *testing.T) *Plan {
	r := record(t)
	for i := range 100 {
		c := r.launch(workload.Launch, 1, time.Duration(i)*40*us, 5*us)
		r.op(workload.Kernel, c, 7, time.Duration(i)*40*us+6*us, 5*us)
	}
	return r.plan()
}

const delta10 = perf.NativeRTT + 10*us

func TestGPUBoundRunPaysEveryKernel(t *testing.T) {
	r := run(t, gpuBound(t), at(delta10))
	if want := 100 * 10 * us; r.Exposed != want || r.Charged != want {
		t.Errorf("longer by %v of %v charged, want %v", r.Exposed, r.Charged, want)
	}
	if want := 2000.0 / 3000; math.Abs(r.Additive.Relative-want) > 1e-9 {
		t.Errorf("additive %v, want %v", r.Additive.Relative, want)
	}
}

func TestIdleGapsAbsorb(t *testing.T) {
	r := run(t, hostBound(t), at(delta10))
	if r.Charged != 1000*us || r.Exposed != 10*us {
		t.Errorf("longer by %v of %v charged; only the last kernel's 10us can show", r.Exposed, r.Charged)
	}
	// If a kernel takes longer than the host's 40us, the GPU limits the run.
	r = run(t, hostBound(t), at(perf.NativeRTT+100*us))
	if want := 100*105*us + 6*us - (99*40+11)*us; r.Exposed < want || r.Exposed > want+100*us {
		t.Errorf("longer by %v, want about %v", r.Exposed, want)
	}
}

// A synchronisation after every kernel exposes all of the latency.
func TestSynchronisationsExpose(t *testing.T) {
	r := record(t)
	for i := range 50 {
		base := time.Duration(i) * 100 * us
		c := r.launch(workload.Launch, 1, base, 5*us)
		r.op(workload.Kernel, c, 7, base+6*us, 10*us)
		r.launch(workload.StreamSync, 1, base+8*us, 10*us)
	}
	got := run(t, r.plan(), at(delta10))
	if want := 50 * 10 * us; got.Exposed != want {
		t.Errorf("longer by %v, want %v", got.Exposed, want)
	}
}

// A synchronisation that did not wait in the trace waits if the work takes longer.
func TestIdleSynchronisationBeginsToWait(t *testing.T) {
	r := record(t)
	c := r.launch(workload.Launch, 1, 0, 5*us)
	r.op(workload.Kernel, c, 7, 6*us, 10*us)
	r.launch(workload.StreamSync, 1, 20*us, 2*us)
	c = r.launch(workload.Launch, 1, 30*us, 5*us)
	r.op(workload.Kernel, c, 7, 36*us, 10*us)
	if got := run(t, r.plan(), at(delta10)); got.Exposed != 16*us {
		t.Errorf("longer by %v, want 6us of the wait and 10us of the last kernel", got.Exposed)
	}
}

// A copy of pageable memory blocks its call until the copy has ended.
func TestBlockingCopy(t *testing.T) {
	r := record(t)
	for i := range 10 {
		base := time.Duration(i) * 200 * us
		c := r.launch(workload.CopyCall, 1, base, 100*us)
		r.op(workload.CopyHtoD, c, 7, base+10*us, 85*us)
	}
	p := r.plan()
	if s := p.Stats(100); s.Blocked != 10 || s.BlockedWait != 1000*us {
		t.Errorf("%d calls blocked for %v, want 10 for 1ms", s.Blocked, s.BlockedWait)
	}
	if got := run(t, p, at(delta10)); got.Exposed != 100*us {
		t.Errorf("longer by %v, want 100us", got.Exposed)
	}
}

// An operation that waits for another stream moves with that stream.
func TestCrossStream(t *testing.T) {
	r := record(t)
	for i := range 40 { // enough to estimate launch latencies
		c := r.launch(workload.Launch, 1, time.Duration(i)*100*us, 5*us)
		r.op(workload.Kernel, c, 7, time.Duration(i)*100*us+6*us, 50*us)
		c = r.launch(workload.Launch, 1, time.Duration(i)*100*us+10*us, 5*us)
		r.op(workload.Kernel, c, 8, time.Duration(i)*100*us+58*us, 30*us)
	}
	p := r.plan()
	crossed := 0
	for _, o := range p.ops {
		if o.constraint == crossConstraint {
			crossed++
		}
	}
	if crossed != 40 {
		t.Errorf("%d operations wait for the other stream, want 40", crossed)
	}
	if got := run(t, p, at(delta10)); got.Exposed != 20*us {
		t.Errorf("longer by %v, want both kernels of the last pair", got.Exposed)
	}
}

// The main thread waits for the backward pass of another thread.
func TestThreadsWaitForEachOther(t *testing.T) {
	r := record(t)
	c := r.launch(workload.Launch, 1, 0, 5*us)
	r.op(workload.Kernel, c, 7, 6*us, 10*us)
	r.launch(workload.StreamSync, 2, 50*us, 1*us)
	c = r.launch(workload.Launch, 2, 60*us, 5*us)
	r.op(workload.Kernel, c, 7, 66*us, 100*us)
	r.launch(workload.StreamSync, 2, 70*us, 97*us)
	c = r.launch(workload.Launch, 1, 200*us, 5*us)
	r.op(workload.Kernel, c, 7, 206*us, 10*us)
	if got := run(t, r.plan(), at(delta10)); got.Exposed != 20*us {
		t.Errorf("longer by %v, want 20us: one kernel in the other thread's wait, one at the end", got.Exposed)
	}
}

func TestSteps(t *testing.T) {
	r := record(t)
	th, _ := r.b.Thread(workload.Thread{ID: 1})
	for i := range 4 { // the host runs ahead: a step takes 50us there and 200us on the GPU
		base := time.Duration(i) * 50 * us
		for k := range 2 {
			c := r.launch(workload.Launch, 1, base+time.Duration(k)*10*us+us, 5*us)
			r.op(workload.Kernel, c, 7, 10*us+time.Duration(2*i+k)*100*us, 100*us)
		}
		r.b.AddStep(workload.Step{Name: fmt.Sprint("s", i), Thread: th, Start: base, Dur: 50 * us}, here)
	}
	r.launch(workload.DeviceSync, 1, 210*us, 610*us)
	got := run(t, r.plan(), at(delta10))
	want := []StepTime{
		{"s0", 210 * us, 230 * us, 50 * us, 50 * us, 2},
		{"s1", 200 * us, 220 * us, 50 * us, 50 * us, 2},
		{"s2", 200 * us, 220 * us, 50 * us, 50 * us, 2},
		{"s3", 200 * us, 220 * us, 50 * us, 50 * us, 2},
	}
	if d := cmp.Diff(want, got.Steps); d != "" {
		t.Error(d)
	}
	if rel := 810.0 / 890; math.Abs(got.Relative-rel) > 1e-9 || got.Basis != "4 training steps" {
		t.Errorf("%v over %s, want %v", got.Relative, got.Basis, rel)
	}
}

// The nodes of a graph and its launch have their own costs.
func TestGraphs(t *testing.T) {
	r := record(t)
	for i := range 10 {
		base := time.Duration(i) * 200 * us
		c := r.launch(workload.GraphLaunch, 1, base, 5*us)
		for k := range 10 {
			r.op(workload.Kernel, c, 7, base+8*us+time.Duration(k)*10*us, 10*us)
		}
		r.launch(workload.StreamSync, 1, base+10*us, 100*us)
	}
	p := r.plan()
	if got := run(t, p, at(delta10)); got.Exposed != 100*us { // one for each launch
		t.Errorf("paper's costs: longer by %v, want 100us", got.Exposed)
	}
	s := at(delta10)
	s.Costs = paper.HardwareCosts()
	if got := run(t, p, s); got.Exposed >= 500*us {
		t.Errorf("hardware's costs: longer by %v; only launches and waits should take longer", got.Exposed)
	}
	if st := p.Stats(100); st.GraphKernels != 100 {
		t.Errorf("%d graph kernels", st.GraphKernels)
	}
}

// Equation 1 bounds large copies to the device, with at least the bytes in flight
// that the trace shows.
func TestLargeCopies(t *testing.T) {
	for _, tc := range []struct {
		name  string
		bytes int64
		dur   time.Duration
		want  time.Duration
	}{
		{"small: one round trip", 1000, 2 * us, 10 * us},
		{"at the window", 17920, 2 * us, 10 * us},
		{"large: the rate", 2_800_000, 280 * us, 1750*us - 280*us},                           // 140*128/11.2us = 1.6 GB/s
		{"faster than 140 tags: its own window", 28_000_000, 560 * us, 560*us*28/3 - 560*us}, // 11.2/1.2 times as long
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := workload.NewBuilder("test")
			st, _ := b.Stream(workload.Stream{})
			b.AddOp(workload.Op{Kind: workload.CopyHtoD, Stream: st, Dur: tc.dur, Bytes: tc.bytes}, here)
			w, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			got := run(t, NewPlan(w), at(delta10))
			if d := got.Exposed - tc.want; d < -us || d > us {
				t.Errorf("longer by %v, want %v", got.Exposed, tc.want)
			}
		})
	}
}

// A copy that stays on the device is a command like a kernel: the hardware's costs
// charge it, the paper's model, which does not mention it, does not.
func TestCopiesOnTheDevice(t *testing.T) {
	for _, kind := range []workload.OpKind{workload.CopyDtoD, workload.CopyPtoP} {
		r := record(t)
		for i := range 10 {
			c := r.launch(workload.CopyCall, 1, time.Duration(i)*6*us, 5*us)
			r.op(kind, c, 7, 6*us+time.Duration(i)*20*us, 20*us)
		}
		p, s := r.plan(), at(delta10)
		if got := run(t, p, s); got.Charged != 0 {
			t.Errorf("%v: the paper's model charges %v", kind, got.Charged)
		}
		s.Costs = paper.HardwareCosts()
		if got := run(t, p, s); got.Charged != 10*got.KernelCost || got.KernelCost < 10*us {
			t.Errorf("%v: charged %v, a kernel %v", kind, got.Charged, got.KernelCost)
		}
	}
}

// Without the profiler's share of host time, a host-bound run has less idle time to
// absorb latency.
func TestCalibrateHost(t *testing.T) {
	p := hostBound(t)
	s := at(delta10)
	native := 2000 * us // of the 3971us recorded
	scale, err := p.CalibrateHost(s, native)
	if err != nil || scale < 0.4 || scale > 0.6 {
		t.Fatalf("scale %v, %v; want about a half", scale, err)
	}
	s.HostScale = scale
	r := run(t, p, s)
	if d := r.Active.Recorded - native; d < -5*us || d > 5*us {
		t.Errorf("native %v, want %v", r.Active.Recorded, native)
	}
	s.RTT = perf.NativeRTT + 40*us
	s.HostScale = 0
	profiled := run(t, p, s)
	s.HostScale = scale
	if r = run(t, p, s); r.Relative >= profiled.Relative {
		t.Errorf("%v without the profiler's time, %v with it", r.Relative, profiled.Relative)
	}
	if scale, err := p.CalibrateHost(s, 4200*us); scale != 1 || err != nil {
		t.Errorf("a little longer step than recorded: %v, %v", scale, err)
	}
	if _, err := p.CalibrateHost(s, 4500*us); err == nil {
		t.Error("a step that is a tenth longer than with the profiler")
	}
	if _, err := p.CalibrateHost(s, 100*us); err == nil {
		t.Error("a step shorter than the GPU's work")
	}
	// Kernels that a trace has a little longer than the run without a profiler.
	if scale, err := gpuBound(t).CalibrateHost(s, 1960*us); scale != leastHost || err != nil {
		t.Errorf("2 %% less than the GPU's work: %v, %v; want %v", scale, err, leastHost)
	}
	if _, err := gpuBound(t).CalibrateHost(s, 1900*us); err == nil {
		t.Error("5 % less than the GPU's work")
	}
}

func TestSettingIsChecked(t *testing.T) {
	p := hostBound(t)
	for name, s := range map[string]Setting{
		"below native": at(us), "no native": {RTT: us, Requester: perf.V100}, "no tags": {NativeRTT: us, RTT: us},
		"host scale": {NativeRTT: us, RTT: us, Requester: perf.V100, HostScale: 2},
	} {
		if _, err := p.Run(s); err == nil {
			t.Errorf("%s: no error", name)
		}
		if _, err := p.Sweep(s, []time.Duration{s.RTT}); err == nil {
			t.Errorf("%s: no error in a sweep", name)
		}
	}
}

// drawPlan draws a trace with all kinds of events, with overlaps and orphans.
func drawPlan(t *rapid.T) *Plan {
	r := record(t)
	th, _ := r.b.Thread(workload.Thread{ID: 0})
	dur := rapid.Int64Range(0, 80_000)
	now, gpu := time.Duration(0), [3]time.Duration{}
	for range rapid.IntRange(1, 60).Draw(t, "events") {
		thread := rapid.IntRange(0, 2).Draw(t, "thread")
		stream := rapid.IntRange(0, 2).Draw(t, "stream")
		kind := workload.CallKind(rapid.IntRange(0, 7).Draw(t, "call"))
		d := time.Duration(dur.Draw(t, "dur"))
		c := r.launch(kind, thread, now, d)
		for range rapid.IntRange(0, 2).Draw(t, "ops") {
			op := workload.OpKind(rapid.IntRange(0, 8).Draw(t, "op"))
			corr := c * uint32(min(rapid.IntRange(0, 9).Draw(t, "known"), 1))
			start := max(now, gpu[stream]) + time.Duration(rapid.Int64Range(-3000, 40_000).Draw(t, "lag"))
			length := time.Duration(dur.Draw(t, "length"))
			r.op(op, corr, stream, start, length)
			gpu[stream] = start + length
		}
		drawMark(t, r, now)
		if rapid.IntRange(0, 9).Draw(t, "mark") == 0 {
			r.b.AddStep(workload.Step{Name: fmt.Sprint(c), Thread: th, Start: now, Dur: time.Duration(dur.Draw(t, "step"))}, here)
		}
		now += time.Duration(dur.Draw(t, "gap"))
	}
	r.op(workload.Kernel, 0, 0, now, us)
	return r.plan()
}

// drawMark may draw a call that records an event or waits for one, with true, false
// or no details.
func drawMark(t *rapid.T, r *recorder, now time.Duration) {
	if rapid.IntRange(0, 2).Draw(t, "event") == 0 {
		return
	}
	r.corr++
	th, _ := r.b.Thread(workload.Thread{ID: uint64(rapid.IntRange(0, 2).Draw(t, "by"))})
	st, _ := r.b.Stream(workload.Stream{ID: uint64(rapid.IntRange(0, 2).Draw(t, "on"))})
	kind := workload.MarkKind(rapid.IntRange(0, 1).Draw(t, "wait"))
	r.b.AddMark(kind, now, r.corr, th, here)
	switch {
	case rapid.Bool().Draw(t, "untold"):
	case kind == workload.EventRecord:
		r.b.AddEvent(0, r.corr, st)
	default:
		event := rapid.Uint32Range(0, r.corr+1).Draw(t, "of")
		from := rapid.SampledFrom([]int32{workload.None, st}).Draw(t, "from")
		r.b.AddAwaited(workload.Awaited{Corr: r.corr - rapid.Uint32Range(0, 1).Draw(t, "before"), Stream: st, Event: event, From: from})
	}
}

// asRecorded checks that every event of a replay falls on its recorded time.
func asRecorded(t *rapid.T, p *Plan, times times) {
	for i := range p.w.Calls {
		if c := &p.w.Calls[i]; times.callStart[i] != c.Start || times.callEnd[i] != c.End() {
			t.Fatalf("call %d: %v to %v, recorded %v to %v: %+v", i, times.callStart[i], times.callEnd[i], c.Start, c.End(), p.calls[i])
		}
	}
	for i := range p.w.Ops {
		if o := &p.w.Ops[i]; times.opEnd[i] != o.End() {
			t.Fatalf("operation %d ends at %v, recorded %v: %+v", i, times.opEnd[i], o.End(), p.ops[i])
		}
	}
}

// Without added latency every event falls on its recorded time. In the recorded order, a longer
// round trip never makes a run shorter. Equal inputs give equal results.
func TestReplayProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := drawPlan(t)
		s := at(perf.NativeRTT)
		if rapid.Bool().Draw(t, "hardware") {
			s.Costs = paper.HardwareCosts()
		}
		asRecorded(t, p, p.replay(p.costsAt(s)))
		s.RecordedOrder = true
		before := p.replay(p.costsAt(s))
		asRecorded(t, p, before)
		for range 4 {
			s.RTT += time.Duration(rapid.Int64Range(0, 20_000).Draw(t, "more"))
			after := p.replay(p.costsAt(s))
			for i := range after.opEnd {
				if after.opEnd[i] < before.opEnd[i] {
					t.Fatalf("operation %d ends earlier at %v", i, s.RTT)
				}
			}
			for i := range after.callEnd {
				if after.callEnd[i] < before.callEnd[i] || after.callStart[i] < before.callStart[i] {
					t.Fatalf("call %d earlier at %v", i, s.RTT)
				}
			}
			before = after
		}
		s.RecordedOrder = rapid.Bool().Draw(t, "order")
		one, err1 := p.Run(s)
		two, err2 := NewPlan(p.w).Run(s)
		if err1 != nil || err2 != nil || cmp.Diff(one, two) != "" {
			t.Fatal("two runs differ")
		}
	})
}

func BenchmarkReplay(b *testing.B) {
	for _, threads := range []int{1, 4} {
		b.Run(fmt.Sprint(threads, " threads"), func(b *testing.B) {
			r := record(b)
			for i := range 100_000 {
				c := r.launch(workload.Launch, 1+i%threads, time.Duration(i)*6*us, 5*us)
				r.op(workload.Kernel, c, 7, 6*us+time.Duration(i)*20*us, 20*us)
			}
			p := r.plan()
			for b.Loop() {
				if _, err := p.Run(at(delta10)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
