package playback

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/model/predict"
	"github.com/dxpu-project/dxpu/internal/sim"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
)

// patience is how long a replay waits for the GPU in virtual time when nothing
// is due on the host: longer than any kernel.
const patience = 24 * time.Hour

// breath is after how many moments in virtual time a replay looks at ctx.
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
	v, err := newWorld(spec)
	if err != nil {
		return predict.Times{}, err
	}
	// Upwards everything takes the host's own time, downwards nothing: see
	// sim.Spec.RootLatency.
	t := timing{stretch: 1, launch: spec.NativeRTT, fence: spec.NativeRTT, trip: spec.NativeRTT, notice: spec.RTT - (spec.RTT-spec.NativeRTT)/2}
	m := newPlayer(s, t, v, memory{v.world.Memory, sim.MemoryBase}, uint64(spec.Requester.MRRS), false)
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
	world *sim.World
	regs  uint64 // bus address of BAR 0
}

func newWorld(spec Spec) (*world, error) {
	delay := (spec.RTT - spec.NativeRTT) / 2
	w, err := sim.New(sim.Spec{
		GPU:            gpu.Spec{Tags: spec.Requester.Tags, MaxReadRequest: spec.Requester.MRRS, VRAM: vramSize},
		Paths:          []sim.Path{{Delay: delay}},
		RootLatency:    spec.RTT - 2*delay,
		Link:           link.Config{Cipher: link.CipherNone}, // it would cost only processor time, which is none
		Memory:         memorySize,
		MaxReadRequest: spec.Requester.MRRS,
	})
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	f, err := w.Enumerate()
	if err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	bar, ok := f.BAR(reg.BARRegisters)
	if !ok {
		return nil, errors.New("replay: the device has no registers")
	}
	return &world{w, bar.Range.Base}, nil
}

func (v *world) write32(off uint64, value uint32) {
	v.world.Write(v.regs+off, binary.LittleEndian.AppendUint32(nil, value))
}

func (v *world) write64(off, value uint64) {
	v.world.Write(v.regs+off, binary.LittleEndian.AppendUint64(nil, value))
}

func (v *world) load64(off int) uint64 { return binary.LittleEndian.Uint64(v.world.Memory[off:]) }

// warmUp opens the congestion window as far as copies need it.
func (v *world) warmUp(m *player, window int) error {
	r := &m.rings[0]
	r.put(reg.CopyToVRAM(0, 0, r.memory.bus+dataAt, uint64(min(4*window, uploadPiece))))
	r.writeFenceAfterBacklog()
	for r.retired != r.tail {
		if err := v.world.RunUntil(v.world.Now()+patience, m.news); err != nil {
			return fmt.Errorf("replay: warm up: %w", err)
		}
		if err := m.step(v.world.Now()); err != nil {
			return err
		}
	}
	return nil
}

// run lets time pass until the replay is over.
func (v *world) run(ctx context.Context, m *player, progress func(done, total int)) error {
	moments := 0
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
				progress(m.progress())
			}
		}
		if err := m.step(v.world.Now()); err != nil {
			return err
		}
		if m.done() {
			return nil
		}
		due := m.wake()
		err := v.world.RunUntil(min(due, v.world.Now()+patience), pause)
		switch {
		case err == nil:
		case !errors.Is(err, sim.ErrDeadline):
			return fmt.Errorf("replay: %w", err)
		case due == machine.Never:
			return ErrStuck
		}
	}
}
