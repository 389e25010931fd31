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

// Stop takes a GPU out of service: no share is created on it and no process connects to
// its shares. Those that are there are asked to end, and killed after the grace.
func (b *Broker) Stop(now time.Duration, gpu int, why string, grace time.Duration) {
	asked := b.stopped[gpu] != ""
	b.stopped[gpu] = why
	if asked {
		return
	}
	for _, r := range slices.Clone(b.shares) {
		if r.has(gpu) {
			r.evicted = why
			b.ask(now, r, grace)
			b.sweep(now, r)
		}
	}
}

// Start returns a GPU to service.
func (b *Broker) Start(gpu int) { b.stopped[gpu] = "" }

// Stopped returns why a GPU is out of service, "" if it is in service.
func (b *Broker) Stopped(gpu int) string { return b.stopped[gpu] }

func (b *Broker) inService(gpu int) error {
	if why := b.stopped[gpu]; why != "" {
		return fmt.Errorf("GPU %s is out of service: %s", b.config.GPUs[gpu].Name, why)
	}
	return nil
}

// Busy reports whether a process of a share of a GPU is connected, or has memory there.
func (b *Broker) Busy(gpu int) bool {
	return slices.ContainsFunc(b.shares, func(r *room) bool { return r.has(gpu) && len(r.members) > 0 })
}

func (r *room) has(gpu int) bool { return slices.Contains(r.spec.GPUs, gpu) }

// Evict asks the processes of a share to end, and kills them after the grace. The share
// stays for programs to come.
func (b *Broker) Evict(now time.Duration, id, why string, grace time.Duration) {
	if r := b.find(id); r != nil {
		r.evicted = why
		b.ask(now, r, grace)
		b.sweep(now, r)
	}
}

// EndProcess asks the connections of a process to shares of a GPU to end, and kills the
// process after the grace. It returns the names of the shares.
func (b *Broker) EndProcess(now time.Duration, gpu, pid int, grace time.Duration) (shares []string) {
	grace = max(grace, 0)
	for _, r := range b.shares {
		for _, p := range r.members {
			if pid <= 0 || p.pid != pid || !r.has(gpu) || slices.ContainsFunc(b.kills, func(k kill) bool { return k.id == p.id }) {
				continue
			}
			shares = append(shares, r.spec.ID)
			b.kills = append(b.kills, kill{machine.After(now, grace), p.id})
			if p.greeted && p.connected {
				b.send(p, wire.Message{Type: wire.End, Arg: [wire.Args]uint64{uint64(grace)}})
			}
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
