package gate

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/meter"
)

// Hold stops or resumes the launches of a client. Those in flight go on.
func (g *Gate) Hold(now time.Duration, id share.ClientID, held bool) {
	g.now = max(g.now, now)
	c := g.find(id)
	if c == nil || c.held == held {
		return
	}
	c.held = held
	if !held {
		g.present(c)
		g.decide()
	}
}

// Open reports whether the launches of a client need no permit: nothing is to be shared,
// or the hardware does it.
func (g *Gate) Open(id share.ClientID) bool {
	c := g.find(id)
	if c == nil || c.held {
		return false
	}
	if !g.permits {
		return true
	}
	if c.spec.Limit > 0 && c.spec.Limit < share.Whole {
		return false
	}
	for _, o := range g.clients {
		if o != c && o.members > 0 {
			return false
		}
	}
	return true
}

// Held reports whether a client is held.
func (g *Gate) Held(id share.ClientID) bool {
	c := g.find(id)
	return c != nil && c.held
}

// Window returns the number of launches that a process of a client may have in flight.
func (g *Gate) Window(id share.ClientID) int32 {
	if c := g.find(id); c != nil {
		return c.window
	}
	return 1
}

// Use says how much memory a client uses, for the next reading of the sensors.
func (g *Gate) Use(id share.ClientID, bytes int64) {
	if c := g.find(id); c != nil {
		c.memory = bytes
	}
}

// Reads reports whether the next Transmit reads the sensors.
func (g *Gate) Reads(now time.Duration) bool { return now >= g.readAt }

// Transmit appends the permits that are due.
func (g *Gate) Transmit(now time.Duration, out []Permit) []Permit {
	g.now = max(g.now, now)
	if g.now >= g.readAt {
		g.read()
	}
	g.decide()
	g.renew()
	out = append(out, g.out...)
	g.out = g.out[:0]
	return out
}

// renew takes the credits of the policy over. The processes of a client divide its credit.
func (g *Gate) renew() {
	if g.creditor == nil {
		return
	}
	for _, c := range g.clients {
		c.next = 0
	}
	g.credits = g.creditor.Credits(g.credits[:0])
	at := 0 // mostly all clients have credit, in the order in which they joined
	for _, x := range g.credits {
		var c *client
		if at < len(g.clients) && g.clients[at].id == x.Client {
			c = g.clients[at]
			at++
		} else {
			c = g.find(x.Client)
		}
		if c != nil && !c.held && c.members > 0 {
			c.next = x.Launches / int32(c.members)
		}
	}
	for _, c := range g.clients {
		if c.credit != c.next {
			c.credit = c.next
			g.changed = append(g.changed, c.id)
		}
	}
}

// Changed returns the clients whose credit may have changed since the last call.
func (g *Gate) Changed() []share.ClientID {
	out := g.changed
	g.changed = g.changed[:0]
	return out
}

// Credit returns the number of launches that a process of a client may have in flight without
// a permit, until another Transmit says otherwise. The program tells each launch (Launch).
func (g *Gate) Credit(id share.ClientID) int32 {
	if c := g.find(id); c != nil {
		return c.credit
	}
	return 0
}

// Evicted returns the clients that the policy has evicted since the last call. Each has
// joined again at once: its launches go on until the caller ends the programs.
func (g *Gate) Evicted() []Eviction {
	out := g.evicted
	g.evicted = nil
	return out
}

// Wake returns when Transmit is due without other calls, or machine.Never.
func (g *Gate) Wake() time.Duration {
	if len(g.out) > 0 {
		return g.now
	}
	at := g.policy.Wake()
	for _, c := range g.clients {
		if c.members > 0 {
			return min(at, g.readAt)
		}
	}
	return at
}

// Account returns what a client has used of its limit, for a gate of a later agent.
func (g *Gate) Account(now time.Duration, id share.ClientID) share.Account {
	g.now = max(g.now, now)
	if p, ok := g.policy.(share.Accountant); ok {
		return p.Account(g.now, id)
	}
	return share.Account{}
}

// Charge gives a client that has just joined what it had used some time ago.
func (g *Gate) Charge(now time.Duration, id share.ClientID, a share.Account, ago time.Duration) {
	g.now = max(g.now, now)
	if p, ok := g.policy.(share.Accountant); ok {
		p.Charge(g.now, id, a, ago)
	}
}

// Violations returns the number of events that the policy found wrong.
func (g *Gate) Violations() uint64 { return g.policy.Violations() }

// Usage returns the work of a client.
func (g *Gate) Usage(id share.ClientID) Usage {
	if c := g.find(id); c != nil {
		return c.usage
	}
	return Usage{}
}

// ProcessUsage returns the work of a process.
func (g *Gate) ProcessUsage(id ProcessID) Usage {
	if p := g.processes[id]; p != nil {
		return p.usage
	}
	return Usage{}
}

// Waiting returns the number of launches of a process that wait.
func (g *Gate) Waiting(id ProcessID) int {
	if p := g.processes[id]; p != nil {
		return p.waiting
	}
	return 0
}

