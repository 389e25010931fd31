// Package playback runs a recorded workload again, on the software GPU behind
// the real link: launches are doorbells and command fetches, copies are DMA,
// synchronisations wait for fences. Delays of the recorded length replace the work
// itself. The result checks the predictor, which models none of this, against a
// system.
//
//	recorded                       on the system
//	call, gap between calls        time on the host
//	launch                         doorbell, then the GPU reads its commands
//	kernel, memset, copy on GPU    DELAY
//	copy to the device             reads of the GPU, at least as long as recorded
//	copy to the host               posted writes of the GPU, likewise
//	wait between streams           semaphore
//	synchronisation                a fence that the GPU writes to host memory
//
// The dependencies are the predictor's reconstruction; the durations are not.
package playback

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/predict"
	"github.com/dxpu-project/dxpu/pcie"
)

// Costs returns the costs of a round trip on the software GPU, for the predictor.
// No term is fitted: each counts packets.
//
// A launch is one posted write (the doorbell: half a round trip) and then one
// read (the GPU fetches the command: a whole one), but the stream is not busy
// meanwhile, so launches made ahead cost nothing. That is the difference to a
// physical GPU as the paper models it, whose kernels each occupy the stream for
// another round trip. The end of work is one posted write, the fence.
func Costs() perf.Costs {
	one, half, launch := perf.Term{Slope: 1}, perf.Term{Slope: 0.5}, perf.Term{Slope: 1.5}
	return perf.Costs{
		Name: "software GPU", Source: "packets: doorbell and command fetch per launch, fence per wait, reads per copy to the device",
		HtoD: one, Launch: launch, GraphLaunch: launch, Sync: half,
	}
}

// Spec describes the system of a replay.
type Spec struct {
	// RTT and NativeRTT are round trips of a PCIe memory read; NativeRTT is the
	// one that the recording was made with. Both are unstretched.
	NativeRTT, RTT time.Duration
	// Requester is what the GPU reads host memory with. Ready raises its tags
	// where the recording needs more.
	Requester perf.Requester
	// Progress receives the finished share of the work, 0 to 1; nil: no one watches.
	Progress func(share float64)
}

// Ready completes a Spec for a plan: as the predictor does, it has no fewer
// bytes in flight than the fastest copy of the recording needed. It says so in
// note, if it had to.
func (s Spec) Ready(p *predict.Plan) (ready Spec, note string, err error) {
	if s.NativeRTT <= 0 || s.RTT < s.NativeRTT || s.RTT > time.Second {
		return s, "", fmt.Errorf("replay: round trips: native %v, disaggregated %v: want 0 < native <= disaggregated <= 1s", s.NativeRTT, s.RTT)
	}
	if err := s.Requester.Validate(); err != nil {
		return s, "", err
	}
	if s.Requester.Tags > pcie.MaxTags {
		return s, "", fmt.Errorf("replay: %d tags: the GPU has up to %d", s.Requester.Tags, pcie.MaxTags)
	}
	need := int(math.Ceil(min(p.FastestCopy()*s.NativeRTT.Seconds(), pcie.MaxTags*pcie.MaxPayload) / float64(s.Requester.MRRS)))
	if need <= s.Requester.Tags {
		return s, "", nil
	}
	note = fmt.Sprintf("%d tags instead of %d: the fastest copy of the trace, %v, needs them at %v",
		min(need, pcie.MaxTags), s.Requester.Tags, perf.BytesPerSecond(p.FastestCopy()), s.NativeRTT)
	if need > pcie.MaxTags {
		note += fmt.Sprintf("; it would even need %d", need)
	}
	s.Requester.Tags = min(need, pcie.MaxTags)
	return s, note, nil
}

// Errors of a replay.
var (
	// ErrStuck means that no event was left before the end of the workload.
	ErrStuck = errors.New("replay: the replay does not go on")
	// ErrCopy means that the recording has a copy that is too large to replay.
	ErrCopy = errors.New("replay: copy too large")
)

// timing holds the times between host and GPU that a player uses.
type timing struct {
	// stretch multiplies every time of the recording.
	stretch int64
	// launch is from a doorbell to the start of a command on the idle GPU, fence
	// from the end of a command until the host sees it, trip the round trip of a
	// read, all native and stretched. Recorded lags contain them.
	launch, fence, trip time.Duration
	// notice is fence over the round trip of this replay.
	notice time.Duration
}

// longest bounds stretched times, so that sums of some do not overflow: 36 years.
const longest = time.Duration(1 << 60)

// spread is a recorded time on the system.
func (t *timing) spread(d time.Duration) time.Duration {
	if d > longest/time.Duration(t.stretch) {
		return longest
	}
	return d * time.Duration(t.stretch)
}

// ended returns the reason to stop a run early, or nil.
func ended(ctx context.Context) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}
