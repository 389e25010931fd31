package sim

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// delayed is a GPU whose TLPs leave later by a latency: the time that they take
// from the host's proxy to host memory.
type delayed struct {
	*gpu.GPU
	latency time.Duration
	queue   machine.Queue[*tlp.Packet]
	head    *tlp.Packet // the first one, if the link has refused it
}

// Transmit implements device.Device.
func (d *delayed) Transmit(now time.Duration, emit func(*tlp.Packet) bool) {
	if d.latency == 0 {
		d.GPU.Transmit(now, emit)
		return
	}
	d.GPU.Transmit(now, func(p *tlp.Packet) bool {
		late := *p
		late.Data, late.Prefix = slices.Clone(p.Data), slices.Clone(p.Prefix)
		d.queue.Push(now+d.latency, &late)
		return true
	})
	for {
		if d.head == nil {
			d.head, _ = d.queue.Pop(now)
		}
		if d.head == nil || !emit(d.head) {
			return
		}
		d.head = nil
	}
}

// Wake implements device.Device.
func (d *delayed) Wake() time.Duration {
	if d.head != nil {
		return d.GPU.Wake() // the link asks for the queue when it has room
	}
	return min(d.GPU.Wake(), d.queue.Wake())
}

// Reset implements device.Device.
func (d *delayed) Reset(now time.Duration, kind device.ResetKind) {
	d.head, d.queue = nil, machine.Queue[*tlp.Packet]{}
	d.GPU.Reset(now, kind)
}
