package bench

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/internal/embedded"
	"github.com/dxpu-project/dxpu/internal/embedded/rootcomplex"
	"github.com/dxpu-project/dxpu/tlp"
)

// native is an embedded host with the software GPU right below its root port: it
// measures a host and a device without proxies and network.
type native struct {
	host  *embedded.Computer
	start time.Time

	mu  sync.Mutex // guards gpu
	gpu *gpu.GPU
}

func newNative(ctx context.Context) (*native, *opened, error) {
	n := &native{start: time.Now()}
	var err error
	if n.gpu, err = gpu.New(gpu.Spec{}); err != nil {
		return nil, nil, err
	}
	size := sizes{512, 512}
	host := rootcomplex.Spec{MaxPayload: 512, MaxRead: 512, MemoryBase: 1 << 20, Timeout: time.Second}
	if n.host, err = embedded.New(host, 16<<20, n.pump); err != nil {
		return nil, nil, err
	}
	fn, err := rootcomplex.Enumerate(n.host, size.enum())
	if err != nil {
		return nil, nil, err
	}
	if len(fn.Children) != 1 {
		return nil, nil, errors.New("bench: no device below the root port")
	}
	bus, err := n.host.Open(fn.Children[0])
	if err != nil {
		return nil, nil, err
	}
	dev, err := openDevice(ctx, bus)
	return n, dev, err
}

// pump moves TLPs until there are none, and runs the jobs of the device.
func (n *native) pump() {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Since(n.start)
	for moved := true; moved; {
		moved = false
		n.host.Transmit(now, func(p *tlp.Packet) bool {
			moved = true
			n.gpu.Receive(now, p)
			return true
		})
		for job, ok := n.gpu.NextJob(); ok; job, ok = n.gpu.NextJob() {
			for job.Run() {
			}
			n.gpu.FinishJob(now, job)
		}
		n.gpu.Transmit(now, func(p *tlp.Packet) bool {
			moved = true
			n.host.Receive(now, p)
			return true
		})
	}
}
