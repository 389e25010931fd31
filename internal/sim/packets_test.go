package sim_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/network"
	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/sim"
)

// The model that follows packets alone agrees with the engines: where tags bound the GPUs,
// where the link of the box does, and where hosts share the box.
func TestPacketsAgreeWithEngines(t *testing.T) {
	for _, tc := range []struct {
		name        string
		gpus, hosts int
		boxLink     float64
		toHost      bool
		windows     int // of a copy; long ones of several GPUs would outlast the measurement
	}{
		{"tags", 2, 1, 1e12, false, 100}, {"link", 8, 1, 12.5e9, false, 40}, {"hosts", 8, 4, 12.5e9, false, 40}, {"posted", 4, 2, 12.5e9, true, 12},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := sim.SharedSpec{
				Requester: perf.V100, GPUs: tc.gpus, Hosts: tc.hosts, RTT: 6800, HostLink: 50e9, BoxLink: tc.boxLink,
				Chunk: tc.windows * 140 * 128, Time: 500 * us, ToHost: tc.toHost,
			}
			engines, err := s.Measure(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			p := network.Spec{
				Requester: s.Requester, MPS: 128, TLPs: 10, Header: 40, GPUs: s.GPUs, Hosts: s.Hosts, Boxes: 1, Racks: 1, Paths: 1,
				Wire: s.RTT, HostLink: s.HostLink, BoxLink: s.BoxLink, In: s.Chunk, Time: time.Millisecond, Seed: 1,
			}
			if tc.toHost {
				p.In, p.Out = 0, s.Chunk
			}
			packets, err := p.Measure(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			total := packets.Total.In + packets.Total.Out
			t.Logf("engines %v, packets %v", engines.Total, total)
			if off := float64(total/engines.Total) - 1; off < -0.05 || off > 0.05 {
				t.Errorf("packets %v, engines %v: %+.1f %%", total, engines.Total, 100*off)
			}
		})
	}
}
