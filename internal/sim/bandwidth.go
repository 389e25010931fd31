package sim

import (
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/pcie"
)

// Defaults of BandwidthSpec.
const (
	DefaultSize = 16 << 20
	// DefaultUplink is 100 Gb/s in bytes per second: a path of the paper.
	DefaultUplink = 100e9 / 8
)

// MaxSize bounds BandwidthSpec.Size: the simulator holds it three times.
const MaxSize = 1 << 30

// BandwidthSpec says what to measure.
type BandwidthSpec struct {
	perf.Requester
	// RTT is the whole round trip of a memory read of the GPU: what a host
	// takes by itself (perf.NativeRTT, or less) and twice the path's delay.
	RTT time.Duration
	// Size of a copy in bytes; 0: DefaultSize. A copy that is no multiple of
	// tags x MRRS ends with a round trip that is not full.
	Size int
	// Cipher of the link.
	Cipher link.Cipher
	// Uplink is the bandwidth of the path for the copy to the host, in bytes
	// per second; 0: DefaultUplink. Posted writes wait for nothing else, so
	// without it there would be nothing to measure. The copy to the device has
	// a path without limit: Equation 1 alone is to bound it.
	Uplink float64
	// Link sets windows and timers of both ends; the zero value is what the
	// daemons use. Each copy is preceded by an untimed one, which opens the
	// congestion window as far as the copy needs it. Acknowledgements that
	// wait for company (Link.AckDelay) do not matter: the next requests carry them.
	Link link.Config
}

// Bandwidth is what was measured.
type Bandwidth struct {
	HostToDevice perf.BytesPerSecond // by reads of the GPU
	Equation1    perf.BytesPerSecond
	DeviceToHost perf.BytesPerSecond // by posted writes
}

// Deviation is by how much the measurement differs from Equation 1: 0.01 is
// one per cent faster.
func (b Bandwidth) Deviation() float64 { return float64(b.HostToDevice/b.Equation1) - 1 }

// Validate reports the first field out of bounds.
func (s BandwidthSpec) Validate() error {
	if err := s.Requester.Validate(); err != nil {
		return err
	}
	switch {
	case s.Tags > pcie.MaxTags:
		return fmt.Errorf("sim: %d tags: the GPU has up to %d", s.Tags, pcie.MaxTags)
	case s.RTT <= 0 || s.RTT > time.Second:
		return fmt.Errorf("sim: round trip %v: want more than 0 and at most 1s", s.RTT)
	case s.Size < 0 || s.Size > MaxSize:
		return fmt.Errorf("sim: size %d: want 1 to %d bytes", s.Size, MaxSize)
	case s.Uplink < 0:
		return fmt.Errorf("sim: uplink %v: want a rate in bytes per second", s.Uplink)
	}
	return nil
}

func (s BandwidthSpec) complete() (BandwidthSpec, error) {
	if err := s.Validate(); err != nil {
		return s, err
	}
	if s.Size == 0 {
		s.Size = DefaultSize
	}
	if s.Uplink == 0 {
		s.Uplink = DefaultUplink
	}
	return s, nil
}

// Measure copies both ways between host memory and a software GPU over the real
// link code in virtual time.
func (s BandwidthSpec) Measure() (b Bandwidth, err error) {
	if b.HostToDevice, err = s.HostToDevice(); err != nil {
		return b, err
	}
	b.Equation1 = s.ReadThroughput(s.RTT)
	b.DeviceToHost, err = s.DeviceToHost()
	return b, err
}

// world makes a host and a GPU with the round trip that is asked for.
func (s *BandwidthSpec) world(rate float64) (*World, *Driver, error) {
	root := min(perf.NativeRTT, s.RTT)
	delay := (s.RTT - root) / 2
	cfg := s.Link
	cfg.Cipher = s.Cipher
	w, err := New(Spec{
		GPU: gpu.Spec{
			Tags: s.Tags, MaxReadRequest: s.MRRS,
			VRAM: int64(max(s.Size, 64<<10)+64<<10-1) &^ (64<<10 - 1),
		},
		Paths:       []Path{{Delay: delay, Rate: rate}},
		RootLatency: s.RTT - 2*delay,
		Link:        cfg,
		Memory:      DriverSize + s.Size, MaxReadRequest: s.MRRS,
	})
	if err != nil {
		return nil, nil, err
	}
	d, err := w.OpenGPU()
	return w, d, err
}

// HostToDevice is the first half of Measure.
func (s BandwidthSpec) HostToDevice() (perf.BytesPerSecond, error) {
	s, err := s.complete()
	if err != nil {
		return 0, err
	}
	_, d, err := s.world(0)
	if err != nil {
		return 0, err
	}
	warm := min(s.Size, 4*int(s.Window()))
	if err := d.Do(reg.CopyToVRAM(1, 0, MemoryBase+DriverSize, uint64(warm))); err != nil {
		return 0, err
	}
	took, err := d.Time(reg.CopyToVRAM(1, 0, MemoryBase+DriverSize, uint64(s.Size)))
	if err != nil {
		return 0, err
	}
	return perf.BytesPerSecond(float64(s.Size) / took.Seconds()), nil
}

// DeviceToHost is the other half. It measures where the writes arrive: the GPU
// is done with them when they are on their way.
func (s BandwidthSpec) DeviceToHost() (perf.BytesPerSecond, error) {
	s, err := s.complete()
	if err != nil {
		return 0, err
	}
	w, d, err := s.world(s.Uplink)
	if err != nil {
		return 0, err
	}
	warm := min(s.Size, int(s.Uplink*s.RTT.Seconds())+64<<10)
	if err := d.Do(reg.CopyFromVRAM(1, MemoryBase+DriverSize, 0, uint64(warm))); err != nil {
		return 0, err
	}
	w.firstWrite, w.written = -1, 0
	if err := d.Do(reg.CopyFromVRAM(1, MemoryBase+DriverSize, 0, uint64(s.Size))); err != nil {
		return 0, err
	}
	return perf.BytesPerSecond(float64(w.written) / (w.lastWrite - w.firstWrite).Seconds()), nil
}
