package broker

import (
	"errors"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/gate"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
	"github.com/dxpu-project/dxpu/machine"
)

// process is a process of a share.
//
//	         Hello             Closed              Ended
//	connected ----> greeted ----------> apart -----------> (none)
//	    |                                 |
//	    +--- Closed, Ended --> (none)     +-- Connect of the same PID --> connected, with the memory
//
// Apart, it has closed its connection and lives: it still has its memory.
type process struct {
	id        ProcessID
	pid       int // as the agent sees it; 0: not known
	inside    uint64
	share     *room
	connected bool
	greeted   bool
	exited    bool // it said that it ends
	rejected  bool // its connection is to be closed
	away      bool // it may have more memory than is known, until it has come back
	tells     bool // it says when it makes a context on a GPU
	stalled   bool // it is stopped, and has sent nothing since
	held      []holding
	wrong     uint64 // messages that did not fit
	failed    uint64 // errors of the GPU
}

// holding is the memory of a process on one GPU of its share.
type holding struct {
	bytes  uint64
	beyond uint64 // further memory of the process, for which its share has no room
	known  bool   // the process has spoken of it
	opened bool   // the process may have a context there
}

// Connect adds a process that connected to the socket of a share. PID is its process ID,
// or 0. It fails if the share is not there or has too many processes.
func (b *Broker) Connect(now time.Duration, id ProcessID, shareID string, pid int) error {
	r := b.find(shareID)
	if r == nil {
		return missing(shareID)
	}
	if r.end && r.leaves && !r.restored {
		return errors.New("the share ends")
	}
	if b.processes[id] != nil {
		return errors.New("broker: a connection is used twice")
	}
	if err := b.usable(r); err != nil && !r.restored { // one that comes back is to end
		return err
	}
	p := &process{id: id, pid: pid, share: r, connected: true, held: make([]holding, len(r.parts))}
	if i := slices.IndexFunc(r.members, func(o *process) bool { return pid > 0 && o.pid == pid && !o.connected }); i >= 0 {
		old := r.members[i]
		for g := range old.held {
			p.held[g] = holding{bytes: old.held[g].bytes, beyond: old.held[g].beyond, opened: old.held[g].opened}
		}
		p.away = old.away
		r.members[i] = p
		delete(b.processes, old.id)
		for k := range b.kills {
			if b.kills[k].id == old.id {
				b.kills[k].id = id
			}
		}
	} else {
		if len(r.members) >= gate.MaxProcesses {
			return errors.New("the share has too many processes")
		}
		r.members = append(r.members, p)
		r.dirty = true
	}
	b.processes[id] = p
	return nil
}

// Closed says that the connection of a process is closed. Its launches end; its memory
// stays until Ended, if the process is known.
func (b *Broker) Closed(now time.Duration, id ProcessID) {
	p := b.processes[id]
	if p == nil || !p.connected {
		return
	}
	p.connected = false
	for i := range p.share.parts {
		b.gates[p.share.parts[i].GPU].Exit(now, id)
	}
	if p.pid == 0 || !p.away && (!p.holds() || p.replaced()) {
		b.Ended(now, id)
	}
	b.refresh()
}

// replaced reports whether a later connection of the process has told all memory that it
// has: that of this one went with the program before an exec.
func (p *process) replaced() bool {
	return slices.ContainsFunc(p.share.members, func(o *process) bool {
		return o.id > p.id && p.pid > 0 && o.pid == p.pid && !slices.ContainsFunc(o.held, func(h holding) bool { return !h.known })
	})
}

// Ended says that a process has ended: nothing of it stays.
func (b *Broker) Ended(now time.Duration, id ProcessID) {
	p := b.processes[id]
	if p == nil {
		return
	}
	r := p.share
	delete(b.processes, id)
	r.members = slices.DeleteFunc(r.members, func(x *process) bool { return x == p })
	r.dirty = true
	for i := range p.held {
		b.gates[r.parts[i].GPU].Exit(now, id)
		r.release(i, p.held[i].bytes)
	}
	b.reunite(now, r)
	if p.connected {
		b.out.Closes = append(b.out.Closes, id)
	}
	b.sweep(now, r)
	b.refresh()
}

