// Package gate holds the launches of the programs that share one GPU until a policy of
// package share permits them. It is the enforcement of the sharing agent, as a machine: the
// GPU's own hardware runs the launches, several at a time, and the programs report their
// ends.
//
// A client of the policy is a share, which has any number of processes. Their launches
// wait in one queue, in the order in which they came, and the policy sees the first one.
package gate

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/meter"
)

// Bounds of a gate's state. The policies bound the clients and the launches in flight.
const (
	MaxProcesses = 64  // of one client
	MaxWaiting   = 128 // launches of one process
	maxDecisions = 1000
	// maxProfiles is the number of functions of one client whose times the gate knows.
	maxProfiles = 1024
	// reportDelay bounds how long before it is told a launch with credit may have started.
	// Programs report after 200 µs; a busy machine is slower.
	reportDelay = time.Millisecond
	// linger is how long a turn waits for launches of its holder. It is longer than the time
	// in which programs report those that a credit let start.
	linger = 500 * time.Microsecond
)

// ProcessID names a process. The caller chooses it, and does not use it again.
type ProcessID uint64

// Launch describes a launch, as a program told it.
type Launch struct {
	ID       uint64 // chosen by the program
	Blocks   int64
	Threads  int64  // of a block
	Kernels  int64  // more than 1 for a graph
	Function uint64 // hash of its name
	Started  bool   // by the client's credit: it waits for no permit
}

// Permit lets a launch of a process start.
type Permit struct {
	Process ProcessID
	Launch  uint64
}

// Eviction is a client whose programs the policy ends.
type Eviction struct {
	Client share.ClientID
	Reason share.Reason
}

// Usage is the work of a process or a client since its start.
type Usage struct {
	Launches uint64
	Busy     time.Duration // of the GPU, as the launches took it
}

// Gate is the machine. Its methods take times that do not go backwards.
type Gate struct {
	device    share.Device
	policy    share.Policy
	creditor  share.Creditor // the policy, or nil: no client has credit
	permits   bool           // the policy withholds permits; otherwise its gate stays open
	clients   []*client      // in the order in which they joined
	byID      map[share.ClientID]*client
	processes map[ProcessID]*process
	now       time.Duration
	readAt    time.Duration
	total     meter.Meter
	out       []Permit
	evicted   []Eviction
	buffer    []share.Decision
	credits   []share.Credit
	changed   []share.ClientID // whose credit has changed
}

type client struct {
	id      share.ClientID
	spec    share.ClientSpec
	held    bool
	memory  int64     // in use
	members int       // processes
	queue   []waiting // the policy knows the first one, if known is set
	known   bool
	flights []flight
	launch  share.LaunchID // the last one that the policy was told
	busy    int            // processes that are in a burst
	inBurst bool
	window  int32
	credit  int32 // of each process
	next    int32 // credit of all, while it is worked out
	refused bool  // the policy has no room
	last    time.Duration
	meter   meter.Meter
	usage   Usage
	profile map[uint64]time.Duration // by function and grid
}

type waiting struct {
	process *process // nil: it ended
	launch  Launch
	since   time.Duration
}

type flight struct {
	id      share.LaunchID
	process *process // nil: it ended
	launch  Launch
	since   time.Duration
}

type process struct {
	id      ProcessID
	client  *client
	waiting int
	busy    bool // it launched since its last Idle
	usage   Usage
	told    time.Duration // of the last Count
	stalled bool          // stopped: its launches wait
	overdue []overdue
}

// openPolicies never withhold a permit: their shares are kept by the hardware.
var openPolicies = []string{"mps", "mig", "streams"}

// Hardware reports whether the hardware keeps the shares of a policy, and no gate.
func Hardware(policy string) bool { return slices.Contains(openPolicies, policy) }

