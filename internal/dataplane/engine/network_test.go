package engine

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
)

// delay is what a datagram takes from one proxy to the other.
const delay = 10 * time.Microsecond

// network joins two proxies in virtual time. It is the driver of their groups.
type network struct {
	t      testing.TB
	now    time.Duration
	events machine.Queue[func()]
	side   [2]*proxy
	rng    *rand.Rand
	onSend func(from int, path uint8, batch []byte, segment int)
}

// proxy is one side: its groups, in the order in which they were made.
type proxy struct {
	net      *network
	index    int
	addrs    []netip.AddrPort
	plans    []*fault.Injector // by path
	groups   []*driver
	bindings map[uint32]Route[*driver]
	drops    Drops
	buffer   Buffer
}

// driver is the Gate and the Output of a group.
type driver struct {
	*proxy
	group   *Group
	entries int
	cost    time.Duration // of an entry that leaves work undone; 0: none takes time
	busy    time.Duration // total cost
}

func newNetwork(t testing.TB, seed uint64, plans ...fault.Plan) *network {
	t.Helper()
	if len(plans) == 0 {
		plans = make([]fault.Plan, 1)
	}
	n := &network{t: t, rng: rand.New(rand.NewPCG(seed, 1))}
	for i := range n.side {
		p := &proxy{net: n, index: i, bindings: map[uint32]Route[*driver]{}}
		for path, plan := range plans {
			p.addrs = append(p.addrs, netip.MustParseAddrPort(fmt.Sprintf("192.0.2.%d:%d", i+1, 4000+path)))
			p.plans = append(p.plans, fault.New(plan, seed+uint64(2*path+i)))
		}
		n.side[i] = p
	}
	return n
}

func (p *proxy) newGroup() *driver {
	d := &driver{proxy: p}
	d.group = NewGroup(Config{Output: d})
	p.groups = append(p.groups, d)
	return d
}

func (d *driver) Enter() Entry {
	d.entries++
	return d.group.Enter(d.net.now)
}

func (d *driver) Leave(e Entry) {
	d.group.Settle(e)
	if d.cost > 0 && d.group.Pending() {
		d.group.Spent(d.cost, 1)
		d.net.now += d.cost
		d.busy += d.cost
	}
}

func (d *driver) Buffer() *Buffer { return &d.buffer }
func (d *driver) Release(*Buffer) {}

func (d *driver) MaxBatch(_ uint8, segment int) int { return segment * max(1, min(64, 65507/segment)) }

func (d *driver) Write(now time.Duration, path uint8, to netip.AddrPort, batch [][]byte, segment int, _ link.ECN) {
	d.send(now, path, to, slices.Concat(batch...), segment)
}

func (d *proxy) send(now time.Duration, path uint8, to netip.AddrPort, batch []byte, segment int) {
	n := d.net
	if n.onSend != nil {
		n.onSend(d.index, path, batch, segment)
	}
	from, other := d.addrs[path], n.side[1-d.index]
	if other.addrs[path] != to {
		n.t.Errorf("path %d goes to %v, want %v", path, to, other.addrs[path])
	}
	for at := 0; at < len(batch); at += segment {
		datagram := batch[at:min(at+segment, len(batch))]
		for _, copied := range d.plans[path].Apply(now, slices.Clone(datagram)) {
			n.events.Push(copied.At+delay, func() { other.receive(path, copied.Data, len(copied.Data), from) })
		}
	}
}

func (p *proxy) receive(path uint8, batch []byte, segment int, from netip.AddrPort) {
	p.drops.Add(p.dispatch(path, batch, segment, from))
}

func (p *proxy) dispatch(path uint8, batch []byte, segment int, from netip.AddrPort) Drops {
	in := &Input{Path: path, Clock: func() time.Duration { return p.net.now }}
	in.Answer = func(datagram []byte) { p.send(p.net.now, path, from, datagram, len(datagram)) }
	return Dispatch(p.bindings, in, Batch{Bytes: batch, Segment: segment, From: from}, nil)
}