func (p *process) holds() bool {
	return slices.ContainsFunc(p.held, func(h holding) bool { return h.bytes+h.beyond > 0 })
}

// release gives memory of a share back. It goes to processes that have more than the share had
// room for, such as those of an agent that gave more memory out than this one does: so the account
// is right when there is room for all again.
func (r *room) release(i int, bytes uint64) {
	q := &r.parts[i]
	before := q.used
	q.used -= bytes
	q.reserved = max(uint64(q.Memory), q.used, q.kept, q.promised)
	for _, p := range r.members {
		h := &p.held[i]
		n := min(h.beyond, q.reserved-q.used)
		h.beyond -= n
		h.bytes += n
		q.used += n
	}
	r.dirty = r.dirty || q.used != before
}

// reject closes the connection of a process.
func (b *Broker) reject(p *process, why wire.Reason) {
	p.rejected = true
	b.send(p, wire.Message{Type: wire.Reject, Arg: [wire.Args]uint64{uint64(why)}})
	b.out.Closes = append(b.out.Closes, p.id)
}

// Wrong says that a process sent bytes that are no message.
func (b *Broker) Wrong(id ProcessID) {
	if p := b.processes[id]; p != nil {
		b.reject(p, wire.WrongMessage)
	}
}

// Receive takes a message of a process.
func (b *Broker) Receive(now time.Duration, id ProcessID, m wire.Message) {
	p := b.processes[id]
	switch {
	case p == nil || !p.connected || p.rejected:
		return
	case m.Type == wire.Hello:
		b.hello(now, p, m)
		return
	case !p.greeted:
		b.reject(p, wire.NotGreeted)
		return
	case int(m.GPU) >= len(p.held):
		b.reject(p, wire.WrongMessage)
		return
	}
	b.hear(now, p)
	g := b.gates[p.share.parts[m.GPU].GPU]
	switch m.Type {
	case wire.Context:
		b.open(now, p, int(m.GPU))
	case wire.Allocate:
		b.allocate(now, p, m)
	case wire.Free:
		b.free(now, p, m)
	case wire.Holds:
		b.holds(now, p, m)
	case wire.Launch:
		b.launch(now, p, g, m)
	case wire.Done:
		if !g.Done(now, id, m.ID, clampTime(m.Arg[0])) {
			p.wrong++
		}
	case wire.Idle:
		g.Idle(now, id)
	case wire.Usage:
		g.Count(now, id, m.Arg[0], clampTime(m.Arg[1]))
	case wire.Failed: // it ends its own context, and no other share is concerned
		p.failed++
		p.share.counts.Failures++
	case wire.Exit:
		p.exited = true
		for i := range p.share.parts {
			b.gates[p.share.parts[i].GPU].Withdraw(now, id)
		}
	default: // Parse lets no other type pass
	}
}

// Late returns the processes with a launch in flight for at least a time.
func (b *Broker) Late(now, least time.Duration) (out []ProcessID) {
	for _, g := range b.gates {
		out = g.Late(now, least, out)
	}
	return out
}

// Stall says that a process is stopped: others do not wait for its launches.
func (b *Broker) Stall(now time.Duration, id ProcessID) {
	if p := b.processes[id]; p != nil {
		p.stalled = true
	}
	for _, g := range b.gates {
		g.Stall(now, id)
	}
}

// hear notes that a process goes on, at the gates of all of its GPUs: its threads that wait at
// one send nothing there.
func (b *Broker) hear(now time.Duration, p *process) {
	if !p.stalled {
		return
	}
	p.stalled = false
	for _, g := range b.gates {
		g.Hear(now, p.id)
	}
}

// clampTime returns nanoseconds of a message as a duration.
func clampTime(ns uint64) time.Duration { return time.Duration(min(ns, uint64(24*time.Hour))) }