// New returns a gate without clients, with a policy of package share.
func New(d share.Device, policy string) (*Gate, error) {
	info, err := share.Find(policy)
	if err != nil {
		return nil, err
	}
	p, err := info.New(d, share.Settings{Linger: linger})
	if err != nil {
		return nil, err
	}
	g := &Gate{
		device: d, policy: p, permits: !slices.Contains(openPolicies, policy),
		byID: map[share.ClientID]*client{}, processes: map[ProcessID]*process{}, readAt: machine.Never,
	}
	g.creditor, _ = p.(share.Creditor)
	return g, nil
}

func (g *Gate) find(id share.ClientID) *client { return g.byID[id] }

// Join adds a client. It fails if the policy has no room for it.
func (g *Gate) Join(now time.Duration, id share.ClientID, spec share.ClientSpec) error {
	g.now = max(g.now, now)
	if g.find(id) != nil {
		return fmt.Errorf("gate: client %d has joined already", id)
	}
	c := &client{id: id, spec: spec, window: share.MaxInFlight, profile: map[uint64]time.Duration{}}
	g.clients = append(g.clients, c)
	g.byID[id] = c
	if !g.enter(c) {
		g.Leave(now, id)
		return errors.New("the policy of the GPU has no room for another share of this size")
	}
	if g.readAt == machine.Never {
		g.readAt = machine.After(g.now, meter.ReadPeriod)
	}
	return nil
}

// enter makes a client known to the policy, which may refuse it.
func (g *Gate) enter(c *client) bool {
	c.known, c.refused, c.window = false, false, share.MaxInFlight
	for range c.flights {
		g.stop(c)
	}
	c.flights = c.flights[:0]
	g.policy.Receive(g.now, share.Event{Kind: share.Join, Client: c.id, Spec: c.spec})
	g.decide()
	return !c.refused
}

// Leave removes a client without processes.
func (g *Gate) Leave(now time.Duration, id share.ClientID) {
	g.now = max(g.now, now)
	c := g.find(id)
	if c == nil {
		return
	}
	for range c.flights {
		g.stop(c)
	}
	g.withdraw(c, func(waiting) bool { return true })
	delete(g.byID, id)
	g.clients = slices.DeleteFunc(g.clients, func(x *client) bool { return x == c })
	g.evicted = slices.DeleteFunc(g.evicted, func(e Eviction) bool { return e.Client == id })
	g.policy.Receive(g.now, share.Event{Kind: share.Leave, Client: id})
	if len(g.clients) == 0 {
		g.readAt = machine.Never
	}
	g.decide()
}

// Resize changes what a client may use. It returns false, and changes nothing, if the
// policy has no room. The client keeps its usage of the past. Only where the hardware keeps the
// shares, the client is a new one, and its launches in flight count no more.
func (g *Gate) Resize(now time.Duration, id share.ClientID, spec share.ClientSpec) bool {
	g.now = max(g.now, now)
	c := g.find(id)
	if c == nil {
		return false
	}
	if g.permits {
		c.spec = spec
		g.policy.Receive(g.now, share.Event{Kind: share.Resized, Client: id, Spec: spec})
		g.decide()
		return true
	}
	old := c.spec
	ok := g.rejoin(c, spec)
	if !ok {
		g.rejoin(c, old) // its room is free: no other client has joined since
	}
	g.present(c)
	g.decide()
	return ok
}

func (g *Gate) rejoin(c *client, spec share.ClientSpec) bool {
	c.spec = spec
	g.policy.Receive(g.now, share.Event{Kind: share.Leave, Client: c.id})
	return g.enter(c)
}

// Enter adds a process to a client. It fails if the client has MaxProcesses.
func (g *Gate) Enter(now time.Duration, id share.ClientID, p ProcessID) error {
	g.now = max(g.now, now)
	c := g.find(id)
	if c == nil || g.processes[p] != nil {
		return fmt.Errorf("gate: process %d of client %d cannot enter", p, id)
	}
	if c.members >= MaxProcesses {
		return fmt.Errorf("the share has %d processes already", c.members)
	}
	c.members++
	g.processes[p] = &process{id: p, client: c, told: g.now}
	return nil
}

