package sim

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/embedded"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
)

// Node is a machine with one proxy. It is the proxy's engine.Driver, and the
// scheduler of an embedded host.
type Node struct {
	// Tune changes the configuration of each link before it is made. nil: the
	// proxies' own.
	Tune  func(*link.Config)
	Drops engine.Drops // datagrams that reached no link

	world   *World
	uplinks []*uplink
	routes  map[uint32]engine.Route[*group] // by number of binding
	rng     *rand.Rand
	ahead   time.Duration // of the world's clock, by jumps
	restart func()        // for plans with restarts; nil: there are none
	tasks   []*task
	stops   []func()
	dead    bool
}

var (
	_ engine.Driver      = (*Node)(nil)
	_ engine.Output      = (*Node)(nil)
	_ embedded.Scheduler = (*Node)(nil)
)

// NewNode makes a node. It takes over the addresses of a node that was stopped. restart
// ends the node and starts it again, when a plan says so; nil: NewNode refuses such
// plans.
func (w *World) NewNode(paths []Path, restart func()) (*Node, error) {
	w.nodes++
	n := &Node{world: w, routes: map[uint32]engine.Route[*group]{}, restart: restart, rng: rand.New(rand.NewPCG(w.seed, uint64(w.nodes)))}
	for i, p := range paths {
		if p.MTU == 0 {
			p.MTU = DefaultMTU
		}
		u := &uplink{Path: p, port: output{Port: p.Port}}
		u.in = engine.Input{Path: uint8(i), Clock: n.Now, Answer: func(datagram []byte) { w.send(u, u.sender, datagram, link.NotECT) }}
		n.uplinks = append(n.uplinks, u)
		if err := n.Disturb(i, p.Plan); err != nil {
			return nil, err
		}
		w.ports[p.Addr] = port{n, uint8(i)}
	}
	return n, nil
}

// Now implements engine.Driver: the time of the world, plus the jumps.
func (n *Node) Now() time.Duration { return n.world.now + n.ahead }

// worldTime returns when the node's clock shows t: at once for a time that is over.
func (n *Node) worldTime(t time.Duration) time.Duration {
	if t == machine.Never {
		return t
	}
	return max(t-n.ahead, n.world.now)
}

// Jump advances the clock of the node, as netio.Fabric.Jump does. Links and waiting
// tasks find that their time has come; timers of AfterFunc keep theirs.
func (n *Node) Jump(by time.Duration) {
	n.ahead += max(by, 0)
	for _, id := range slices.Sorted(maps.Keys(n.routes)) {
		g := n.routes[id].Gate
		g.Leave(g.Enter())
	}
	for _, t := range n.tasks {
		t.arm()
	}
}

// epoch is the date of a world's time 0.
var epoch = time.Date(2000, time.January, 1, 0, 0, 0, 0, time.UTC)

// WallTime implements engine.Driver.
func (n *Node) WallTime() time.Time { return epoch.Add(n.Now()) }

// Addrs implements engine.Driver.
func (n *Node) Addrs() []netip.AddrPort {
	var out []netip.AddrPort
	for i := range n.uplinks {
		out = append(out, n.uplinks[i].Addr)
	}
	return out
}

// MTUs implements engine.Driver.
func (n *Node) MTUs() []int {
	var out []int
	for i := range n.uplinks {
		out = append(out, n.uplinks[i].MTU)
	}
	return out
}

// Poll implements engine.Driver: a world has no other processes.
func (n *Node) Poll(engine.Source) {}

// Compute implements engine.Driver: run takes no real time, cost is virtual.
func (n *Node) Compute(run func() (more bool), cost time.Duration, done func()) {
	for run() {
	}
	n.AfterFunc(cost, done)
}

// AfterFunc implements engine.Driver.
func (n *Node) AfterFunc(d time.Duration, f func()) engine.Timer {
	t := &timer{node: n, f: f}
	t.Reset(d)
	return t
}

type timer struct {
	node *Node
	f    func()
	runs uint64 // number of the last Reset; older events do nothing
	set  bool
}

// Reset implements engine.Timer.
func (t *timer) Reset(d time.Duration) bool {
	was := t.Stop()
	t.set = true
	run := t.runs
	t.node.world.at(machine.After(t.node.world.now, d), t.node, func() {
		if t.set && t.runs == run {
			t.set = false
			t.f()
		}
	})
	return was
}

