package hostproxy

import (
	"context"
	"sync"

	"github.com/dxpu-project/dxpu/vfiouser"
)

// parting holds the devices that were taken away while the VMM was connected to
// them, at most one for each slot. Their sockets stay open, and the proxy answers in
// their place until the VMM disconnects: QEMU's main loop stands for seconds, or
// QEMU aborts, when a socket closes under a guest that uses the device.
type parting struct {
	mu     sync.Mutex // guards the fields below
	cancel map[int]context.CancelFunc
	wg     sync.WaitGroup
}

// add calls serve, which answers until the VMM disconnects or its context ends, in
// the place of an earlier device of the slot.
func (d *parting) add(slot int, serve func(context.Context)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	if before := d.cancel[slot]; before != nil {
		before()
	}
	if d.cancel == nil {
		d.cancel = map[int]context.CancelFunc{}
	}
	d.cancel[slot] = cancel
	d.wg.Go(func() {
		serve(ctx)
		cancel() // of an ended context: stop may call it again
	})
}

// stop disconnects the VMMs.
func (d *parting) stop() {
	d.mu.Lock()
	for _, cancel := range d.cancel {
		cancel()
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
