package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/fault"
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

// BandwidthSpec describes a measurement.
type BandwidthSpec struct {
	perf.Requester
	// RTT is the whole round trip of a memory read of the GPU: the latency of the
	// host (perf.NativeRTT, or less) and twice the path's delay.
	RTT time.Duration
	// Size of a copy in bytes; 0: DefaultSize. A copy that is no multiple of
	// tags x MRRS ends with a round trip that is not full.
	Size int
	// Cipher of the link.
	Cipher link.Cipher
	// Uplink is the bandwidth of the path for the copy to the host, in bytes
	// per second; 0: DefaultUplink. It is the only bound of posted writes. The
	// copy to the device has a path without limit, so that Equation 1 alone
	// bounds it.
	Uplink float64
	// Link sets windows and timers of both ends; fields of 0 have the defaults of
	// package link. An untimed copy before each measurement opens the congestion
	// window. Delayed acknowledgements (Link.AckDelay) have no effect: the next
	// requests carry them.
	Link link.Config
}

// Bandwidth is the result of a measurement.
type Bandwidth struct {
	HostToDevice perf.BytesPerSecond // by reads of the GPU
	Equation1    perf.BytesPerSecond
	DeviceToHost perf.BytesPerSecond // by posted writes
}

// Deviation returns the deviation of the measurement from Equation 1: 0.01 is one
// per cent faster.
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
func (s BandwidthSpec) Measure(ctx context.Context) (b Bandwidth, err error) {
	if b.HostToDevice, err = s.HostToDevice(ctx); err != nil {
		return b, err
	}
	b.Equation1 = s.ReadThroughput(s.RTT)
	b.DeviceToHost, err = s.DeviceToHost(ctx)
	return b, err
}

// bench is a pair with the round trip that is asked for, and a stream.
type bench struct {
	*Pair
	stream *driver.Stream
	data   uint64 // bus address of host memory for the copy
	stamps driver.DMA
}

// driverMemory is host memory for rings, status pages and time stamps, in bytes.
const driverMemory = 1 << 20

func (s *BandwidthSpec) bench(ctx context.Context, rate float64) (p *bench, err error) {
	root := min(perf.NativeRTT, s.RTT)
	delay := (s.RTT - root) / 2
	cfg := s.Link
	cfg.Cipher = s.Cipher
	w, err := NewPair(PairSpec{
		GPU: gpu.Spec{
			Tags: s.Tags, MaxReadRequest: s.MRRS,
			VRAM: int64(max(s.Size, 64<<10)+64<<10-1) &^ (64<<10 - 1),
		},
		Paths:       []Duplex{{Down: fault.Plan{Delay: delay, Rate: rate}, Up: fault.Plan{Delay: delay, Rate: rate}}},
		RootLatency: s.RTT - 2*delay,
		Link:        cfg,
		Memory:      driverMemory + s.Size,
	})
	if err != nil {
		return nil, err
	}
	dev, err := w.OpenGPU(ctx, driver.Options{})
	if err != nil {
		return nil, err
	}
	p = &bench{Pair: w}
	if p.stream, err = dev.NewStream(); err != nil {
		return nil, err
	}
	if p.stamps, err = dev.AllocDMA(16); err != nil {
		return nil, err
	}
	data, err := dev.AllocDMA(s.Size)
	if err != nil {
		return nil, err
	}
	p.data = data.Segments()[0].Addr // the embedded host's memory is contiguous
	return p, nil
}

// HostToDevice is the first half of Measure. It takes the time by the clock of
// the GPU, between two time stamps in its queue.
func (s BandwidthSpec) HostToDevice(ctx context.Context) (perf.BytesPerSecond, error) {
	s, err := s.complete()
	if err != nil {
		return 0, err
	}
	p, err := s.bench(ctx, 0)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	warm := min(s.Size, 4*int(s.Window()))
	if err := p.stream.Submit(ctx, reg.CopyToVRAM(0, 0, p.data, uint64(warm))); err != nil {
		return 0, err
	}
	if err := p.stream.Sync(ctx); err != nil {
		return 0, err
	}
	at := p.stamps.Segments()[0].Addr
	err = p.stream.Submit(ctx, reg.StampTime(0, at), reg.CopyToVRAM(0, 0, p.data, uint64(s.Size)), reg.StampTime(0, at+8))
	if err != nil {
		return 0, err
	}
	if err := p.stream.Sync(ctx); err != nil {
		return 0, err
	}
	took := time.Duration(p.stamps.Load64(8) - p.stamps.Load64(0))
	return perf.BytesPerSecond(float64(s.Size) / took.Seconds()), nil
}

// DeviceToHost is the other half. It takes the time on the host, where the
// writes arrive: the GPU is done with them when they are on their way. A warm-up
// copy fills the path, so the time between the fences behind the two copies is
// that of the second one.
func (s BandwidthSpec) DeviceToHost(ctx context.Context) (perf.BytesPerSecond, error) {
	s, err := s.complete()
	if err != nil {
		return 0, err
	}
	p, err := s.bench(ctx, s.Uplink)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	warm := min(s.Size, int(s.Uplink*s.RTT.Seconds())+64<<10)
	var fences [2]driver.Fence
	for i, size := range []int{warm, s.Size} {
		if err := p.stream.Submit(ctx, reg.CopyFromVRAM(0, p.data, 0, uint64(size))); err != nil {
			return 0, err
		}
		if fences[i], err = p.stream.Fence(ctx); err != nil {
			return 0, err
		}
	}
	var at [2]time.Duration
	for i, f := range fences {
		if err := p.stream.Wait(ctx, f); err != nil {
			return 0, err
		}
		at[i] = p.Now()
	}
	return perf.BytesPerSecond(float64(s.Size) / (at[1] - at[0]).Seconds()), nil
}
