package broker

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// A broker of a later agent does not know the memory of the processes that its predecessor
// served, until they come back. Without an agent each of them keeps to a most of its own,
// and these are the share's limit together. A process that comes back says its memory and its most
// (wire.Holds). What no process has claimed so far is absent: no program gets it until
// Settle, and a request that only lacks that is answered then, or before if it has room.
//
// The processes of an agent that hung have gone on alone as well, so it breaks with them
// (Lapse). It knows them all, and nothing is absent any more when each is back or has ended.

// request is an ALLOCATE without an answer.
type request struct {
	process ProcessID
	message wire.Message
}

// Restored says that a share was a former agent's, so that processes may hold memory of it.
func (b *Broker) Restored(id string) {
	r := b.find(id)
	if r == nil {
		return
	}
	for i := range r.parts {
		r.parts[i].absent, r.parts[i].kept = r.parts[i].reserved, r.parts[i].reserved
	}
	r.restored, r.dirty = true, true
}

// Lapse says that the processes may have gone on alone, because the agent was silent. Their
// connections are closed, and the pages have another number of the agent from now on.
func (b *Broker) Lapse(agent uint64) {
	b.config.Agent = agent
	for _, r := range b.shares {
		r.lapsed, r.dirty = true, true
		r.waiting = nil // the answers would be on connections that are closed
		for i := range r.parts {
			q := &r.parts[i]
			q.absent, q.kept = q.reserved-q.used, q.reserved
		}
		for _, p := range r.members {
			b.part(p)
		}
	}
}

// part closes the connection of a process that may be alone.
func (b *Broker) part(p *process) {
	r := p.share
	p.away = p.pid > 0
	if p.pid == 0 { // it is no member after its connection, but may have its memory
		r.restored = true
		for i := range p.held {
			r.parts[i].absent += p.held[i].bytes
		}
	}
	if p.connected && !p.rejected {
		p.rejected = true
		b.out.Closes = append(b.out.Closes, p.id)
	}
}

// Settle says that absent processes have had the time to come back: memory that was kept
// for them and that they did not name is free.
func (b *Broker) Settle(now time.Duration) {
	for _, r := range slices.Clone(b.shares) {
		for _, p := range r.members {
			p.away = false
		}
		r.settle()
		b.sweep(now, r)
		b.retry(now, r)
	}
}

func (r *room) settle() {
	r.lapsed, r.restored, r.dirty = false, false, true
	for i := range r.parts {
		r.parts[i].kept, r.parts[i].absent = 0, 0
		r.release(i, 0)
	}
}

// reunite settles a share whose processes are all back, and answers what has waited.
func (b *Broker) reunite(now time.Duration, r *room) {
	if r.lapsed && !r.restored && !slices.ContainsFunc(r.members, func(p *process) bool { return p.away }) {
		r.settle()
	}
	b.retry(now, r)
}

// inherit takes over what was known of the memory of a process from its other connections
// that are closed, or have not spoken of it: those that it gave up before the agent accepted
// them.
func (p *process) inherit(gpu int) {
	for _, o := range p.share.members {
		if o == p || p.pid == 0 || o.pid != p.pid || o.held[gpu].known && o.connected {
			continue
		}
		p.held[gpu].bytes += o.held[gpu].bytes
		p.held[gpu].opened = p.held[gpu].opened || o.held[gpu].opened
		o.held[gpu].bytes, o.held[gpu].beyond = 0, 0
		p.away, o.away = p.away || o.away, false
	}
}

// claim takes from what is absent what a process that has come back allowed itself beyond
// the memory that was known.
func (b *Broker) claim(now time.Duration, p *process, q *part, more uint64) {
	q.absent -= min(q.absent, more)
	if !slices.ContainsFunc(p.held, func(h holding) bool { return !h.known }) {
		p.away = false
	}
	b.reunite(now, p.share)
}

// wait keeps a request until absent processes come back.
func (b *Broker) wait(p *process, m wire.Message) {
	n := 0
	for _, w := range p.share.waiting {
		if w.process == p.id {
			n++
		}
	}
	if n >= wire.MaxUnanswered {
		b.reject(p, wire.TooMany)
		return
	}
	p.share.waiting = append(p.share.waiting, request{p.id, m})
}

// retry answers the requests that wait, as far as that is possible now. Those of closed
// connections have no answer.
func (b *Broker) retry(now time.Duration, r *room) {
	list := r.waiting
	r.waiting = nil
	for _, w := range list {
		if p := b.processes[w.process]; p != nil && p.connected && !p.rejected {
			b.allocate(now, p, w.message)
		}
	}
}
