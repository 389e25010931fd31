package sim

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/fault"
)

// Path is one of the parallel networks between the two proxies.
type Path struct {
	// Delay is what a datagram takes from one proxy to the other.
	Delay time.Duration
	// Rate is the bandwidth of each direction in bytes of datagrams per second,
	// 0 for no limit. Queue is how many bytes may wait for it before datagrams
	// are dropped, 0 for no limit.
	Rate  float64
	Queue int
	// Down and Up are the faults of what the host and what the box sends.
	Down, Up fault.Plan
}

// pipe is one direction of a path.
type pipe struct {
	path   *Path
	faults *fault.Injector
	busy   time.Duration // until when earlier datagrams take up the bandwidth
}

// send gives a datagram to the network at the time now; arrive is scheduled
// for every copy that comes out.
func (p *pipe) send(c *clock, datagram []byte, arrive func(datagram []byte)) {
	leaves := c.now
	if rate := p.path.Rate; rate > 0 {
		waiting := max(p.busy-c.now, 0).Seconds() * rate
		if p.path.Queue > 0 && int(waiting)+len(datagram) > p.path.Queue {
			return
		}
		p.busy = max(p.busy, c.now) + time.Duration(float64(len(datagram))/rate*float64(time.Second))
		leaves = p.busy
	}
	for _, d := range p.faults.Apply(leaves, slices.Clone(datagram)) {
		c.at(d.At+p.path.Delay, func() { arrive(d.Data) })
	}
}
