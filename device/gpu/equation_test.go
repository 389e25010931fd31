package gpu_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/pcie"
)

// upload measures the rate of uploads in bytes per second of virtual time, over
// 8 round trips after 5 for the pipe to fill.
func upload(t *testing.T, r *gpuHost, copyBytes uint64, segments uint32) float64 {
	t.Helper()
	var cmds []reg.Command
	for i := range uint32(ringSize - 2) {
		c := reg.CopyToVRAM(i, uint64(i)*copyBytes%(16<<20), dataAt, copyBytes)
		if segments != 0 {
			c.Arg1 = listsAt
			c = c.WithSegments(segments)
		}
		cmds = append(cmds, c)
		if i%2 == 1 {
			cmds[i] = reg.Fence(i, fencesAt, uint64(i))
		}
	}
	r.submit(0, cmds...)
	r.host.Run(5 * r.host.Latency)
	before := r.read64(reg.CountReadBytes)
	const rounds = 8
	r.host.Run(rounds * r.host.Latency)
	bytes := r.read64(reg.CountReadBytes) - before
	if r.queue32(0, reg.QState) != uint32(reg.QueueBusy) {
		t.Fatalf("the copies ended too early: %v", reg.Error(r.queue32(0, reg.QError)))
	}
	return float64(bytes) / (rounds * r.host.Latency).Seconds()
}

var rtts = []time.Duration{1200 * time.Nanosecond, 4900 * time.Nanosecond, 6800 * time.Nanosecond, 19 * time.Microsecond, 100 * time.Microsecond}

// Equation 1 of the paper: the host-to-device rate is #tags x MRS / RTT.
func TestEquation1(t *testing.T) {
	for _, tags := range []int{16, 32, 64, 140, 256} {
		for _, mrrs := range []pcie.PayloadSize{128, 256, 512, 1024, 2048, 4096} {
			for _, rtt := range rtts {
				if testing.Short() && rtt != rtts[2] {
					continue
				}
				t.Run(fmt.Sprintf("%d tags %d bytes %v", tags, mrrs, rtt), func(t *testing.T) {
					r := newGPUHost(t, gpu.Spec{Tags: tags, MaxReadRequest: mrrs, VRAM: 128 << 20})
					r.host.Latency = rtt
					want := float64(tags) * float64(mrrs) / rtt.Seconds()
					got := upload(t, r, 8<<20, 0)
					if math.Abs(got/want-1) > 0.02 {
						t.Errorf("%.3f GB/s, Equation 1 says %.3f", got/1e9, want/1e9)
					}
				})
			}
		}
	}
}

// The two figures of section 3.4.2: 2.64 GB/s at 6.8 us and 3.66 GB/s at 4.9
// us. Also with short copies and with lists of 4 KiB pages, which a guest uses.
func TestEquation1Paper(t *testing.T) {
	for _, tt := range []struct {
		name     string
		rtt      time.Duration
		bytes    uint64
		segments uint32
		want     float64
	}{
		{"6.8us", 6800 * time.Nanosecond, 8 << 20, 0, 2.64e9},
		{"4.9us", 4900 * time.Nanosecond, 8 << 20, 0, 3.66e9},
		{"short copies", 6800 * time.Nanosecond, 64 << 10, 0, 2.64e9},
		{"very short copies", 6800 * time.Nanosecond, 8 << 10, 0, 2.64e9},
		{"pages", 6800 * time.Nanosecond, 8 << 20, 2048, 2.64e9},
		{"short copies of pages", 6800 * time.Nanosecond, 256 << 10, 64, 2.64e9},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newGPUHost(t, gpu.Spec{MaxReadRequest: 128, VRAM: 128 << 20})
			r.host.Latency = tt.rtt
			r.pages(listsAt, dataAt, 8<<20, 4096, 0)
			got := upload(t, r, tt.bytes, tt.segments)
			t.Logf("%.3f GB/s", got/1e9)
			if math.Abs(got/tt.want-1) > 0.02 {
				t.Errorf("%.3f GB/s, the paper has %.3f", got/1e9, tt.want/1e9)
			}
		})
	}
}

// Downloads are posted: the round-trip time does not matter to them.
func TestDownloadIgnoresRTT(t *testing.T) {
	const rate, n = 12e9, 8 << 20
	for _, rtt := range rtts {
		r := newGPUHost(t, gpu.Spec{VRAM: 16 << 20})
		r.host.Latency, r.host.UpRate = rtt, rate
		r.submit(0, reg.CopyFromVRAM(1, dataAt, 0, n), reg.Fence(2, fencesAt, 1))
		if !r.host.RunUntil(time.Second, func() bool { return r.host64(fencesAt) == 1 }) {
			t.Fatalf("RTT %v: no fence", rtt)
		}
		// The ring entry takes one round trip; the data do not.
		got := float64(n) / (r.host.Now - rtt).Seconds()
		if math.Abs(got/rate-1) > 0.02 {
			t.Errorf("RTT %v: %.3f GB/s of %.0f", rtt, got/1e9, rate/1e9)
		}
	}
}
