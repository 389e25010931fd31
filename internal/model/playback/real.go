package playback

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/model/predict"
	"github.com/dxpu-project/dxpu/internal/quantile"
)

// MaxStretch bounds RealSpec.Stretch: a microsecond becomes 10 ms.
const MaxStretch = 10_000

// RealSpec says how a workload is replayed in real time.
type RealSpec struct {
	// Stretch multiplies every time of the recording, so that the timers and the
	// network of a computer can follow; the round trips are those of the
	// stretched system. 1 to MaxStretch.
	Stretch int
	// NativeTrip and Trip are measured round trips of a register read: of what
	// stands for the native system, and of this one.
	NativeTrip, Trip time.Duration
	// Request is what the GPU reads at a time, in bytes; 0: what the device says.
	Request int
	// Progress receives the finished share of the work, 0 to 1; nil: no one watches.
	Progress func(share float64)
}

// MeasureTrip returns the median round trip of n register reads.
func MeasureTrip(dev *driver.Device, n int) time.Duration {
	took := make([]time.Duration, max(n, 1))
	for i := range took {
		start := time.Now()
		dev.Registers().Read32(reg.Scratch)
		took[i] = time.Since(start)
	}
	return quantile.Of(took, 0.5)
}

// Real replays the plan's workload on a device in real time. The device was
// opened on the bus, with interrupts, and none of its queues is in use.
func Real(ctx context.Context, p *predict.Plan, bus driver.Bus, dev *driver.Device, spec RealSpec) (times predict.Times, err error) {
	info := dev.Info()
	if spec.Request == 0 {
		spec.Request = info.ReadSize
	}
	switch {
	case spec.Stretch < 1 || spec.Stretch > MaxStretch:
		return times, fmt.Errorf("replay: stretch %d: want 1 to %d", spec.Stretch, MaxStretch)
	case spec.NativeTrip <= 0 || spec.Trip <= 0:
		return times, fmt.Errorf("replay: round trips %v and %v: want measured ones", spec.NativeTrip, spec.Trip)
	case info.Vectors < queues:
		return times, fmt.Errorf("replay: the device has %d interrupt vectors: want %d", info.Vectors, queues)
	}
	s, err := newScript(p)
	if err != nil {
		return times, err
	}
	g, err := openGPU(dev)
	if err != nil {
		return times, err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	m := newPlayer(s, timing{
		stretch: int64(spec.Stretch), launch: spec.NativeTrip * 3 / 2, fence: spec.NativeTrip / 2, trip: spec.NativeTrip,
		notice: spec.Trip / 2,
	}, g, uint64(spec.Request))
	if err := runReal(ctx, m, bus, spec.Progress); err != nil {
		return times, err
	}
	return m.result(), nil
}

// tick is the longest time between looks at the device, which could be lost.
const tick = 100 * time.Millisecond

// runReal runs the player in real time: timers and interrupts wake it.
func runReal(ctx context.Context, m *player, bus driver.Bus, progress func(share float64)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var waiters sync.WaitGroup
	defer waiters.Wait()
	defer cancel(nil)
	kick := make(chan struct{}, 1)
	for q := range queues {
		if len(m.order[q]) == 0 {
			continue
		}
		waiters.Go(func() {
			if err := forward(ctx, bus, q, kick); err != nil {
				cancel(err)
			}
		})
	}
	span := float64(m.w.Span())
	start := time.Now()
	m.start(1) // the player's 0 is before everything
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if err := m.step(time.Since(start)); err != nil {
			return err
		}
		if m.done() {
			return nil
		}
		if progress != nil {
			progress(float64(m.reached) / span)
		}
		timer.Reset(min(max(m.wake()-time.Since(start), 0), tick))
		select {
		case <-kick:
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// forward passes the interrupts of a queue on until ctx ends.
func forward(ctx context.Context, bus driver.Bus, q int, kick chan<- struct{}) error {
	for {
		if _, err := bus.WaitInterrupt(ctx, q, time.Hour); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("replay: queue %d: %w", q, err)
		}
		select {
		case kick <- struct{}{}:
		default:
		}
	}
}
