package bench

import (
	"math"
	"sync"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/perf/paper"
	"github.com/dxpu-project/dxpu/internal/model/playback"
	"github.com/dxpu-project/dxpu/internal/model/predict"
	"github.com/dxpu-project/dxpu/internal/model/workload"
	"github.com/dxpu-project/dxpu/link"
)

// waits is a workload that waits for each of its kernels, with some copies.
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

// Each try checks the properties that hold on any machine. The distance of the times
// from the model is checked only if the machine ran the process; package playback
// tests the exact times in virtual time.
func TestWorkloadInRealTime(t *testing.T) {
	const tries = 4
	for try := 1; ; try++ {
		var c *playback.Comparison
		stolen := stolenWhile(func() { c = compareInRealTime(t) })
		slow := &c.Points[1]
		switch {
		case c.Native > c.Recorded*9/10 && c.Native < c.Recorded*12/10 && slow.System < 0.95 && math.Abs(slow.Deviation()) < 0.15:
			return
		case try < tries:
		case stolen > 0.05:
			t.Skipf("timers need a processor: other processes had it for %.0f %% of the time", 100*stolen)
		default:
			t.Fatalf("native %v for %v; at %v system %.3f, model %.3f", c.Native, c.Recorded, slow.RTT, slow.System, slow.Model)
		}
	}
}

// stolenWhile returns the share of f's time in which a timer was much too late, as
// happens only on a busy machine.
func stolenWhile(f func()) float64 {
	const tick = time.Millisecond
	stop := make(chan struct{})
	var stolen time.Duration
	var watch sync.WaitGroup
	start := time.Now()
	watch.Go(func() {
		for {
			due := time.Now().Add(tick)
			select {
			case <-stop:
				return
			case <-time.After(tick):
			}
			if late := time.Since(due); late > tick {
				stolen += late
			}
		}
	})
	f()
	close(stop)
	watch.Wait()
	return float64(stolen) / float64(time.Since(start))
}

func compareInRealTime(t *testing.T) *playback.Comparison {
	t.Helper()
	spec := WorkloadSpec{NativeRTT: perf.NativeRTT, RTTs: []time.Duration{20 * time.Microsecond}, Requester: perf.V100}
	out, err := Workload(t.Context(), Options{Cipher: link.CipherAES256GCM}, waits(t, 20), spec)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range out.Runs {
		checkOrder(t, out.Plan.Workload(), r)
	}
	c, err := playback.Compare(out.Plan, spec.Requester, paper.HardwareCosts(), out.Runs)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("stretched %d times, loopback %v; native %v for %v; at %v system %.1f %%, model %.1f %%",
		out.Stretch, out.Loopback, c.Native, c.Recorded, c.Points[1].RTT, 100*c.Points[1].System, 100*c.Points[1].Model)
	return c
}

// checkOrder checks what the load of the machine does not change: calls do not
// overlap, an operation takes its time after its launch, and a call that waits for it
// ends after it.
func checkOrder(t *testing.T, w *workload.Workload, r playback.Run) {
	t.Helper()
	const rounded = 3 * time.Nanosecond
	for i := range w.Ops {
		launch, wait := w.Ops[i].Call, w.Ops[i].Call+1
		began, end := r.Times.CallStart[launch], r.Times.OpEnd[i]
		// The end is half a measured round trip before the client sees it.
		if end+r.RTT/2+rounded < began+w.Ops[i].Dur {
			t.Errorf("operation %d of %v, launched at %v, ended at %v with a round trip of %v", i, w.Ops[i].Dur, began, end, r.RTT)
		}
		if r.Times.CallEnd[wait] < end {
			t.Errorf("operation %d ended at %v, the call that waits for it at %v", i, end, r.Times.CallEnd[wait])
		}
	}
	for i := range w.Calls[1:] {
		if end, next := r.Times.CallEnd[i], r.Times.CallStart[i+1]; next < end {
			t.Errorf("call %d ended at %v, the next one began at %v", i, end, next)
		}
	}
}

func TestWorkloadRefusesAStretchBelowTheLoopback(t *testing.T) {
	spec := WorkloadSpec{NativeRTT: perf.NativeRTT, Requester: perf.V100, Stretch: 1}
	if _, err := Workload(t.Context(), Options{}, waits(t, 1), spec); err == nil {
		t.Error("a network faster than loopback is accepted")
	}
}