// run lets time pass until done, which it reports, or the deadline.
func (n *network) run(deadline time.Duration, done func() bool) bool {
	for steps := 0; ; steps++ {
		if steps > 1e7 {
			n.t.Fatal("time stands still")
		}
		if done != nil && done() {
			return true
		}
		next := n.events.Wake()
		for _, p := range n.side {
			for _, d := range p.groups {
				next = min(next, d.group.Wake())
			}
		}
		if next > deadline {
			n.now = deadline
			return false
		}
		n.now = max(n.now, next)
		for _, p := range n.side {
			for _, d := range p.groups {
				if d.group.Wake() <= n.now {
					d.Leave(d.Enter())
				}
			}
		}
		// One event at a time: between the datagrams, others have their turn.
		if f, ok := n.events.Pop(n.now); ok {
			f()
		}
	}
}

// end is a handler that does what the test says; nil functions do nothing.
type end struct {
	driver  *driver
	binding *Binding

	receive  func(e Entry, p *tlp.Packet) bool
	transmit func(e Entry)
	wake     func() time.Duration
	changed  func(e Entry, s link.State)

	arrived   int
	transmits int
}

func (h *end) Receive(e Entry, p *tlp.Packet) bool {
	taken := h.receive == nil || h.receive(e, p)
	if taken {
		h.arrived++
	}
	return taken
}

func (h *end) Transmit(e Entry) {
	h.transmits++
	if h.transmit != nil {
		h.transmit(e)
	}
}

func (h *end) Wake(Entry) time.Duration {
	if h.wake != nil {
		return h.wake()
	}
	return machine.Never
}

func (h *end) LinkChanged(e Entry, s link.State) {
	if h.changed != nil {
		h.changed(e, s)
	}
}

// configs returns the two ends of a binding.
func (n *network) configs(id uint32, cipher link.Cipher) [2]link.Config {
	mtus := slices.Repeat([]int{9000}, len(n.side[0].addrs))
	ends := linktest.Ends(cipher, mtus...)
	for i := range ends {
		ends[i].Binding = id
	}
	return ends
}

func (n *network) attach(d *driver, cfg link.Config, h *end) {
	n.t.Helper()
	n.attachHandler(d, cfg, h, h)
}

// attachHandler attaches a handler that embeds an end.
func (n *network) attachHandler(d *driver, cfg link.Config, h *end, handler Handler) {
	n.t.Helper()
	e := d.Enter()
	defer d.Leave(e)
	b, err := d.group.Attach(e, BindingConfig{Link: cfg, Peers: n.side[1-d.index].addrs, Handler: handler})
	if err != nil {
		n.t.Fatal(err)
	}
	h.driver, h.binding = d, b
	d.bindings[cfg.Binding] = Route[*driver]{Gate: d, Door: b.Door()}
}

// join attaches both ends of a binding, each to a group.
func (n *network) join(groups [2]*driver, cfg [2]link.Config, ends ...*end) {
	n.t.Helper()
	for i, h := range ends {
		n.attach(groups[i], cfg[i], h)
	}
}

// up runs until the links of the ends are up.
func (n *network) up(ends ...*end) {
	n.t.Helper()
	if !n.run(n.now+time.Second, func() bool {
		return !slices.ContainsFunc(ends, func(h *end) bool { return h.binding.link.State() != link.Up })
	}) {
		n.t.Fatal("the links do not come up")
	}
}

// with calls f with the group of the end entered.
func (h *end) with(f func(e Entry)) {
	e := h.driver.Enter()
	f(e)
	h.driver.Leave(e)
}

func write(addr uint64, n int) *tlp.Packet {
	p := &tlp.Packet{Type: tlp.MWr, Data: make([]byte, n)}
	p.SetMemory(addr, n)
	return p
}
