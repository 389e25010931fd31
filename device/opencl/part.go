package opencl

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"strconv"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
	"github.com/dxpu-project/dxpu/share"
)

// Divided is an OpenCL device that several GPUs have together.
type Divided struct {
	GPUs   []*Device
	Device share.Device // describes it to the policies
}

// MemoryStep is the granularity of the memory of a part, in bytes.
const MemoryStep = 1

// noMemory is the memory of a part whose owner has not said yet how large it is.
const noMemory = MemoryStep

// threadsPerUnit is the number of work-items that a compute unit counts for. OpenCL does not
// tell it; GPUs have about this many.
const threadsPerUnit = 2048

// limits are what a process may use of its device.
type limits struct {
	memory uint64 // bytes
	most   uint64 // highest memory, while the process lives
	turns  bool   // its kernels take turns with those of others
}

// args returns the arguments of the process for a device.
func (l limits) args(index int) []string {
	out := []string{"--serve", strconv.Itoa(index), "--memory", strconv.FormatUint(l.memory, 10)}
	if l.turns {
		return append(out, "--most", strconv.FormatUint(l.most, 10), "--turns")
	}
	return append(out, "--moves")
}

// Divide makes several GPUs of the device that spec names, whose kernels take turns. Sizes
// returns the memory of each in bytes, given that of the device. A GPU of size 0 has no memory
// until SetMemory.
func Divide(ctx context.Context, program string, spec Spec, sizes func(memory uint64) ([]uint64, error), log *slog.Logger) (*Divided, error) {
	f, err := find(ctx, program, spec)
	if err != nil {
		return nil, err
	}
	memory, err := sizes(f.Memory)
	if err != nil {
		return nil, err
	}
	d := &Divided{Device: share.Device{
		SMs: int32(min(max(f.Units, 1), 4096)), ThreadsPerSM: threadsPerUnit, Memory: int64(f.Memory),
	}}
	for i, n := range memory {
		part := spec
		part.Serial = serialOf(spec.Serial, i)
		limits := limits{memory: max(n, noMemory), most: f.Memory, turns: true}
		named := f
		if n != 0 {
			named.Name, limits.most = partName(f.Name, n, f.Memory), n
		}
		one, err := newDevice(program, named, part, limits, log.With("part", i+1))
		if err != nil {
			return nil, errors.Join(err, d.close())
		}
		d.GPUs = append(d.GPUs, one)
	}
	return d, nil
}

// close releases the memory of devices that did not run.
func (d *Divided) close() (err error) {
	for _, g := range d.GPUs {
		err = errors.Join(err, g.engine.close())
	}
	return err
}

// serialOf makes the serial number of a part.
func serialOf(serial uint64, part int) uint64 {
	h := fnv.New64a()
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, serial))
	_, _ = h.Write([]byte{byte(part)})
	return h.Sum64()
}

// partName is the model of a part, in percent of the device's memory: parts of one size are
// of one model.
func partName(name string, memory, all uint64) string {
	if memory == all {
		return name
	}
	suffix := fmt.Sprintf(" %.0f%%", 100*float64(memory)/float64(max(all, 1)))
	name = modelName(name)
	return name[:min(len(name), reg.ModelSize-1-len(suffix))] + suffix
}

// SetMemory changes the memory of a part, in bytes: at any time to more, and to less only after
// Scrub.
func (d *Device) SetMemory(n int64) error {
	if n < MemoryStep || uint64(n) > d.found.Memory {
		return fmt.Errorf("memory of %d bytes: want %d to %d", n, MemoryStep, d.found.Memory)
	}
	d.engine.setMemory(uint64(n))
	return nil
}

// setMemory changes the limit, and tells the process. A part without memory has none.
func (e *engine) setMemory(n uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.limits.memory == n {
		return
	}
	e.limits.memory = n
	switch p := e.process; {
	case n <= noMemory:
		e.dropSpare()
	case p == nil:
		e.wantSpare = !e.cold
		e.poke()
	default:
		p.tell(wire.Message{Type: wire.Granted, Bytes: n})
	}
}

// NextJob implements device.Device: the turn of a kernel, or a computation of the GPU
// itself. The dispatcher of a part takes one at a time.
func (d *Device) NextJob() (device.Job, bool) {
	if !d.engine.limits.turns {
		return d.GPU.NextJob()
	}
	if d.out {
		return nil, false
	}
	if t, ok := d.engine.nextTurn(); ok {
		d.out = true
		return t, true
	}
	job, ok := d.GPU.NextJob()
	d.out = ok
	return job, ok
}

// FinishJob implements device.Device.
func (d *Device) FinishJob(now time.Duration, job device.Job) {
	d.out = false
	if _, ok := job.(*turn); !ok {
		d.GPU.FinishJob(now, job)
	}
}