// Stop implements engine.Timer.
func (t *timer) Stop() bool {
	was := t.set
	t.set = false
	t.runs++
	return was
}

// NewSignal implements engine.Driver.
func (n *Node) NewSignal() engine.Signal { return &signal{node: n} }

type signal struct {
	node *Node
	set  bool
}

// Set implements engine.Signal.
func (s *signal) Set() {
	if !s.set {
		s.set = true
		s.node.world.at(s.node.world.now, s.node, nil)
	}
}

// Wait implements engine.Signal.
func (s *signal) Wait(ctx context.Context, timeout time.Duration) bool {
	n := s.node
	n.WaitUntil(machine.After(n.Now(), timeout), func() bool { return s.set || ctx.Err() != nil })
	was := s.set
	s.set = false
	return was
}

// group drives an engine.Group in virtual time.
type group struct {
	node    *Node
	machine *engine.Group
	entered bool
	armed   time.Duration // when an entry is scheduled, on the world's clock; machine.Never: none is
	posted  []func(engine.Entry)
}

// NewGroup implements engine.Driver.
func (n *Node) NewGroup() engine.GroupDriver {
	return &group{node: n, armed: machine.Never, machine: engine.NewGroup(engine.Config{Output: n, ECN: n.ecn()})}
}

// Enter implements engine.GroupDriver.
func (g *group) Enter() engine.Entry {
	if g.entered {
		panic("sim: the group is entered already")
	}
	g.entered = true
	return g.machine.Enter(g.node.Now())
}

// Leave implements engine.GroupDriver.
func (g *group) Leave(e engine.Entry) {
	for {
		for len(g.posted) > 0 {
			f := g.posted[0]
			g.posted = g.posted[1:]
			f(e)
		}
		if g.machine.Settle(e); len(g.posted) == 0 {
			break
		}
	}
	g.entered = false
	g.arm(g.machine.Wake())
}

// LeaveSoon implements engine.GroupDriver.
func (g *group) LeaveSoon(e engine.Entry) { g.Leave(e) }

// Post implements engine.GroupDriver.
func (g *group) Post(f func(engine.Entry)) {
	g.posted = append(g.posted, f)
	if !g.entered {
		g.Leave(g.Enter())
	}
}

// arm schedules an entry.
func (g *group) arm(wake time.Duration) {
	at := g.node.worldTime(wake)
	if at >= g.armed {
		return
	}
	g.armed = at
	g.node.world.at(at, g.node, func() {
		if g.armed == at { // not superseded by an earlier event
			g.armed = machine.Never
			g.Leave(g.Enter())
		}
	})
}

// Attach implements engine.GroupDriver.
func (g *group) Attach(e engine.Entry, cfg engine.BindingConfig) (*engine.Binding, error) {
	n, id := g.node, cfg.Link.Binding
	if _, ok := n.routes[id]; ok {
		return nil, fmt.Errorf("sim: binding %d exists", id)
	}
	cfg.Link.Session = max(n.rng.Uint64(), 1) // the proxies' own is random, and so is their key
	cfg.Link.Ephemeral = [32]byte{}
	binary.BigEndian.PutUint64(cfg.Link.Ephemeral[:], cfg.Link.Session)
	if n.Tune != nil {
		n.Tune(&cfg.Link)
	}
	b, err := g.machine.Attach(e, cfg)
	if err == nil {
		n.routes[id] = engine.Route[*group]{Gate: g, Door: b.Door()}
	}
	return b, err
}

// Readdress implements engine.GroupDriver.
func (g *group) Readdress(e engine.Entry, b *engine.Binding, peers []netip.AddrPort) error {
	if err := b.Readdress(e, peers); err != nil {
		return err
	}
	g.node.routes[b.ID()] = engine.Route[*group]{Gate: g, Door: b.Door()}
	return nil
}

// lingerTimeout bounds how long Detach waits for the last datagrams of a link.
const lingerTimeout = 50 * time.Millisecond

// Detach implements engine.GroupDriver.
func (g *group) Detach(b *engine.Binding) {
	closing := func() bool {
		e := g.Enter()
		defer g.Leave(e)
		return b.State(e) == link.Closing
	}
	g.node.WaitUntil(g.node.Now()+lingerTimeout, func() bool { return !closing() })
	e := g.Enter()
	defer g.Leave(e)
	if b.Detach(e) {
		delete(g.node.routes, b.ID())
	}
}
