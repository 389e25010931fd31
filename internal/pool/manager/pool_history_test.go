package manager

import (
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// The manager keeps a sample of each minute of a day, also over a change of leader.
func TestHistoryOfThePool(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 4), boxNode("b1", 4))
	history := func(samples uint32) []*dxpuv1.PoolSample {
		t.Helper()
		res, err := w.api().GetPoolHistory(t.Context(), connect.NewRequest(&dxpuv1.GetPoolHistoryRequest{Samples: samples}))
		if err != nil {
			t.Fatal(err)
		}
		return res.Msg.Samples
	}
	minutes := func(n int) {
		t.Helper()
		for range n {
			w.clock.pass(time.Minute)
			for _, id := range w.order {
				w.report(id)
			}
			if err := w.m.takeSample(t.Context()); err != nil {
				t.Fatal(err)
			}
			if err := w.m.takeSample(t.Context()); err != nil { // the second one of the minute does nothing
				t.Fatal(err)
			}
		}
	}
	if err := w.m.takeSample(t.Context()); err != nil || len(history(0)) != 0 {
		t.Errorf("a sample before the nodes had time to report: %v, %v", history(0), err)
	}
	minutes(2)
	w.create(&dxpuv1.LeaseSpec{Count: 3})
	w.settle()
	minutes(2)
	h := history(0)
	if len(h) != 4 {
		t.Fatalf("%d samples, want 4: %v", len(h), h)
	}
	if s := h[1]; s.Gpus != 4 || s.GpusFree != 4 || s.GpusBusy != 0 {
		t.Errorf("before the lease: %v", s)
	}
	if s := h[3]; s.GpusFree != 1 || s.GpusBound != 3 || s.GpusBusy != 3 || s.LeasesActive != 1 || s.GpusUnavailable != 0 {
		t.Errorf("with the lease: %v", s)
	}
	if h := history(2); len(h) != 2 || h[0].GpusBound != 0 || h[1].GpusBound != 3 || !h[1].Time.AsTime().Equal(w.clock.now()) {
		t.Errorf("two means of two: %v", h)
	}
	var err error
	if w.m, err = New(t.Context(), Config{JoinToken: "token-for-tests", Store: store, Now: w.clock.now}); err != nil {
		t.Fatal(err)
	}
	if len(history(0)) != 4 {
		t.Errorf("the next leader has %d samples", len(history(0)))
	}
	minutes(keepSamples + 10)
	if h := history(0); len(h) < keepSamples-1 || len(h) > keepSamples || w.m.state.samples.len() != keepSamples || h[0].GpusBound != 3 {
		t.Errorf("%d samples after more than a day, %d stored, the oldest %v", len(h), w.m.state.samples.len(), h[0])
	}
	w.clock.pass(20 * time.Hour)
	if h := history(0); len(h) > 4*60+1 {
		t.Errorf("%d samples of the last day after twenty hours without a leader", len(h))
	}
	if _, err := w.api().GetPoolHistory(t.Context(), connect.NewRequest(&dxpuv1.GetPoolHistoryRequest{Samples: keepSamples + 1})); connect.CodeOf(err) != connect.CodeInvalidArgument {
		t.Errorf("too many samples: %v", err)
	}
}