// Exit removes a process with its launches, those in flight too.
func (g *Gate) Exit(now time.Duration, id ProcessID) {
	g.now = max(g.now, now)
	p := g.processes[id]
	if p == nil {
		return
	}
	g.Withdraw(now, id)
	delete(g.processes, id)
	c := p.client
	c.members--
	for i := 0; i < len(c.flights); {
		if c.flights[i].process == p {
			g.complete(c, i, 0)
		} else {
			i++
		}
	}
	g.calm(c)
	g.decide()
}

// Withdraw drops the waiting launches of a process.
func (g *Gate) Withdraw(now time.Duration, id ProcessID) {
	g.now = max(g.now, now)
	p := g.processes[id]
	if p == nil {
		return
	}
	g.withdraw(p.client, func(w waiting) bool { return w.process == p })
	p.waiting = 0
	g.setBusy(p, false)
}

// withdraw drops launches from the queue.
func (g *Gate) withdraw(c *client, which func(waiting) bool) {
	c.queue = slices.DeleteFunc(c.queue, func(w waiting) bool {
		if !which(w) {
			return false
		}
		if w.launch.Started {
			g.stop(c)
		}
		return true
	})
}

// Launch puts a launch into the queue. It returns false if the process is unknown or has
// MaxWaiting launches there.
func (g *Gate) Launch(now time.Duration, id ProcessID, l Launch) bool {
	g.now = max(g.now, now)
	p := g.processes[id]
	if p == nil || p.waiting >= MaxWaiting {
		return false
	}
	g.hear(p)
	p.waiting++
	c := p.client
	c.queue = append(c.queue, waiting{p, l, g.now})
	if l.Started {
		g.begin(c)
	}
	g.setBusy(p, true)
	g.present(c)
	g.decide()
	return true
}

// present tells the policy of the first launch of the queue.
func (g *Gate) present(c *client) {
	first := c.first()
	if c.known || c.held || first < 0 {
		return
	}
	c.known = true
	c.launch++
	k := g.kernel(c, c.queue[first].launch)
	k.First = !c.inBurst
	c.inBurst = true
	g.policy.Receive(g.now, share.Event{Kind: share.Launch, Client: c.id, Launch: c.launch, Kernel: k, Ran: c.queue[first].launch.before()})
}

// kernel describes a launch to the policy. A multiprocessor has room for ThreadsPerSM.
func (g *Gate) kernel(c *client, l Launch) share.Kernel {
	perSM := max(int64(g.device.ThreadsPerSM)/min(max(l.Threads, 1), 1024), 1)
	blocks := max(l.Blocks, 1)
	return share.Kernel{
		Blocks: blocks, SMs: int32(min((blocks-1)/perSM+1, int64(g.device.SMs))), Expected: c.profile[l.key()],
	}
}

// key tells launches apart that take different times: by function and size.
func (l Launch) key() uint64 { return l.Function ^ uint64(l.Blocks)*0x9e3779b97f4a7c15 }

// Done takes the end of a launch. Ran is what the program measured, 0 if it did not. A
// launch that is not in flight is ignored; Done reports whether it was.
func (g *Gate) Done(now time.Duration, id ProcessID, launch uint64, ran time.Duration) bool {
	g.now = max(g.now, now)
	p := g.processes[id]
	if p == nil {
		return false
	}
	g.hear(p)
	c := p.client
	i := slices.IndexFunc(c.flights, func(f flight) bool { return f.process == p && f.launch.ID == launch })
	if i < 0 {
		return g.doneBefore(p, launch, ran) || g.doneLate(p, launch, ran)
	}
	g.complete(c, i, ran)
	g.calm(c)
	g.decide()
	return true
}

