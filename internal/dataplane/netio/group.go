package netio

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
	"github.com/dxpu-project/dxpu/link"
)

// Group drives an engine.Group: it adds the lock, the clock, a timer and the
// sockets.
//
//	e := g.Enter()
//	err := binding.Send(e, &packet)
//	g.Leave(e)
//
// Leave lets the handlers of the touched bindings transmit, sends what their
// links have ready, and sets the timer.
type Group struct {
	fabric  *Fabric
	machine *engine.Group

	mu      sync.Mutex // held from Enter to Leave; guards the machine and the fields below
	writers []*udp.Writer
	alarm   alarm
	rang    func(engine.Entry) // notes that the alarm has fired
	closing []closing
	pending bool // counted in fabric.pending

	waiting atomic.Int32 // length of posted, read without the mutex
	postMu  sync.Mutex   // guards posted
	posted  []func(e engine.Entry)
}

// closing is a Detach that waits until its link has told the peer.
type closing struct {
	binding *engine.Binding
	down    chan struct{}
}

// newGroup makes an empty group.
func (f *Fabric) newGroup() *Group {
	g := &Group{fabric: f}
	g.rang = func(engine.Entry) { g.alarm.fired() }
	timer := time.AfterFunc(time.Hour, g.fire)
	timer.Stop()
	g.alarm = newAlarm(timer)
	for _, p := range f.paths {
		g.writers = append(g.writers, p.conn.NewWriter())
	}
	g.machine = engine.NewGroup(engine.Config{Output: output{g}, ECN: f.ecn, Clock: f.Now, Watcher: watcher{f}, Listened: f.listened})
	return g
}

// Enter locks the group until Leave or LeaveSoon.
func (g *Group) Enter() engine.Entry {
	g.mu.Lock()
	return g.entered()
}

// entered enters the machine. The lock is held.
func (g *Group) entered() engine.Entry {
	now := g.fabric.Now()
	g.alarm.entered(now, g.machine.Wake())
	return g.machine.Enter(now)
}

// postRounds bounds how often one Leave runs functions that others post
// meanwhile; the timer's goroutine runs the rest.
const postRounds = 16

// Leave finishes the work that was begun since Enter and unlocks the group.
func (g *Group) Leave(e engine.Entry) {
	for round := 1; ; round++ {
		g.runPosted(e)
		g.machine.Settle(e)
		g.noteClosed(e)
		if pending := g.machine.Pending(); pending || g.pending {
			g.notePending(e, pending)
		}
		if g.pending && !g.machine.Resting() {
			g.alarm.setExactly(e.Now(), e.Now()) // once other goroutines have run
		} else {
			g.alarm.set(e.Now(), g.machine.Wake())
		}
		g.mu.Unlock()
		// A goroutine that posted before the unlocking found the group locked.
		if !g.hasPosted() {
			return
		}
		if round == postRounds {
			g.alarm.again()
			return
		}
		if !g.mu.TryLock() {
			return
		}
		e = g.entered()
	}
}

// notePending counts the groups that have work left, and tells this one how long it
// has worked.
func (g *Group) notePending(e engine.Entry, pending bool) {
	crowd := &g.fabric.pending
	if pending != g.pending {
		g.pending = pending
		if pending {
			crowd.Add(1)
		} else {
			crowd.Add(-1)
		}
	}
	if pending {
		processors := cap(g.fabric.compute)
		g.machine.Spent(g.fabric.Now()-e.Now(), (int(crowd.Load())+processors-1)/processors)
	}
}

// coalesceTime bounds the delay of TLPs after LeaveSoon, for a caller that does not come back. One
// that does enters again within microseconds: then the timer fires for nothing, and its setting
// and its firing each wake a thread of the Go runtime. A longer time is mostly that of a timer
// that is set anyway, such as for an acknowledgement, and costs nothing.
const coalesceTime = time.Millisecond

// LeaveSoon unlocks the group like Leave, but leaves the sending to the next
// Leave, for callers that enter again at once. If none comes, the timer sends.
func (g *Group) LeaveSoon(e engine.Entry) {
	if g.machine.Pending() {
		g.alarm.setExactly(e.Now(), e.Now()+coalesceTime)
	}
	g.mu.Unlock()
	if g.hasPosted() {
		g.tryRun()
	}
}

// Post runs f in an entry: at once if the group is free, otherwise in the
// goroutine that has entered it, before that leaves. It never waits, so the
// caller may hold any lock, and may have entered the group.
func (g *Group) Post(f func(e engine.Entry)) {
	g.postMu.Lock()
	g.posted = append(g.posted, f)
	g.waiting.Add(1)
	g.postMu.Unlock()
	g.tryRun()
}

