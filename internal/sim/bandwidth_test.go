package sim_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/sim"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/pcie"
)

const us = time.Microsecond

// tolerance is how far the measurement may be from Equation 1.
const tolerance = 0.02

func measured(t *testing.T, measure func(context.Context) (perf.BytesPerSecond, error)) perf.BytesPerSecond {
	t.Helper()
	r, err := measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// A copy to the device runs at #tags x MRRS / RTT (paper, Equation 1), through
// the link with the settings of the daemons, encrypted and clear.
func TestEquation1(t *testing.T) {
	tags := []int{16, 64, 140, 256}
	sizes := []pcie.PayloadSize{128, 256, 512, 1024, 2048, 4096}
	rtts := []time.Duration{1200, 4900, 6800, 20 * us, 100 * us}
	if raceEnabled {
		tags, sizes, rtts = []int{16, 256}, []pcie.PayloadSize{128, 4096}, []time.Duration{1200, 100 * us}
	}
	for _, cipher := range []link.Cipher{link.CipherNone, link.CipherAES256GCM} {
		for _, n := range tags {
			t.Run(fmt.Sprintf("%v, %d tags", cipher, n), func(t *testing.T) {
				t.Parallel()
				for _, mrrs := range sizes {
					for _, rtt := range rtts {
						size := 6 * n * int(mrrs) // full round trips
						spec := sim.BandwidthSpec{
							Requester: perf.Requester{Tags: n, MRRS: mrrs}, RTT: rtt, Cipher: cipher, Size: size,
						}
						b := sim.Bandwidth{HostToDevice: measured(t, spec.HostToDevice), Equation1: spec.ReadThroughput(rtt)}
						if d := b.Deviation(); math.Abs(d) > tolerance {
							t.Errorf("MRRS %d, RTT %v: %v, Equation 1 says %v: %+.1f %%", mrrs, rtt, b.HostToDevice, b.Equation1, 100*d)
						}
					}
				}
			})
		}
	}
}

// The figures of the paper (section 3.4.3): 140 tags of 128 bytes.
func TestPaperPoints(t *testing.T) {
	for _, c := range []struct {
		rtt  time.Duration
		want perf.BytesPerSecond
	}{{6800, perf.GBps(2.64)}, {4900, perf.GBps(3.66)}} {
		for _, cipher := range []link.Cipher{link.CipherNone, link.CipherAES256GCM} {
			t.Run(fmt.Sprintf("%v, %v", c.rtt, cipher), func(t *testing.T) {
				t.Parallel()
				spec := sim.BandwidthSpec{Requester: perf.V100, RTT: c.rtt, Cipher: cipher, Size: 1 << 20}
				got := measured(t, spec.HostToDevice)
				if off := math.Abs(float64(got/c.want) - 1); off > tolerance {
					t.Errorf("%v, want %v", got, c.want)
				}
			})
		}
	}
}

// Copies to the host are posted writes: the round trip does not matter.
func TestDeviceToHostIgnoresRTT(t *testing.T) {
	least, most := perf.BytesPerSecond(math.Inf(1)), perf.BytesPerSecond(0)
	for _, rtt := range []time.Duration{1200, 6800, 20 * us, 100 * us} {
		spec := sim.BandwidthSpec{Requester: perf.V100, RTT: rtt, Size: 8 << 20, Cipher: link.CipherAES256GCM}
		got := measured(t, spec.DeviceToHost)
		least, most = min(least, got), max(most, got)
	}
	if most > 1.01*least {
		t.Errorf("%v to %v as the round trip changes", least, most)
	}
	if least < 0.75*sim.DefaultUplink || most > sim.DefaultUplink {
		t.Errorf("%v to %v over a path of %v", least, most, perf.BytesPerSecond(sim.DefaultUplink))
	}
}

// Acknowledgements that wait for company and the congestion window are not what
// bounds a copy: other settings give the same.
func TestBandwidthIsNotTheWindows(t *testing.T) {
	spec := sim.BandwidthSpec{Requester: perf.Requester{Tags: 256, MRRS: 512}, RTT: 20 * us, Size: 6 * 256 * 512}
	want := measured(t, spec.HostToDevice)
	for name, cfg := range map[string]link.Config{
		"fixed window":                  {FixedCwnd: 32 << 20, Window: 32 << 20},
		"acknowledgements at once":      {AckDelay: 1},
		"acknowledgements in 2 ms":      {AckDelay: 2 * time.Millisecond},
		"small initial window, warm-up": {InitialCwnd: 64 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			spec := spec
			spec.Link = cfg
			if got := measured(t, spec.HostToDevice); math.Abs(float64(got/want)-1) > tolerance {
				t.Errorf("%v, with the default %v", got, want)
			}
		})
	}
}

func TestBandwidthSpecRefuses(t *testing.T) {
	good := sim.BandwidthSpec{Requester: perf.V100, RTT: 6800}
	for _, c := range []struct {
		name, want string
		change     func(*sim.BandwidthSpec)
	}{
		{"no tags", "tags", func(s *sim.BandwidthSpec) { s.Tags = 0 }},
		{"more tags than the GPU has", "1024", func(s *sim.BandwidthSpec) { s.Tags = 1025 }},
		{"MRRS", "128, 256", func(s *sim.BandwidthSpec) { s.MRRS = 100 }},
		{"no round trip", "round trip", func(s *sim.BandwidthSpec) { s.RTT = 0 }},
		{"round trip of years", "round trip", func(s *sim.BandwidthSpec) { s.RTT = math.MaxInt64 }},
		{"negative size", "size", func(s *sim.BandwidthSpec) { s.Size = -4096 }},
		{"large size", "size", func(s *sim.BandwidthSpec) { s.Size = 2 << 30 }},
		{"negative uplink", "uplink", func(s *sim.BandwidthSpec) { s.Uplink = -1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := good
			c.change(&s)
			if _, err := s.Measure(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}
