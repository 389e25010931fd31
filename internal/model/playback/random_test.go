package playback_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/playback"
	"github.com/dxpu-project/dxpu/internal/model/predict"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// anything draws a recording that makes little sense: operations overlap, start
// before their launch, have none, wait across streams; threads synchronise at any time.
func anything(rt *rapid.T) *predict.Plan {
	b := workload.NewBuilder("kineto")
	micros := func(label string, most int) time.Duration {
		return time.Duration(rapid.IntRange(0, most*1000).Draw(rt, label))
	}
	threads, streams := rapid.IntRange(1, 3).Draw(rt, "threads"), rapid.IntRange(1, 10).Draw(rt, "streams")
	at := make([]time.Duration, threads)
	kinds := []workload.OpKind{
		workload.Kernel, workload.Kernel, workload.Kernel, workload.CopyHtoD, workload.CopyDtoH, workload.CopyDtoD, workload.Memset, workload.CopyOther,
	}
	for i := range rapid.IntRange(1, 60).Draw(rt, "calls") {
		th := rapid.IntRange(0, threads-1).Draw(rt, "thread")
		at[th] += micros("gap", 40)
		corr := uint32(i + 1)
		kind := rapid.SampledFrom([]workload.CallKind{
			workload.Launch, workload.Launch, workload.Launch, workload.GraphLaunch, workload.CopyCall, workload.StreamSync, workload.DeviceSync, workload.Memory,
		}).Draw(rt, "call")
		thread, _ := b.Thread(workload.Thread{Process: 1, ID: uint64(th)})
		dur := micros("dur", 60)
		b.AddCall(workload.Call{Start: at[th], Dur: dur, Corr: corr, Thread: thread, Kind: kind}, nowhere)
		ops := 0
		if kind <= workload.MemsetCall {
			ops = rapid.IntRange(0, 2).Draw(rt, "ops")
		}
		for range max(ops, btoi(i == 0)) {
			s, _ := b.Stream(workload.Stream{Process: 1, ID: uint64(rapid.IntRange(1, streams).Draw(rt, "stream"))})
			if rapid.IntRange(0, 9).Draw(rt, "orphan") == 0 {
				corr = 0
			}
			b.AddOp(workload.Op{
				Start: at[th] + micros("lag", 50) - 2*us, Dur: micros("work", 40) + time.Duration(btoi(i == 0)), Corr: corr, Stream: s,
				Kind: rapid.SampledFrom(kinds).Draw(rt, "kind"), Bytes: int64(rapid.IntRange(0, 40000).Draw(rt, "bytes")),
			}, nowhere)
		}
		at[th] += dur
		if i%20 == 19 {
			b.AddStep(workload.Step{Name: fmt.Sprint("step ", i), Thread: thread, Start: at[th] - dur, Dur: dur}, nowhere)
		}
	}
	w, err := b.Build()
	if err != nil {
		rt.Fatal(err)
	}
	return predict.NewPlan(w)
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// The replay of any recording ends, two replays are equal, no call ends before it
// starts, and a longer round trip makes no call faster.
func TestAnythingIsReplayed(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		p := anything(rt)
		play := func(rtt time.Duration) predict.Times {
			times, err := playback.Virtual(t.Context(), p, playback.Spec{NativeRTT: perf.NativeRTT, RTT: rtt, Requester: perf.V100})
			if err != nil {
				rt.Fatal(err)
			}
			return times
		}
		native, slow := play(perf.NativeRTT), play(perf.NativeRTT+10*us)
		if diff := cmp.Diff(native, play(perf.NativeRTT)); diff != "" {
			rt.Fatal(diff)
		}
		for i := range native.CallStart {
			if native.CallEnd[i] < native.CallStart[i] {
				rt.Errorf("call %d from %v to %v", i, native.CallStart[i], native.CallEnd[i])
			}
			// A copy that loses the race for a tag may be some round trips late natively.
			if slow.CallEnd[i]+5*us < native.CallEnd[i] {
				rt.Errorf("call %d ends at %v, natively at %v", i, slow.CallEnd[i], native.CallEnd[i])
			}
		}
	})
}
