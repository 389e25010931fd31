package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/playback"
	"github.com/dxpu-project/dxpu/internal/model/predict"
)

// WorkloadSpec says how a recorded workload is replayed in real time.
type WorkloadSpec struct {
	NativeRTT time.Duration
	RTTs      []time.Duration // not below NativeRTT
	Requester perf.Requester
	// Stretch multiplies all times of the recording and the round trips; 0: so
	// much that the lateness of timers and the loopback interface fit into the
	// native round trip.
	Stretch int
	// Limit is how long the replay for one round trip may take: only the first
	// steps that fit are replayed. 0: no limit.
	Limit time.Duration
	// Steps bounds how many steps are replayed; 0: no bound.
	Steps int
}

// WorkloadRuns are replays in real time. Runs has the native one first; their
// round trips are measured and divided by Stretch.
type WorkloadRuns struct {
	Plan    *predict.Plan // of what was replayed
	Runs    []playback.Run
	Stretch int
	// Loopback is the round trip of a register read with no delay added.
	Loopback time.Duration
}

// Sizes of TLPs to and from the GPU of a workload: those of a V100.
const workloadMPS = 256

// The stretched native round trip is at least so long: room times the loopback
// interface's, as a machine may get slower meanwhile, and several times what
// timers are late.
const (
	room      = 1.5
	leastTrip = 300 * time.Microsecond
)

// Workload replays the workload of a plan behind both proxies in real time, at
// the native round trip and at others. The proxies delay what they send; all run
// in this process, whatever o.Child says, so that its timers can be kept exact.
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
		return nil, fmt.Errorf("bench: the loopback interface takes %v, the native round trip of %v stretched %d times %v: want a stretch above that and up to %d",
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
				Progress: func(done, total int) { o.Progress("%v: %d %% of the workload", rtt, 100*done/max(total, 1)) },
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

// tripReads is how many register reads a round trip is measured with.
const tripReads = 100

// onTrip makes a pair whose round trip of a register read is about want, 0 for
// the least, and calls use with its device and the measured round trip. Timers
// are late, so the delay is corrected by what was measured.
func (o Options) onTrip(ctx context.Context, q perf.Requester, want time.Duration, use func(dev *opened, trip time.Duration) error) error {
	const near, attempts = 0.03, 4
	delay := time.Duration(0)
	for attempt := 1; ; attempt++ {
		o.Fault.Delay = delay
		p, dev, err := o.ready(ctx, pairSpec{slots: 1, sizes: sizes{workloadMPS, int(q.MRRS)}, tags: q.Tags})
		if err != nil {
			return err
		}
		trip := min(playback.MeasureTrip(dev.Device, tripReads), playback.MeasureTrip(dev.Device, tripReads)) // one may be disturbed
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
