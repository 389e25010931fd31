package playback_test

import (
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/playback"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// A large copy behind many kernels takes nearly all of the time of a simulation: progress
// shows how much of it is left.
func TestProgressCountsBytes(t *testing.T) {
	r := record(t)
	const kernels, bytes = 2_000, 64 << 20
	for i := range kernels {
		at := time.Duration(i) * 10 * us
		r.op(workload.Kernel, r.call(workload.Launch, 1, at, 5*us), 7, at+6*us, 3*us, 0)
	}
	at := kernels * 10 * us
	r.op(workload.CopyHtoD, r.call(workload.CopyCall, 1, at, 5*us), 7, at+6*us, natively(bytes), bytes)
	var shares []float64
	_, err := playback.Virtual(t.Context(), r.plan(), playback.Spec{
		NativeRTT: perf.NativeRTT, RTT: perf.NativeRTT, Requester: perf.V100,
		Progress: func(share float64) { shares = append(shares, share) },
	})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSorted(shares) || slices.Max(shares) > 0.9 {
		t.Errorf("the copy counts too little: %v", shares)
	}
	if !slices.ContainsFunc(shares, func(s float64) bool { return s > 0.3 && s < 0.7 }) {
		t.Errorf("never half done: %v", shares)
	}
}