// InFlight returns the number of launches of a client that have a permit.
func (g *Gate) InFlight(id share.ClientID) int {
	if c := g.find(id); c != nil {
		return len(c.flights)
	}
	return 0
}

// Count adds work that a program did without permits. It cannot be more than the time
// since the last call.
func (g *Gate) Count(now time.Duration, id ProcessID, launches uint64, busy time.Duration) {
	g.now = max(g.now, now)
	p := g.processes[id]
	if p == nil {
		return
	}
	g.hear(p)
	busy = min(max(busy, 0), g.now-p.told)
	// No GPU takes more than ten launches each microsecond.
	launches = min(launches, uint64(max(g.now-p.told, 0)/100))
	p.told = g.now
	for _, u := range []*Usage{&p.usage, &p.client.usage} {
		u.Launches += launches
		u.Busy += busy
	}
}

// read gives the policy the readings of the sensors.
func (g *Gate) read() {
	g.readAt = machine.After(g.now, meter.ReadPeriod)
	var memory int64
	var meters []*meter.Meter
	var samples []share.Sample
	for _, c := range g.clients {
		memory += c.memory
		c.meter.Await(c.awaited(g.now))
		meters, samples = append(meters, &c.meter), append(samples, c.meter.Sample(g.now, c.memory))
	}
	all := g.total.Sample(g.now, memory)
	meter.Divide(all.Utilisation, meters, samples)
	for i, c := range g.clients {
		g.policy.Receive(g.now, share.Event{Kind: share.Sampled, Client: c.id, Sample: samples[i]})
	}
	all.Temperature = meter.CoolTemperature
	g.policy.Receive(g.now, share.Event{Kind: share.Sampled, Sample: all})
}

// awaited returns for how long launches of a client have run, perhaps, of which it told no end.
func (c *client) awaited(now time.Duration) time.Duration {
	since := now
	if len(c.flights) > 0 {
		since = c.flights[0].since
	}
	if i := slices.IndexFunc(c.queue, func(w waiting) bool { return w.launch.Started }); i >= 0 {
		since = min(since, c.queue[i].since)
	}
	return now - max(since, min(c.last, now))
}

// decide carries the decisions of the policy out until there are none.
func (g *Gate) decide() {
	for range maxDecisions {
		g.buffer = g.policy.Transmit(g.now, g.buffer[:0])
		if len(g.buffer) == 0 {
			return
		}
		for _, d := range g.buffer {
			if c := g.find(d.Client); c != nil {
				g.apply(c, d)
			}
		}
	}
}

func (g *Gate) apply(c *client, d share.Decision) {
	switch d.Kind {
	case share.Permit:
		if c.known && d.Launch == c.launch {
			g.permit(c)
		}
	case share.SetWindow:
		c.window = min(max(d.Window, 1), share.MaxInFlight)
	case share.Evict:
		if d.Reason == share.ReasonFull {
			c.refused = true
			return
		}
		g.evicted = append(g.evicted, Eviction{c.id, d.Reason})
		c.known = false
		for range c.flights {
			g.stop(c)
		}
		c.flights = c.flights[:0]
		g.policy.Receive(g.now, share.Event{Kind: share.Leave, Client: c.id})
		g.policy.Receive(g.now, share.Event{Kind: share.Join, Client: c.id, Spec: c.spec})
		g.present(c)
	default: // rates and holds: the policy keeps them by its permits. A running launch cannot be ended
	}
}

// permit starts the first launch of the queue, which may be another one than the policy
// saw, if the process of that one has ended. Without any, or while the client is held, the
// permit is used up at once.
func (g *Gate) permit(c *client) {
	c.known = false
	g.begin(c)
	c.flights = append(c.flights, flight{id: c.launch, since: g.now})
	last := len(c.flights) - 1
	if c.held || c.first() < 0 {
		g.complete(c, last, 0)
		g.calm(c)
		return
	}
	g.start(c, &c.flights[last])
	g.present(c)
}

// start gives a flight to the first launch of the queue.
func (g *Gate) start(c *client, f *flight) {
	i := c.first()
	w := c.queue[i]
	if i == 0 && len(c.queue) > 1 {
		c.queue[0] = waiting{}
		c.queue = c.queue[1:] // the others stay where they are: they may be thousands
	} else {
		c.queue = slices.Delete(c.queue, i, i+1)
	}
	f.process, f.launch, f.since = w.process, w.launch, g.now
	if w.launch.Started {
		f.since = w.since
	}
	w.process.waiting--
	g.count(w.process, w.launch)
	if w.launch.Started {
		g.stop(c) // it has begun already
		return
	}
	g.out = append(g.out, Permit{w.process.id, w.launch.ID})
}

func (g *Gate) begin(c *client) {
	c.meter.Begin(g.now)
	g.total.Begin(g.now)
}

func (g *Gate) stop(c *client) {
	c.meter.End(g.now)
	g.total.End(g.now)
}
