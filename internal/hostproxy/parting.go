package hostproxy

import (
	"context"
	"slices"
	"sync"

	"github.com/dxpu-project/dxpu/vfiouser"
)

// parting holds the devices that were taken away while the VMM was connected to
// them, at most partingLimit for each slot. Their sockets stay open, and the proxy answers in
// their place until the VMM disconnects: QEMU's main loop stands for seconds, or
// QEMU aborts, when a socket closes under a guest that uses the device.
type parting struct {
	mu      sync.Mutex // guards the field below
	devices map[int][]*partingDevice
	wg      sync.WaitGroup
}

type partingDevice struct{ cancel context.CancelFunc }

// partingLimit bounds the sockets that a VMM can make a slot keep: it may stay connected
// to each device that it loses.
const partingLimit = 4

// add calls serve, which answers until the VMM disconnects or its context ends. Beyond
// the limit it disconnects the VMM from the slot's oldest device.
func (d *parting) add(slot int, serve func(context.Context)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	p := &partingDevice{cancel}
	if d.devices == nil {
		d.devices = map[int][]*partingDevice{}
	}
	if all := d.devices[slot]; len(all) == partingLimit {
		all[0].cancel()
		d.devices[slot] = slices.Delete(all, 0, 1)
	}
	d.devices[slot] = append(d.devices[slot], p)
	d.wg.Go(func() {
		serve(ctx)
		cancel()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.devices[slot] = slices.DeleteFunc(d.devices[slot], func(q *partingDevice) bool { return q == p })
	})
}

// stop disconnects the VMMs.
func (d *parting) stop() {
	d.mu.Lock()
	for _, all := range d.devices {
		for _, p := range all {
			p.cancel()
		}
	}
	d.mu.Unlock()
	d.wg.Wait()
}

func (f *VM) stop() { f.parting.stop() }

// close takes the device away. Its socket accepts no VMM any more; a VMM that is
// connected is served until it disconnects.
func (p *pluggedVM) close() {
	p.server.Drain()
	if c := p.server.Conn(); c != nil {
		_ = c.TriggerIRQ(vfiouser.IRQReq, 0) // an error: the VMM does not want to know
		p.front.parting.add(p.vm.slot.index, func(ctx context.Context) {
			p.end(ctx)
			p.front.parted(ctx, p.vm.slot.index, p)
		})
		return
	}
	p.end(context.Background())
}

// end serves the VMM until it disconnects or ctx ends.
func (p *pluggedVM) end(ctx context.Context) {
	_ = p.server.Shutdown(ctx)
	p.serving.Wait()
	p.estate.close()
}
