package bench

import (
	"math"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/perf"
	"github.com/dxpu-project/dxpu/perf/paper"
	"github.com/dxpu-project/dxpu/predict"
	"github.com/dxpu-project/dxpu/replay"
	"github.com/dxpu-project/dxpu/workload"
)

// waits is a workload that waits for each of its kernels, with a copy now and then.
func waits(t *testing.T, n int) *predict.Plan {
	t.Helper()
	const us = time.Microsecond
	b := workload.NewBuilder("kineto")
	nowhere := func() string { return "" }
	thread, _ := b.Thread(workload.Thread{Process: 1, ID: 1})
	stream, _ := b.Stream(workload.Stream{Process: 1, ID: 7})
	for i := range n {
		at := time.Duration(i) * 100 * us
		corr := uint32(2*i + 1)
		b.AddCall(workload.Call{Start: at, Dur: 5 * us, Corr: corr, Thread: thread, Kind: workload.Launch}, nowhere)
		op := workload.Op{Start: at + 6*us, Dur: 40 * us, Corr: corr, Stream: stream}
		if i%4 == 0 {
			op.Kind, op.Bytes = workload.CopyHtoD, 16<<10
		}
		b.AddOp(op, nowhere)
		b.AddCall(workload.Call{Start: at + 7*us, Dur: 47 * us, Corr: corr + 1, Thread: thread, Kind: workload.StreamSync}, nowhere)
	}
	w, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return predict.NewPlan(w)
}

// The machine that runs the tests may be loaded, so the bounds are wide and one
// of some tries has to meet them: what is exact is tested in virtual time, in
// package replay.
func TestWorkloadInRealTime(t *testing.T) {
	const tries = 4
	for try := 1; ; try++ {
		c := compareInRealTime(t)
		slow := &c.Points[1]
		if c.Native > c.Recorded*9/10 && c.Native < c.Recorded*12/10 && slow.System < 0.95 && math.Abs(slow.Deviation()) < 0.15 {
			return
		}
		if try == tries {
			t.Fatalf("native %v for %v; at %v system %.3f, model %.3f", c.Native, c.Recorded, slow.RTT, slow.System, slow.Model)
		}
	}
}

func compareInRealTime(t *testing.T) *replay.Comparison {
	t.Helper()
	spec := WorkloadSpec{NativeRTT: perf.NativeRTT, RTTs: []time.Duration{20 * time.Microsecond}, Requester: perf.V100}
	out, err := Workload(t.Context(), Options{Cipher: link.CipherAES256GCM}, waits(t, 20), spec)
	if err != nil {
		t.Fatal(err)
	}
	c, err := replay.Compare(out.Plan, spec.Requester, paper.HardwareCosts(), out.Runs)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("stretched %d times, loopback %v; native %v for %v; at %v system %.1f %%, model %.1f %%",
		out.Stretch, out.Loopback, c.Native, c.Recorded, c.Points[1].RTT, 100*c.Points[1].System, 100*c.Points[1].Model)
	return c
}

func TestWorkloadRefusesAStretchBelowTheLoopback(t *testing.T) {
	spec := WorkloadSpec{NativeRTT: perf.NativeRTT, Requester: perf.V100, Stretch: 1}
	if _, err := Workload(t.Context(), Options{}, waits(t, 1), spec); err == nil {
		t.Error("a network faster than loopback was found")
	}
}
