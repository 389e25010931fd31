package playback

import (
	"context"
	"fmt"
	"time"

	device "github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/model/predict"
	"github.com/dxpu-project/dxpu/internal/sim"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
)

// patience is how long a replay waits for the GPU in virtual time when nothing
// is due on the host: longer than any kernel.
const patience = 24 * time.Hour

// breath is the number of events after which a replay checks ctx.
const breath = 1 << 14

// Virtual replays the plan's workload in virtual time: the link, the root
// complex and the GPU that the daemons run, over a path whose delay makes the
// round trip of a memory read spec.RTT; NativeRTT of it is the host's own. Equal
// input gives equal times.
func Virtual(ctx context.Context, p *predict.Plan, spec Spec) (predict.Times, error) {
	spec, _, err := spec.Ready(p)
	if err != nil {
		return predict.Times{}, err
	}
	s, err := newScript(p)
	if err != nil {
		return predict.Times{}, err
	}
	v, err := newWorld(ctx, spec)
	if err != nil {
		return predict.Times{}, err
	}
	// TLPs of the GPU take the host's own time, those of the host none: see
	// sim.PairSpec.RootLatency.
	t := timing{stretch: 1, launch: spec.NativeRTT, fence: spec.NativeRTT, trip: spec.NativeRTT, notice: spec.RTT - (spec.RTT-spec.NativeRTT)/2}
	m := newPlayer(s, t, v.gpu, uint64(spec.Requester.MRRS))
	defer v.world.Close()
	if err := v.warmUp(m, int(spec.Requester.Window())); err != nil {
		return predict.Times{}, err
	}
	m.start(v.world.Now())
	if err := v.run(ctx, m, spec.Progress); err != nil {
		return predict.Times{}, err
	}
	return m.result(), nil
}

// world is a simulated host with a GPU.
type world struct {
	world *sim.Pair
	gpu   *gpu
}

// hostMemory is the host memory of a replay in bytes: rings with their status
// pages, and the data of copies.
const hostMemory = queues*(ringEntries*reg.CommandSize+4096) + uploadPiece

func newWorld(ctx context.Context, spec Spec) (*world, error) {
	delay := (spec.RTT - spec.NativeRTT) / 2
	w, err := sim.NewPair(sim.PairSpec{
		GPU:         device.Spec{Tags: spec.Requester.Tags, MaxReadRequest: spec.Requester.MRRS, VRAM: vramSize},
		Paths:       []sim.Duplex{sim.Delayed(delay)},
		RootLatency: spec.RTT - 2*delay,
		Link:        link.Config{Cipher: link.CipherNone}, // a cipher costs processor time only, which the simulation does not count
		Memory:      hostMemory,
	})
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	dev, err := w.OpenGPU(ctx, driver.Options{Polling: true})
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	g, err := openGPU(dev)
	return &world{w, g}, err
}

// warmUp opens the congestion window as far as copies need it.
func (v *world) warmUp(m *player, window int) error {
	r := &m.rings[0]
	r.put(reg.CopyToVRAM(0, 0, m.data, uint64(min(4*window, uploadPiece))))
	r.putFence(none)
	for r.flush(); !r.idle(); {
		if !v.world.RunUntil(v.world.Now()+patience, m.news) {
			return ErrStuck
		}
		if err := m.step(v.world.Now()); err != nil {
			return err
		}
	}
	return nil
}

// moved returns how many bytes the device has read and written.
func (v *world) moved() uint64 {
	c := v.world.Counters()
	return c.ReadBytes + c.WriteBytes
}

// run lets time pass until the replay is over.
func (v *world) run(ctx context.Context, m *player, progress func(share float64)) error {
	moments := 0
	before, bytes := v.moved(), uint64(Traffic(m.w))
	pause := func() bool {
		moments++
		return m.news() || moments%breath == 0
	}
	for steps := 0; ; steps++ {
		if moments >= breath || steps%breath == 0 {
			moments = 0
			if err := ended(ctx); err != nil {
				return err
			}
			if progress != nil {
				progress(m.share(v.moved()-before, bytes))
			}
		}
		if err := m.step(v.world.Now()); err != nil {
			return err
		}
		if m.done() {
			return nil
		}
		due := m.wake()
		if !v.world.RunUntil(min(due, v.world.Now()+patience), pause) && due == machine.Never {
			return ErrStuck
		}
	}
}
