package gate

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// overdue is a launch of a stopped process that the policy counts as ended.
type overdue struct {
	launch Launch
	since  time.Duration
	billed time.Duration
}

// Late appends the processes with a launch in flight for at least a time.
func (g *Gate) Late(now, least time.Duration, out []ProcessID) []ProcessID {
	for _, c := range g.clients {
		for i := range c.flights {
			if f := &c.flights[i]; now-f.since >= least && !slices.Contains(out, f.process.id) {
				out = append(out, f.process.id)
			}
		}
	}
	return out
}

// Stall says that a process is stopped, and so tells no end of its launches. No policy waits for
// them, and its other launches wait, until it sends a message.
func (g *Gate) Stall(now time.Duration, id ProcessID) {
	g.now = max(g.now, now)
	p := g.processes[id]
	if p == nil || p.stalled {
		return
	}
	p.stalled = true
	c := p.client
	for i := 0; i < len(c.flights); {
		if c.flights[i].process == p {
			g.expire(c, i)
		} else {
			i++
		}
	}
	g.setBusy(p, false)
	g.calm(c)
	g.decide()
}

// Hear says that a process is not stopped any more: it has sent a message for any GPU.
func (g *Gate) Hear(now time.Duration, id ProcessID) {
	g.now = max(g.now, now)
	if p := g.processes[id]; p != nil && p.stalled {
		g.hear(p)
		g.decide()
	}
}

// hear notes a message of a process.
func (g *Gate) hear(p *process) {
	if p.stalled {
		p.stalled = false
		g.setBusy(p, p.waiting > 0)
		g.present(p.client)
	}
}

// first returns the place in the queue of the first launch that would start with a permit, -1
// if there is none.
func (c *client) first() int {
	return slices.IndexFunc(c.queue, func(w waiting) bool { return !w.process.stalled })
}

func (g *Gate) expire(c *client, i int) {
	f := c.flights[i]
	ran := g.now - max(f.since, min(c.last, g.now))
	c.flights = slices.Delete(c.flights, i, i+1)
	c.last = g.now
	g.stop(c)
	g.bill(f.process, f.launch, f.since, ran)
	if p := f.process; len(p.overdue) < MaxWaiting {
		p.overdue = append(p.overdue, overdue{f.launch, f.since, ran})
	}
	g.policy.Receive(g.now, share.Event{Kind: share.Completed, Client: c.id, Launch: f.id, Ran: ran})
}

// doneLate takes the end of an overdue launch, and charges the rest of its time.
func (g *Gate) doneLate(p *process, launch uint64, ran time.Duration) bool {
	i := slices.IndexFunc(p.overdue, func(o overdue) bool { return o.launch.ID == launch })
	if i < 0 {
		return false
	}
	o := p.overdue[i]
	p.overdue = slices.Delete(p.overdue, i, i+1)
	ran = min(max(ran, 0), g.now-o.since+o.launch.before())
	p.client.meter.Tell(g.now, ran)
	g.bill(p, o.launch, o.since, max(ran-o.billed, 0))
	return true
}
