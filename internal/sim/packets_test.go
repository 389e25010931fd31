package sim_test

import (
	"syscall"
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

// BenchmarkSameCopies simulates the same copies of eight GPUs over a link of 100 Gb/s with
// the engines, and packet by packet. cpu-ms/op is processor time, the collector's included.
func BenchmarkSameCopies(b *testing.B) {
	const length = 5 * time.Millisecond
	engines := sim.SharedSpec{Requester: perf.V100, GPUs: 8, Hosts: 1, RTT: 6800, HostLink: 50e9, BoxLink: 12.5e9, Chunk: 40 * 140 * 128, Time: length}
	packets := network.Spec{
		Requester: perf.V100, MPS: 128, TLPs: 10, Header: 40, GPUs: 8, Hosts: 1, Boxes: 1, Racks: 1, Paths: 1,
		Wire: engines.RTT, HostLink: engines.HostLink, BoxLink: engines.BoxLink, In: engines.Chunk, Time: length, Seed: 1,
	}
	for _, mode := range []struct {
		name    string
		measure func() error
	}{
		{"engines", func() error { _, err := engines.Measure(b.Context()); return err }},
		{"packets", func() error { _, err := packets.Measure(b.Context()); return err }},
	} {
		b.Run(mode.name, func(b *testing.B) {
			before := processorTime(b)
			for b.Loop() {
				if err := mode.measure(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((processorTime(b)-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}

// processorTime returns the processor time that the process has taken.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