func (b *Broker) hello(now time.Duration, p *process, m wire.Message) {
	r := p.share
	switch {
	case p.greeted:
		b.reject(p, wire.NotGreeted)
		return
	case m.ID != wire.Version:
		b.reject(p, wire.WrongVersion)
		return
	}
	for i := range r.parts {
		if r.parts[i].gone {
			continue
		}
		if err := b.gates[r.parts[i].GPU].Enter(now, r.client, p.id); err != nil {
			b.reject(p, wire.TooMany)
			return
		}
	}
	p.greeted, p.inside, p.tells = true, m.Arg[0], m.Arg[1] == wire.Tells
	b.send(p, wire.Message{Type: wire.Welcome, ID: wire.Version, Arg: [wire.Args]uint64{uint64(len(r.parts)), wire.Tells}})
	for i := range r.parts {
		if !p.tells && !r.parts[i].gone { // an older library: it may use all of them
			b.open(now, p, i)
		}
	}
	if r.end {
		// Also after the others were killed, so that no process stays for good.
		r.killAt = min(r.killAt, machine.After(now, r.grace))
		b.send(p, wire.Message{Type: wire.End, Arg: [wire.Args]uint64{uint64(r.grace)}})
	}
	b.refresh()
}

func (b *Broker) allocate(now time.Duration, p *process, m wire.Message) {
	q := &p.share.parts[m.GPU]
	p.held[m.GPU].known = true
	left := q.limit() - min(q.used, q.limit())
	answer := wire.Message{Type: wire.Refused, GPU: m.GPU, ID: m.ID, Bytes: left}
	switch {
	case m.Bytes > left || p.exited:
	case m.Bytes > left-min(q.absent, left):
		b.wait(p, m)
		return
	default:
		b.open(now, p, int(m.GPU)) // memory may need no context
		q.used += m.Bytes
		p.held[m.GPU].bytes += m.Bytes
		p.share.dirty = p.share.dirty || m.Bytes > 0
		answer.Type, answer.Bytes = wire.Granted, m.Bytes
	}
	if answer.Type == wire.Refused {
		p.share.counts.Refusals++
	}
	b.send(p, answer)
}

func (b *Broker) free(now time.Duration, p *process, m wire.Message) {
	h := &p.held[m.GPU]
	h.known = true
	if m.Bytes > h.bytes+h.beyond {
		p.wrong++
		return
	}
	n := min(h.beyond, m.Bytes)
	h.beyond -= n
	h.bytes -= m.Bytes - n
	p.share.release(int(m.GPU), m.Bytes-n)
	b.retry(now, p.share)
}

// holds takes the memory that a process has after a reconnection, as far as there is room
// for it in what is kept for its share. The rest is beyond the account.
func (b *Broker) holds(now time.Duration, p *process, m wire.Message) {
	h := &p.held[m.GPU]
	if h.known {
		p.wrong++
		return
	}
	h.known = true
	if m.Bytes > 0 {
		b.open(now, p, int(m.GPU))
	}
	p.inherit(int(m.GPU))
	q, before := &p.share.parts[m.GPU], h.bytes
	q.used -= before
	h.bytes = min(m.Bytes, q.reserved-q.used)
	h.beyond = m.Bytes - h.bytes
	q.used += h.bytes
	p.share.release(int(m.GPU), 0)
	p.share.dirty = true
	b.claim(now, p, q, max(m.Bytes, m.Arg[0], before)-before)
	for _, o := range slices.Clone(p.share.members) {
		if o != p && p.pid > 0 && o.pid == p.pid && !o.connected && !o.holds() && !o.away {
			b.Ended(now, o.id) // p has what it had
		}
	}
}

func (b *Broker) launch(now time.Duration, p *process, g *gate.Gate, m wire.Message) {
	l := gate.Launch{
		ID: m.ID, Blocks: int64(min(m.Arg[0], 1<<40)), Threads: int64(min(m.Arg[1], 1024)),
		Kernels: int64(min(m.Arg[2], 1<<20)), Function: m.Arg[3],
		Started: m.Arg[4] == wire.Started,
	}
	waiting := 0
	for i := range p.share.parts {
		waiting += b.gates[p.share.parts[i].GPU].Waiting(p.id)
	}
	if p.exited || waiting >= wire.MaxUnanswered || !g.Launch(now, p.id, l) {
		b.reject(p, wire.TooMany)
	}
}