// tryRun runs what was posted, unless another goroutine has the group and will.
func (g *Group) tryRun() {
	if g.mu.TryLock() {
		g.Leave(g.entered())
	}
}

// hasPosted reports whether posted functions wait. Post counts its function
// before it tries the lock, so a check after unlocking misses none.
func (g *Group) hasPosted() bool { return g.waiting.Load() > 0 }

func (g *Group) runPosted(e engine.Entry) {
	if !g.hasPosted() {
		return
	}
	g.postMu.Lock()
	posted := g.posted
	g.posted = nil
	g.waiting.Store(0)
	g.postMu.Unlock()
	for _, f := range posted {
		f(e)
	}
}

// fire is called by the timer. The entry of another goroutine, if there is one, does its
// work: this one does not wait for it.
func (g *Group) fire() {
	g.Post(g.rang)
}

// Attach adds a binding to the group. The link starts to connect when the
// caller leaves.
func (g *Group) Attach(e engine.Entry, cfg engine.BindingConfig) (*engine.Binding, error) {
	f, id := g.fabric, cfg.Link.Binding
	if len(cfg.Peers) > len(f.paths) {
		return nil, fmt.Errorf("netio: binding %d has %d peer addresses; this proxy has %d paths", id, len(cfg.Peers), len(f.paths))
	}
	cfg.Link.Window = boundWindow(cfg.Link.Window, f.room())
	b, err := g.machine.Attach(e, cfg)
	if err != nil {
		return nil, fmt.Errorf("netio: %w", err)
	}
	if err := f.register(id, route{Gate: g, Door: b.Door()}); err != nil {
		b.Detach(e)
		return nil, err
	}
	return b, nil
}

// Readdress implements engine.GroupDriver.
func (g *Group) Readdress(e engine.Entry, b *engine.Binding, peers []netip.AddrPort) error {
	if err := b.Readdress(e, peers); err != nil {
		return err
	}
	g.fabric.reroute(b.ID(), route{Gate: g, Door: b.Door()})
	return nil
}

// lingerTimeout bounds how long Detach waits for the last datagrams of a link,
// which take some milliseconds.
const lingerTimeout = 50 * time.Millisecond

// Detach removes a binding. After Shutdown it waits until the link has told the
// peer. When it returns, the binding's handler is not called any more. The
// caller must not have entered the group.
func (g *Group) Detach(b *engine.Binding) {
	e := g.Enter()
	var down chan struct{}
	if b.State(e) == link.Closing {
		down = make(chan struct{})
		g.closing = append(g.closing, closing{b, down})
	}
	g.Leave(e)
	if down != nil {
		linger := time.NewTimer(lingerTimeout)
		select {
		case <-down:
		case <-linger.C:
		}
		linger.Stop()
	}
	e = g.Enter()
	g.closing = slices.DeleteFunc(g.closing, func(c closing) bool { return c.binding == b })
	if b.Detach(e) {
		g.fabric.unregister(b.ID())
	}
	if len(g.machine.Bindings(e)) == 0 {
		g.alarm.stop()
	}
	g.Leave(e)
}

// noteClosed wakes each Detach whose link is down.
func (g *Group) noteClosed(e engine.Entry) {
	for i, c := range g.closing {
		if c.down != nil && c.binding.State(e) == link.Down {
			close(c.down)
			g.closing[i].down = nil
		}
	}
}

// detachAll removes every binding.
func (g *Group) detachAll() {
	e := g.Enter()
	bindings := slices.Clone(g.machine.Bindings(e))
	g.Leave(e)
	for _, b := range bindings {
		g.Detach(b)
	}
}

// output is the network of a group. The group's lock guards its writers.
type output struct{ *Group }

var buffers = sync.Pool{New: func() any { return new(engine.Buffer) }}

func (o output) Buffer() *engine.Buffer   { return buffers.Get().(*engine.Buffer) }
func (o output) Release(b *engine.Buffer) { buffers.Put(b) }

func (o output) MaxBatch(path uint8, segment int) int { return o.writers[path].MaxBatch(segment) }

func (o output) Write(_ time.Duration, path uint8, to netip.AddrPort, batch [][]byte, segment int, ecn link.ECN) {
	o.fabric.paths[path].write(o.fabric.Now, o.writers[path], batch, segment, to, uint8(ecn))
}
