package dispatch

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/meter"
)

func (d *Dispatcher) begin(c *client) {
	c.meter.Begin(d.now)
	d.total.Begin(d.now)
}

func (d *Dispatcher) stop(c *client) {
	c.meter.End(d.now)
	d.total.End(d.now)
}

// read gives the policy the readings of the sensors when they are due. The parts of a client say
// exactly for how long it used the GPU: the time with a launch has the waits for others too. No
// sensor has the memory: each client has a range of its own, which takes none from others when it is
// full.
func (d *Dispatcher) read() {
	if d.now < d.readAt {
		return
	}
	d.readAt = machine.After(d.now, meter.ReadPeriod)
	for _, c := range d.clients {
		d.tellWaited(c)
		d.policy.Receive(d.now, share.Event{Kind: share.Sampled, Client: c.id, Sample: c.meter.Told(d.now, 0)})
	}
	all := d.total.Sample(d.now, 0)
	all.Temperature = meter.CoolTemperature
	d.policy.Receive(d.now, share.Event{Kind: share.Sampled, Sample: all})
}

// Usage is the work of a client since it joined, or of all clients.
type Usage struct {
	Busy    time.Duration // time with a launch that ran
	Service time.Duration // time of its parts
}

// Usage returns the work of a client; client 0 stands for all.
func (d *Dispatcher) Usage(id share.ClientID) Usage {
	m := &d.total
	if id != 0 {
		c := d.find(id)
		if c == nil {
			return Usage{}
		}
		m = &c.meter
	}
	return Usage{m.Busy(), m.Service()}
}
