package playback_test

import (
	"math"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/playback"
	"github.com/dxpu-project/dxpu/internal/model/predict"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

const us = time.Microsecond

// tape records a synthetic workload.
type tape struct {
	t    *testing.T
	b    *workload.Builder
	corr uint32
}

func record(t *testing.T) *tape { return &tape{t: t, b: workload.NewBuilder("kineto")} }

func nowhere() string { return "" }

func (r *tape) call(kind workload.CallKind, thread uint64, start, dur time.Duration) uint32 {
	r.corr++
	th, _ := r.b.Thread(workload.Thread{Process: 1, ID: thread})
	r.b.AddCall(workload.Call{Start: start, Dur: dur, Corr: r.corr, Thread: th, Kind: kind}, nowhere)
	return r.corr
}

func (r *tape) op(kind workload.OpKind, corr uint32, stream uint64, start, dur time.Duration, bytes int64) {
	s, _ := r.b.Stream(workload.Stream{Process: 1, ID: stream})
	r.b.AddOp(workload.Op{Start: start, Dur: dur, Corr: corr, Stream: s, Kind: kind, Bytes: bytes}, nowhere)
}

func (r *tape) step(name string, thread uint64, start, dur time.Duration) {
	th, _ := r.b.Thread(workload.Thread{Process: 1, ID: thread})
	r.b.AddStep(workload.Step{Name: name, Thread: th, Start: start, Dur: dur}, nowhere)
}

func (r *tape) plan() *predict.Plan {
	r.t.Helper()
	w, err := r.b.Build()
	if err != nil {
		r.t.Fatal(err)
	}
	return predict.NewPlan(w)
}

// natively is how long n bytes take a V100 natively, with 1.2 us until the first.
func natively(n int64) time.Duration {
	return max(perf.V100.ReadThroughput(perf.NativeRTT).Time(perf.Bytes(n)), perf.NativeRTT)
}

// kernelsOnly: the host runs ahead of kernels of 20 us.
func kernelsOnly(t *testing.T) *predict.Plan {
	r := record(t)
	for i := range 300 {
		at := time.Duration(i)
		c := r.call(workload.Launch, 1, at*6*us, 5*us)
		r.op(workload.Kernel, c, 7, 6*us+at*21*us, 20*us, 0)
	}
	r.call(workload.DeviceSync, 1, 300*6*us, 300*21*us+6*us+8*us-300*6*us)
	return r.plan()
}

func hostBound(t *testing.T) *predict.Plan {
	r := record(t)
	for i := range 300 {
		at := time.Duration(i) * 40 * us
		c := r.call(workload.Launch, 1, at, 5*us)
		r.op(workload.Kernel, c, 7, at+6*us, 5*us, 0)
	}
	return r.plan()
}

// syncHeavy waits for each kernel.
func syncHeavy(t *testing.T) *predict.Plan {
	r := record(t)
	for i := range 200 {
		at := time.Duration(i) * 60 * us
		c := r.call(workload.Launch, 1, at, 5*us)
		r.op(workload.Kernel, c, 7, at+6*us, 20*us, 0)
		r.call(workload.StreamSync, 1, at+7*us, 27*us)
	}
	return r.plan()
}

// copyHeavy uploads and downloads a megabyte around each kernel.
func copyHeavy(t *testing.T) *predict.Plan {
	r := record(t)
	const n = 256 << 10
	up := natively(n)
	at := time.Duration(0)
	for range 16 {
		c := r.call(workload.CopyCall, 1, at, 5*us)
		r.op(workload.CopyHtoD, c, 7, at+6*us, up, n)
		c = r.call(workload.Launch, 1, at+10*us, 5*us)
		r.op(workload.Kernel, c, 7, at+7*us+up, 50*us, 0)
		c = r.call(workload.CopyCall, 1, at+20*us, 5*us)
		r.op(workload.CopyDtoH, c, 7, at+58*us+up, 90*us, n)
		r.call(workload.StreamSync, 1, at+30*us, 120*us+up+6*us)
		at += up + 200*us
	}
	return r.plan()
}

// mixed is training steps of two threads and two streams.
func mixed(t *testing.T) *predict.Plan {
	r := record(t)
	at := time.Duration(0)
	for step := range 6 {
		from := at
		c := r.call(workload.CopyCall, 1, at, 6*us)
		r.op(workload.CopyHtoD, c, 7, at+7*us, 12*us, 64<<10)
		end := at + 20*us
		for k := range 60 {
			at += 9 * us
			thread := uint64(1)
			if k >= 30 {
				thread = 2
			}
			if k == 30 {
				at += 40 * us
			}
			c := r.call(workload.Launch, thread, at, 5*us)
			stream := uint64(7)
			if k%10 == 9 {
				stream = 8
			}
			end = max(end+us, at+6*us)
			r.op(workload.Kernel, c, stream, end, time.Duration(4+k%17)*us, 0)
			end += time.Duration(4+k%17) * us
		}
		at += 60 * us
		c = r.call(workload.CopyCall, 1, at, 5*us)
		r.op(workload.CopyDtoH, c, 7, max(end+us, at+6*us), 2*us, 4)
		end = max(end+us, at+6*us) + 2*us
		r.call(workload.StreamSync, 1, at+6*us, end+7*us-at-6*us)
		at = end + 30*us
		r.step("step "+string(rune('0'+step)), 1, from, at-from-10*us)
	}
	return r.plan()
}

var workloads = []struct {
	name string
	make func(*testing.T) *predict.Plan
	// native and rest bound how far the system's time is from the recording at
	// the native round trip, and the relative performance from the model's above it.
	native, rest float64
}{
	{"kernels only", kernelsOnly, 0.001, 0.002},
	{"host bound", hostBound, 0.001, 0.002},
	{"synchronisations", syncHeavy, 0.001, 0.002},
	{"copies", copyHeavy, 0.003, 0.005},
	// Its copy of 64 KiB takes four round trips, the last not full: Equation 1
	// counts 3.66.
	{"mixed", mixed, 0.001, 0.015},
}

func run(t *testing.T, p *predict.Plan, rtt time.Duration) predict.Result {
	t.Helper()
	times, err := playback.Virtual(t.Context(), p, playback.Spec{NativeRTT: perf.NativeRTT, RTT: rtt, Requester: perf.V100})
	if err != nil {
		t.Fatal(err)
	}
	return p.Measure(times)
}

func basis(r predict.Result) time.Duration {
	if len(r.Steps) == 0 {
		return r.Active.Replayed
	}
	var sum time.Duration
	for _, s := range r.Steps {
		sum += s.Replayed
	}
	return sum
}

// The system and the model agree, and the system is slower the longer the
// round trip is.
func TestVirtualAgreesWithTheModel(t *testing.T) {
	rtts := []time.Duration{1300, 2000, 4900, 6800, 10000, 20000, 50000}
	if raceEnabled {
		rtts = []time.Duration{6800}
	}
	for _, wl := range workloads {
		t.Run(wl.name, func(t *testing.T) {
			t.Parallel()
			p := wl.make(t)
			native := run(t, p, perf.NativeRTT)
			if off := native.Relative - 1; math.Abs(off) > wl.native {
				t.Errorf("native: %+.3f %%", 100*off)
			}
			last := basis(native)
			for _, rtt := range rtts {
				got := run(t, p, rtt)
				want, err := p.Run(predict.Setting{NativeRTT: perf.NativeRTT, RTT: rtt, Costs: playback.Costs(), Requester: perf.V100})
				if err != nil {
					t.Fatal(err)
				}
				relative := float64(basis(native)) / float64(basis(got))
				t.Logf("%v: system %.3f %%, model %.3f %%", rtt, 100*relative, 100*want.Relative)
				if math.Abs(relative-want.Relative) > wl.rest {
					t.Errorf("%v: system %.2f %%, model %.2f %%", rtt, 100*relative, 100*want.Relative)
				}
				if basis(got) < last {
					t.Errorf("%v: faster (%v) than with a shorter round trip (%v)", rtt, basis(got), last)
				}
				last = basis(got)
			}
		})
	}
}
