package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/playback"
	"github.com/dxpu-project/dxpu/internal/model/predict"
)

// WorkloadSpec describes the replay of a recorded workload in real time.
type WorkloadSpec struct {
	NativeRTT time.Duration
	RTTs      []time.Duration // not below NativeRTT
	Requester perf.Requester
	// Stretch multiplies all times of the recording and the round trips; 0: the
	// smallest factor with which the delays of timers and of the loopback interface
	// fit into the native round trip.
	Stretch int
	// Limit is the limit of the time of the replay for one round trip: only the first
	// steps that fit are replayed. 0: no limit.
	Limit time.Duration
	// Steps is the largest number of replayed steps; 0: no limit.
	Steps int
}

// WorkloadRuns are replays in real time. Runs begins with the native one; its round
// trips are measured values divided by Stretch.
type WorkloadRuns struct {
	Plan    *predict.Plan // of the replayed steps
	Runs    []playback.Run
	Stretch int
	// Loopback is the round trip of a register read with no delay added.
	Loopback time.Duration
}

// Sizes of TLPs to and from the GPU of a workload: those of a V100.
const workloadMPS = 256

// Limits of the stretched native round trip: room times the round trip of the
// loopback interface, as the machine may become slower during the run, and several
// times the delay of timers.
const (
	room      = 1.5
	leastTrip = 300 * time.Microsecond
)

// Workload replays the workload of a plan behind both proxies in real time, at the
// native round trip and at others. The proxies delay their datagrams. All run in
// this process, regardless of o.Child, because keepAwake makes its timers exact.
func Workload(ctx context.Context, o Options, p *predict.Plan, spec WorkloadSpec) (out *WorkloadRuns, err error) {
	o = o.withDefaults()
	o.Child = nil
	defer keepAwake()()
	out = &WorkloadRuns{Stretch: spec.Stretch}
	o.Progress("measuring the loopback interface")
	if err := o.onTrip(ctx, spec.Requester, 0, func(_ *opened, trip time.Duration) error {
		out.Loopback = trip
		return nil
	}); err != nil {
		return nil, err
	}
	if out.Stretch == 0 {
		out.Stretch = int(max(room*float64(out.Loopback), float64(leastTrip))/float64(spec.NativeRTT)) + 1
	}
	if native := spec.NativeRTT * time.Duration(out.Stretch); out.Stretch > playback.MaxStretch || native <= out.Loopback {
		return nil, fmt.Errorf("bench: a round trip of the loopback interface takes %v, the native one of %v stretched %d times %v: the stretch must make it longer, and is at most %d",
			out.Loopback, spec.NativeRTT, out.Stretch, native, playback.MaxStretch)
	}
	out.Plan = predict.NewPlan(playback.Cut(p.Workload(), spec.Steps, spec.Limit/time.Duration(out.Stretch)))
	var native time.Duration
	for _, rtt := range append([]time.Duration{spec.NativeRTT}, spec.RTTs...) {
		want := rtt * time.Duration(out.Stretch)
		err := o.onTrip(ctx, spec.Requester, want, func(dev *opened, trip time.Duration) error {
			if native == 0 {
				native = trip
			}
			times, err := playback.Real(ctx, out.Plan, dev.bus, dev.Device, playback.RealSpec{
				Stretch: out.Stretch, NativeTrip: native, Trip: trip,
				Progress: func(share float64) { o.Progress("%v: %.0f %% of the workload", rtt, 100*share) },
			})
			out.Runs = append(out.Runs, playback.Run{RTT: trip / time.Duration(out.Stretch), Times: times})
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// tripReads is the number of register reads of one measurement of a round trip.
const tripReads = 100

// onTrip makes a pair with a round trip of a register read of about want, 0 for the
// shortest, and calls use with its device and the measured round trip. It corrects
// the delay by measurements, because timers are late.
func (o Options) onTrip(ctx context.Context, q perf.Requester, want time.Duration, use func(dev *opened, trip time.Duration) error) error {
	const near, attempts = 0.03, 4
	delay := time.Duration(0)
	for attempt := 1; ; attempt++ {
		o.Fault.Delay = delay
		p, dev, err := o.ready(ctx, pairSpec{slots: 1, gpu: gpu.Spec{MaxPayload: workloadMPS, MaxReadRequest: q.MRRS, Tags: q.Tags}})
		if err != nil {
			return err
		}
		trip := min(playback.MeasureTrip(dev.Device, tripReads), playback.MeasureTrip(dev.Device, tripReads)) // another process may disturb one
		off := want - trip
		if want == 0 || attempt == attempts || max(off, -off) < time.Duration(near*float64(want)) {
			err = use(dev, trip)
			return errors.Join(err, dev.close(), p.close())
		}
		delay = max(delay+off/2, 0)
		if err := errors.Join(dev.close(), p.close()); err != nil {
			return err
		}
	}
}
