package playback

import (
	"errors"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// ringEntries is the length of the GPU's rings.
const ringEntries = 4096

// flowFence is the number of commands after which a ring gets a fence of its
// own, so that the host learns of free entries where the workload has no fences.
const flowFence = 256

// submitter is a command queue of the GPU: a driver.Stream.
type submitter interface {
	Room() int
	TryPut(c reg.Command) bool
	TryFence() (driver.Fence, bool)
	Ring()
	Reached() driver.Fence
	Err() error
}

var _ submitter = (*driver.Stream)(nil)

// ring is a command queue without a limit: commands that the GPU has no room for
// wait in the backlog.
type ring struct {
	stream   submitter
	reached  driver.Fence // newest fence that poll has seen
	unfenced int          // commands put since the newest fence

	backlog []entry
	fences  []fence // submitted, not reached
}

// entry is a command that waits for room: a fence, if fence is set.
type entry struct {
	command reg.Command
	fence   bool
	op      int32 // that the fence completes, or none
}

// fence says which operation is complete when the GPU reaches a fence.
type fence struct {
	value driver.Fence
	op    int32 // none: the fence is for flow control
}

func (r *ring) put(c reg.Command) { r.backlog = append(r.backlog, entry{command: c, op: none}) }

func (r *ring) putFence(op int32) { r.backlog = append(r.backlog, entry{fence: true, op: op}) }

// delay holds the queue.
func (r *ring) delay(d time.Duration) {
	for ; d > 0; d -= reg.MaxDelay {
		r.put(reg.Delay(0, uint64(min(d, reg.MaxDelay))))
	}
}

// delaySince holds the queue until d after the start of the command put last.
func (r *ring) delaySince(d time.Duration) {
	if d <= 0 {
		return
	}
	r.put(reg.DelaySinceStart(0, uint64(min(d, reg.MaxDelay))))
	r.delay(d - reg.MaxDelay)
}

// flush moves commands to the GPU's ring while there is room and tells the GPU.
func (r *ring) flush() {
	if len(r.backlog) == 0 {
		return
	}
	n := 0
	for room := r.stream.Room(); n < len(r.backlog) && room >= 2; n++ {
		e := &r.backlog[n]
		// A fence must not come between a command and a delay that counts from it.
		since := e.command.Op == reg.OpDelay && e.command.Flags&reg.DelaySince != 0
		if r.unfenced >= flowFence && !since {
			r.writeFence(none)
			room--
		}
		if e.fence {
			r.writeFence(e.op)
		} else {
			r.stream.TryPut(e.command)
			r.unfenced++
		}
		room--
	}
	r.backlog = append(r.backlog[:0], r.backlog[n:]...)
	r.stream.Ring()
}

func (r *ring) writeFence(op int32) {
	value, _ := r.stream.TryFence() // flush has checked that there is room
	r.fences = append(r.fences, fence{value, op})
	r.unfenced = 0
}

// idle reports whether the GPU has reached the end of the ring.
func (r *ring) idle() bool { return len(r.fences) == 0 && r.unfenced == 0 }

// news reports whether the GPU has reached a fence that poll has not seen.
func (r *ring) news() bool { return len(r.fences) > 0 && r.stream.Reached() != r.reached }

// poll looks for the newest fence and calls seen for the operations that are
// complete by it.
func (r *ring) poll(seen func(op int32)) error {
	r.reached = r.stream.Reached()
	n := 0
	for ; n < len(r.fences) && r.fences[n].value <= r.reached; n++ {
		if op := r.fences[n].op; op != none {
			seen(op)
		}
	}
	r.fences = append(r.fences[:0], r.fences[n:]...)
	if err := r.stream.Err(); err != nil {
		return fmt.Errorf("replay: %w", err)
	}
	return nil
}

// gpu is a device that is used for one replay: its queues and the host memory
// that copies use.
type gpu struct {
	streams [queues]*driver.Stream
	data    driver.DMA // uploadPiece bytes, contiguous for the device
}

// openGPU takes queues and memory of a device.
func openGPU(dev *driver.Device) (g *gpu, err error) {
	if info := dev.Info(); info.Queues < queues || info.VRAMSize < vramSize {
		return nil, fmt.Errorf("replay: the device has %d queues and %d bytes of memory: want %d and %d",
			info.Queues, info.VRAMSize, queues, vramSize)
	}
	g = &gpu{}
	if g.data, err = dev.AllocDMA(uploadPiece); err != nil {
		return nil, fmt.Errorf("replay: %w", err)
	}
	if len(g.data.Segments()) != 1 {
		return nil, errors.Join(errors.New("replay: the memory of this bus is not contiguous"), g.close())
	}
	for q := range g.streams {
		if g.streams[q], err = dev.NewStreamSize(ringEntries); err != nil {
			return nil, errors.Join(fmt.Errorf("replay: %w", err), g.close())
		}
	}
	return g, nil
}

// close stops the queues and gives the memory back.
func (g *gpu) close() error {
	var errs []error
	for _, s := range g.streams {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	return errors.Join(append(errs, g.data.Free())...)
}
