package sim_test

import (
	"math"
	"slices"
	"testing"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/sim"
)

// GPUs behind one proxy copy at Equation 1 each while links take no time; when the link of
// the box is full they share it evenly.
func TestSharedProxy(t *testing.T) {
	for _, tc := range []struct {
		gpus, hosts int
		full        bool
	}{{1, 1, false}, {2, 2, false}, {8, 4, true}} {
		spec := sim.SharedSpec{
			Requester: perf.V100, GPUs: tc.gpus, Hosts: tc.hosts, RTT: 6800, HostLink: 1e12, BoxLink: 1e12,
			Chunk: 100 * 140 * 128, Time: 1000 * us,
		}
		if tc.full {
			spec.BoxLink = 12.5e9
		}
		r, err := spec.Measure(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d GPUs of %d hosts: %v, %v in all", tc.gpus, tc.hosts, r.PerGPU, r.Total)
		want := float64(spec.ReadThroughput(spec.RTT))
		if tc.full {
			want = float64(r.Total) / float64(tc.gpus)
			if share := float64(r.Total) / spec.BoxLink; share < 0.85 || share > 1 {
				t.Errorf("%d GPUs: %v over a link of %v", tc.gpus, r.Total, perf.BytesPerSecond(spec.BoxLink))
			}
		}
		for _, v := range r.PerGPU {
			if math.Abs(float64(v)/want-1) > 0.05 {
				t.Errorf("%d GPUs: %v, want %v", tc.gpus, v, perf.BytesPerSecond(want))
			}
		}
	}
}

// GPUs of one box that write to one host at once lose datagrams in a small buffer before
// its link, and the links deliver all copies all the same.
func TestSharedBuffer(t *testing.T) {
	spec := sim.SharedSpec{
		Requester: perf.V100, GPUs: 4, Hosts: 1, RTT: 6800, HostLink: 2.5e9, BoxLink: 25e9, Buffer: 64 << 10, Chunk: 12 * 140 * 128, Time: 2000 * us, ToHost: true,
	}
	small, err := spec.Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	spec.Buffer = 0
	large, err := spec.Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v in all, dropped %d; without a bound %v, %d", small.Total, small.Dropped, large.Total, large.Dropped)
	if small.Dropped == 0 || large.Dropped > 0 {
		t.Errorf("dropped %d with a small buffer, %d without a bound", small.Dropped, large.Dropped)
	}
	for _, r := range []sim.Shared{small, large} {
		if share := float64(r.Total) / spec.HostLink; share < 0.5 || share > 1 {
			t.Errorf("%v over a link of %v", r.Total, perf.BytesPerSecond(spec.HostLink))
		}
	}
}

// Where the switch marks datagrams, GPUs that write to one host share its link evenly, and few
// datagrams are dropped: those of the first round trips.
func TestSharedMarks(t *testing.T) {
	spec := sim.SharedSpec{
		Requester: perf.V100, GPUs: 8, Hosts: 1, RTT: 6800, HostLink: 25e9 / 8, BoxLink: 12.5e9, Buffer: 256 << 10, Chunk: 100 * 140 * 128, Time: 5000 * us, ToHost: true,
	}
	plain, err := spec.Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	spec.Mark = 64 << 10
	marks, err := spec.Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("plain %v, %d dropped; with marks %v, %d dropped, %d marked", plain.PerGPU, plain.Dropped, marks.PerGPU, marks.Dropped, marks.Marked)
	least, most := slices.Min(marks.PerGPU), slices.Max(marks.PerGPU)
	if plain.Marked != 0 || marks.Marked == 0 || 2*marks.Dropped > plain.Dropped || marks.P99 > plain.P99 || least < most*9/10 || marks.Total < plain.Total*98/100 {
		t.Errorf("plain %v, %d dropped; with marks %v, %d dropped, %d marked", plain.PerGPU, plain.Dropped, marks.PerGPU, marks.Dropped, marks.Marked)
	}
	if spec.Mark = spec.Buffer + 1; spec.Validate() == nil {
		t.Error("marks beyond the buffer")
	}
}
