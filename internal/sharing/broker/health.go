package broker

import (
	"fmt"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/wire"
	"github.com/dxpu-project/dxpu/machine"
)

// kill is a process that is killed if it has not ended by itself.
type kill struct {
	at time.Duration
	id ProcessID
}

// Stop takes a GPU out of service: no share is created on it and no process uses it. Those
// that have used it are asked to end, and killed after the grace.
func (b *Broker) Stop(now time.Duration, gpu int, why string, grace time.Duration) {
	asked := b.stopped[gpu] != ""
	b.stopped[gpu] = why
	if asked {
		return
	}
	for _, r := range slices.Clone(b.shares) {
		if r.has(gpu) {
			r.evicted, r.dirty = why, true
			if b.expel(now, r, r.index(gpu), grace) {
				r.counts.Evictions++
			}
		}
	}
}

// Start returns a GPU to service.
func (b *Broker) Start(gpu int) {
	b.stopped[gpu] = ""
	for _, r := range b.shares {
		r.dirty = r.dirty || r.has(gpu)
	}
}

// Stopped returns why a GPU is out of service, "" if it is in service.
func (b *Broker) Stopped(gpu int) string { return b.stopped[gpu] }

func (b *Broker) inService(gpu int) error {
	if why := b.stopped[gpu]; why != "" {
		return fmt.Errorf("GPU %s is out of service: %s", b.config.GPUs[gpu].Name, why)
	}
	return nil
}

// usable returns why no process may begin in a share: none of its GPUs is in service.
func (b *Broker) usable(r *room) (err error) {
	for i := range r.parts {
		if q := &r.parts[i]; !q.gone && !q.leaving {
			if err = b.inService(q.GPU); err == nil {
				return nil
			}
		}
	}
	return err
}

// Busy reports whether a process of a share has used a GPU, or may have.
func (b *Broker) Busy(gpu int) bool {
	return slices.ContainsFunc(b.shares, func(r *room) bool {
		return r.has(gpu) && (r.restored || slices.ContainsFunc(r.members, func(p *process) bool { return p.held[r.index(gpu)].opened }))
	})
}

// open notes that a process may have a context on a GPU. Where it must not, it is asked to
// end: a library of this version makes none there.
func (b *Broker) open(now time.Duration, p *process, at int) {
	q := &p.share.parts[at]
	p.held[at].opened = true
	if q.leaving || q.gone || b.stopped[q.GPU] != "" {
		b.endProcess(now, p, evictGrace)
	}
}

// endProcess asks a process to end, and kills it after the grace.
func (b *Broker) endProcess(now time.Duration, p *process, grace time.Duration) {
	grace = max(grace, 0)
	at := machine.After(now, grace)
	i := slices.IndexFunc(b.kills, func(k kill) bool { return k.id == p.id })
	switch {
	case i < 0:
		b.kills = append(b.kills, kill{at, p.id})
	case at >= b.kills[i].at:
		return
	default:
		b.kills[i].at = at
	}
	if p.greeted && p.connected {
		b.send(p, wire.Message{Type: wire.End, Arg: [wire.Args]uint64{uint64(grace)}})
	}
}

// Evict asks the processes of a share to end, and kills them after the grace. The share
// stays for programs to come.
func (b *Broker) Evict(now time.Duration, id, why string, grace time.Duration) {
	if r := b.find(id); r != nil {
		b.evict(now, r, why, grace)
	}
}

func (b *Broker) evict(now time.Duration, r *room, why string, grace time.Duration) {
	r.evicted = why
	if len(r.members) > 0 {
		r.counts.Evictions++
	}
	b.ask(now, r, grace)
	b.sweep(now, r)
}

// EndProcess asks the connections of a process to shares of a GPU to end, and kills the
// process after the grace. It returns the names of the shares.
func (b *Broker) EndProcess(now time.Duration, gpu, pid int, grace time.Duration) (shares []string) {
	for _, r := range b.shares {
		for _, p := range r.members {
			if pid <= 0 || p.pid != pid || !r.has(gpu) || slices.ContainsFunc(b.kills, func(k kill) bool { return k.id == p.id }) {
				continue
			}
			shares = append(shares, r.id)
			r.counts.Evictions++
			b.endProcess(now, p, grace)
		}
	}
	return shares
}

// due appends the processes whose grace is over to the output.
func (b *Broker) due(now time.Duration) {
	b.kills = slices.DeleteFunc(b.kills, func(k kill) bool {
		if b.processes[k.id] == nil {
			return true
		}
		if now >= k.at {
			b.out.Kills = append(b.out.Kills, k.id)
		}
		return now >= k.at
	})
}
