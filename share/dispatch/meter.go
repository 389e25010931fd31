package dispatch

import (
	"time"

	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/share"
)

// The sensors read every readPeriod and average over readSpan periods, like those of
// a GPU's driver.
const (
	readPeriod = 120 * time.Millisecond
	readSpan   = 8
)

// meter adds up the work of a client, or of the GPU.
type meter struct {
	busy    time.Duration // time with a launch that runs, until from
	service time.Duration // time of parts
	from    time.Duration // since when launches run
	running int           // launches that run
	history [readSpan]usage
	n       int // readings
}

type usage struct{ at, busy, service time.Duration }

func (m *meter) pass(now time.Duration) {
	if m.running > 0 {
		m.busy += now - m.from
	}
	m.from = now
}

func (d *Dispatcher) begin(c *client) {
	for _, m := range []*meter{&c.meter, &d.total} {
		m.pass(d.now)
		m.running++
	}
}

func (d *Dispatcher) stop(c *client) {
	for _, m := range []*meter{&c.meter, &d.total} {
		m.pass(d.now)
		m.running = max(m.running-1, 0)
	}
}

// sample takes a reading.
func (m *meter) sample(now time.Duration, memory int64) share.Sample {
	m.pass(now)
	old := &m.history[m.n%readSpan]
	was := *old
	*old = usage{now, m.busy, m.service}
	m.n++
	d := now - was.at
	return share.Sample{
		Utilisation: share.Ratio(m.busy-was.busy, d), SMActivity: share.Ratio(m.service-was.service, d), Memory: memory,
		Clock: share.Whole,
	}
}

// read gives the policy the readings of the sensors when they are due.
func (d *Dispatcher) read() {
	if d.now < d.readAt {
		return
	}
	d.readAt = machine.After(d.now, readPeriod)
	var memory int64
	for _, c := range d.clients {
		memory += c.spec.Memory
		d.policy.Receive(d.now, share.Event{Kind: share.Sampled, Client: c.id, Sample: c.meter.sample(d.now, c.spec.Memory)})
	}
	all := d.total.sample(d.now, memory)
	all.Temperature = coolTemperature
	d.policy.Receive(d.now, share.Event{Kind: share.Sampled, Sample: all})
}

// coolTemperature is that of a GPU that is not too warm, in degrees Celsius. A software
// GPU has no other.
const coolTemperature = 60

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
	return Usage{m.busy, m.service}
}

// profile predicts how long a launch takes: the modelled hardware is faster than the
// processor that computes, by a factor that follows the launches.
type profile struct {
	cost  time.Duration // of the launches by the modelled hardware; older ones count less
	spent time.Duration // what they took
}

// expect predicts the time of a launch with a modelled cost; 0: not known.
func (p *profile) expect(cost time.Duration) time.Duration {
	if p.cost <= 0 {
		return 0
	}
	return time.Duration(float64(cost) * float64(p.spent) / float64(p.cost))
}

func (p *profile) note(cost, ran time.Duration) {
	p.cost = p.cost*7/8 + cost
	p.spent = p.spent*7/8 + ran
}
