package sim_test

import (
	"math"
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

// Hosts that write at once to one host-bound port lose datagrams in a small buffer, and
// the links still deliver all copies.
func TestSharedBuffer(t *testing.T) {
	spec := sim.SharedSpec{
		Requester: perf.V100, GPUs: 4, Hosts: 4, RTT: 6800, HostLink: 25e9, BoxLink: 5e9, Buffer: 64 << 10, Chunk: 12 * 140 * 128, Time: 300 * us,
	}
	r, err := spec.Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%v in all, dropped %d", r.Total, r.Dropped)
	if float64(r.Total) < 0.3*spec.BoxLink || float64(r.Total) > spec.BoxLink {
		t.Errorf("%v over a link of %v", r.Total, perf.BytesPerSecond(spec.BoxLink))
	}
}
