package broker

import "github.com/dxpu-project/dxpu/internal/sharing/wire"

// A broker of a later agent does not know the memory of the processes that its predecessor
// served, until they come back. Without an agent each of them keeps to a most of its own,
// and these are the share's limit together. A process that comes back says its memory and its most
// (wire.Holds). What no process has claimed so far is absent: no program gets it until
// Settle, and a request that only lacks that is answered then, or before if it has room.

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
		r.parts[i].absent = r.parts[i].reserved
	}
	r.dirty = true
}

// claim takes the most of a process that has come back from what is absent.
func (b *Broker) claim(r *room, q *part, most uint64) {
	q.absent -= min(q.absent, most)
	b.retry(r)
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
func (b *Broker) retry(r *room) {
	list := r.waiting
	r.waiting = nil
	for _, w := range list {
		if p := b.processes[w.process]; p != nil && p.connected && !p.rejected {
			b.allocate(p, w.message)
		}
	}
}