// doneBefore takes the end of a launch that started by a credit, which the policy took back
// before it saw the launch. The sensors tell the policy of it.
func (g *Gate) doneBefore(p *process, launch uint64, ran time.Duration) bool {
	c := p.client
	i := slices.IndexFunc(c.queue, func(w waiting) bool { return w.process == p && w.launch.Started && w.launch.ID == launch })
	if i < 0 {
		return false
	}
	w := c.queue[i]
	c.meter.Tell(g.now, min(max(ran, 0), g.now-w.since+reportDelay))
	if ran <= 0 {
		ran = g.now - w.since
	}
	ran = min(ran, g.now-w.since+reportDelay)
	c.queue = slices.Delete(c.queue, i, i+1)
	p.waiting--
	g.stop(c)
	g.count(p, w.launch)
	g.charge(p, w.launch, w.since, ran)
	g.calm(c)
	return true
}

// complete takes a launch out of the flights. A program that measured nothing is charged
// from the permit, or from the end of the launch before.
func (g *Gate) complete(c *client, i int, ran time.Duration) {
	f := c.flights[i]
	most := g.now - f.since + f.launch.before()
	c.meter.Tell(g.now, min(max(ran, 0), most))
	if ran <= 0 {
		ran = g.now - max(f.since, min(c.last, g.now))
	}
	ran = min(ran, most)
	c.flights = slices.Delete(c.flights, i, i+1)
	c.last = g.now
	g.stop(c)
	if f.process != nil {
		g.charge(f.process, f.launch, f.since, ran)
	}
	g.policy.Receive(g.now, share.Event{Kind: share.Completed, Client: c.id, Launch: f.id, Ran: ran})
}

// count counts a launch that starts.
func (g *Gate) count(p *process, l Launch) {
	for _, u := range []*Usage{&p.usage, &p.client.usage} {
		u.Launches += uint64(max(l.Kernels, 1))
	}
}

// before returns how long a launch may have run when the gate was told of it.
func (l Launch) before() time.Duration {
	if l.Started {
		return reportDelay
	}
	return 0
}

// charge adds the time of a launch, which the gate has known since a time, to what its client
// has used.
func (g *Gate) charge(p *process, l Launch, since, ran time.Duration) {
	p.client.note(l, ran)
	g.bill(p, l, since, ran)
}

func (g *Gate) bill(p *process, l Launch, since, ran time.Duration) {
	c := p.client
	p.usage.Busy += ran
	c.usage.Busy += ran
	k := g.kernel(c, l)
	for _, m := range []*meter.Meter{&c.meter, &g.total} {
		m.Ran(g.now, max(ran-(g.now-since), 0))
		m.Serve(g.now, ran*time.Duration(k.SMs)/time.Duration(g.device.SMs))
	}
}

func (c *client) note(l Launch, ran time.Duration) {
	key := l.key()
	old, ok := c.profile[key]
	switch {
	case ok:
		c.profile[key] = old + (ran-old)/4
	case len(c.profile) < maxProfiles:
		c.profile[key] = ran
	}
}

// Idle says that a program waits for its launches. The burst of its client ends when all
// its processes wait and nothing runs.
func (g *Gate) Idle(now time.Duration, id ProcessID) {
	g.now = max(g.now, now)
	p := g.processes[id]
	if p == nil {
		return
	}
	g.hear(p)
	if p.waiting == 0 {
		g.setBusy(p, false)
		g.calm(p.client)
		g.decide()
	}
}

func (g *Gate) setBusy(p *process, busy bool) {
	if p.busy == busy {
		return
	}
	p.busy = busy
	if busy {
		p.client.busy++
	} else {
		p.client.busy--
	}
}

// calm ends the burst of a client if it is over.
func (g *Gate) calm(c *client) {
	if c.inBurst && c.busy == 0 && !c.known && c.first() < 0 && len(c.flights) == 0 {
		c.inBurst = false
		g.policy.Receive(g.now, share.Event{Kind: share.Idle, Client: c.id})
	}
}
