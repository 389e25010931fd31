package web

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// The chart has the height of the pool and the width of its time. A time without samples
// is a gap, not a line.
func TestChart(t *testing.T) {
	at := func(minute int, bound, busy uint32) *dxpuv1.PoolSample {
		return &dxpuv1.PoolSample{
			Time: timestamppb.New(time.Unix(0, 0).Add(time.Duration(minute) * time.Minute)), Gpus: 8, GpusBound: bound, GpusBusy: busy,
		}
	}
	if newChart(nil) != nil || newChart([]*dxpuv1.PoolSample{at(0, 1, 1)}) != nil {
		t.Error("a chart of less than two samples")
	}
	c := newChart([]*dxpuv1.PoolSample{at(0, 0, 0), at(1, 4, 2), at(2, 8, 8)})
	if want := "M0.0 100 L0.0 100.0 L500.0 50.0 L1000.0 0.0 L1000.0 100 Z"; c.Bound != want {
		t.Errorf("in leases %q, want %q", c.Bound, want)
	}
	if want := "M0.0 100 L0.0 100.0 L500.0 75.0 L1000.0 0.0 L1000.0 100 Z"; c.Busy != want {
		t.Errorf("busy %q, want %q", c.Busy, want)
	}
	if c.MostBound != 8 || !strings.Contains(c.Words(), "At most 8 GPUs") {
		t.Errorf("words: %s", c.Words())
	}
	c = newChart([]*dxpuv1.PoolSample{at(0, 8, 0), at(1, 8, 0), at(2, 8, 0), at(98, 8, 0), at(99, 8, 0), at(100, 8, 0)})
	if n := strings.Count(c.Bound, "M"); n != 2 {
		t.Errorf("%d areas around a gap, want 2: %s", n, c.Bound)
	}
	// A pool that shrank keeps the chart within its image.
	small := at(1, 9, 9)
	small.Gpus = 4
	if c = newChart([]*dxpuv1.PoolSample{at(0, 1, 1), small}); strings.Contains(c.Bound, "-") {
		t.Errorf("the line leaves the image: %s", c.Bound)
	}
}
