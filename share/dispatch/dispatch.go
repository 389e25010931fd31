// Package dispatch shares the processor of a software GPU between clients, by any
// policy of package share. It is the enforcement behind a policy, as a machine: it
// presents the launches of the clients at the policy's gate, keeps those that wait,
// and decides which permitted launch runs next, part by part.
//
// A launch is a computation in parts of some milliseconds, and one part runs at a
// time. A part at full speed stands for all multiprocessors. A client that may use a
// share of them is held back after each part, until its launch has taken as long as it
// would on these multiprocessors. The parts of other clients run meanwhile, so kernels
// of several clients run side by side, and a kernel takes as long beside others as it
// does alone with its share.
//
// A launch that cannot be cut is one part, see NewUncut.
//
// A client has at most one launch, and one behind it that came while the first one was
// being taken back. So all state is bounded by the number of clients.
package dispatch

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/meter"
)

const (
	// catchUp is how far a client may fall behind its share, while parts of others
	// run, and make up for it. It is some parts long. Over ten seconds it adds half a
	// percent of the share.
	catchUp = 50 * time.Millisecond
	// maxDecisions bounds the exchange with the policy at one instant.
	maxDecisions = 1000
)

// Dispatcher is the machine. Its methods take times that do not go backwards.
type Dispatcher struct {
	device  share.Device
	policy  share.Policy
	clients []*client // in the order in which they joined
	out     *client   // whose part runs, with no other one beside it; it may have left; nil: none
	uncut   bool      // a launch is one part
	rejoins bool      // a client that is resized leaves and joins: the policy gives it another part of the GPU
	limits  bool      // the policy keeps limits
	least   share.PPM // of the multiprocessors that a launch runs on
	now     time.Duration
	virtual time.Duration // service of the client that ran last
	readAt  time.Duration // next reading of the sensors
	total   meter.Meter
	evicted []Eviction
	buffer  []share.Decision
}

// Eviction is a client that the policy ends. It stays until Leave.
type Eviction struct {
	Client share.ClientID
	Reason share.Reason
}

// Turn is one part to run.
type Turn struct {
	Client share.ClientID
	Launch share.LaunchID
	First  bool // the launch begins, for the first time or again

	client *client
}

// client is a client with its launches.
//
//	      Launch           permit           last part          its time is over       Completed
//	idle ---------> waiting -------> running ----------> held ------------------> ended ---------> idle
//	                   ^                |
//	                   +-- preempted ---+
//
// The next launch may come while one has ended; it waits for Completed.
type client struct {
	id      share.ClientID
	spec    share.ClientSpec
	gone    bool
	limit   share.PPM // of the multiprocessors
	launch  share.LaunchID
	state   state
	kernel  share.Kernel  // Expected is the cost by the modelled hardware
	next    *share.Kernel // launch that came while the last one had ended
	known   bool          // the policy knows the launch, which began before a Resize otherwise
	high    bool
	sms     int32 // of the launch; 0: as limit says
	first   bool
	killed  bool          // to begin again after the present part
	ran     time.Duration // of the launch
	follows bool          // it came when the last one ended
	at      time.Duration // when the next part may begin, or the held launch ends
	pace    share.Debt    // for the last part: at is when its share has paid it
	told    time.Duration // until when the policy knows how long the launch waited for others
	served  time.Duration // time for which its parts kept others waiting, by its weight
	began   time.Duration // of the part that runs
	late    bool          // the part runs beside those of others, see late.go
	behind  time.Duration // time for which uncut launches of others kept it waiting, see late.go
	debt    share.Debt    // that its limit pays before the policy may see the next launch, see late.go
	unseen  bool          // the launch waits for that
	inBurst bool
	evicted bool
	profile meter.Profile
	meter   meter.Meter
}

type state uint8

const (
	idle state = iota
	waiting
	running
	held
	ended
)

// New returns a dispatcher without clients. A policy that divides the GPU needs ByName.
func New(d share.Device, p share.Policy) *Dispatcher {
	return &Dispatcher{device: d, policy: p, readAt: machine.Never, least: share.Whole / share.PPM(max(d.SMs, 1))}
}

// ByName returns a dispatcher without clients, with a policy of package share.
func ByName(d share.Device, policy string) (*Dispatcher, error) {
	return byName(New, d, policy)
}

func byName(make func(share.Device, share.Policy) *Dispatcher, d share.Device, policy string) (*Dispatcher, error) {
	info, err := share.Find(policy)
	if err != nil {
		return nil, err
	}
	p, err := info.New(d, share.Settings{})
	if err != nil {
		return nil, err
	}
	out := make(d, p)
	out.rejoins, out.limits = info.Execution == share.Partitions, info.Limits
	return out, nil
}

// Device returns the description of the GPU.
func (d *Dispatcher) Device() share.Device { return d.device }

func (d *Dispatcher) find(id share.ClientID) *client {
	for _, c := range d.clients {
		if c.id == id {
			return c
		}
	}
	return nil
}

// Join adds a client. It fails if the policy has no room for it, or for its memory. A
// software GPU keeps all memory of its clients: a policy that grants more than there is
// does not change that.
func (d *Dispatcher) Join(now time.Duration, id share.ClientID, spec share.ClientSpec) error {
	d.now = max(d.now, now)
	if d.find(id) != nil {
		return fmt.Errorf("dispatch: client %d has joined already", id)
	}
	if spec.Memory < 0 || spec.Memory > d.left() {
		return fmt.Errorf("%d bytes of memory: the GPU has %d bytes left", spec.Memory, d.left())
	}
	c := &client{id: id, spec: spec, limit: share.Whole, served: d.virtual}
	d.clients = append(d.clients, c)
	granted := d.enter(c)
	if d.readAt == machine.Never {
		d.readAt = machine.After(d.now, meter.ReadPeriod)
	}
	switch {
	case c.evicted:
		d.Leave(now, id)
		return errors.New("the policy of the GPU has no room for another slice")
	case !granted:
		d.Leave(now, id)
		return fmt.Errorf("the policy of the GPU refuses a slice of %d bytes", spec.Memory)
	}
	return nil
}

// Leave removes a client with its launches. A part of it that runs goes on until Ran.
func (d *Dispatcher) Leave(now time.Duration, id share.ClientID) {
	d.now = max(d.now, now)
	c := d.find(id)
	if c == nil {
		return
	}
	if c.state == running || c.state == held {
		d.stop(c)
	}
	c.gone = true
	d.clients = slices.DeleteFunc(d.clients, func(x *client) bool { return x == c })
	d.evicted = slices.DeleteFunc(d.evicted, func(e Eviction) bool { return e.Client == id })
	d.policy.Receive(now, share.Event{Kind: share.Leave, Client: id})
	if len(d.clients) == 0 {
		d.readAt = machine.Never
	}
	d.decide(nil)
}

// enter makes a client and its memory known to the policy.
func (d *Dispatcher) enter(c *client) bool {
	d.policy.Receive(d.now, share.Event{Kind: share.Join, Client: c.id, Spec: c.spec})
	return d.allocate(c, c.spec.Memory)
}

// allocate asks the policy for memory of a client, if that is more than none. It reports whether
// the client has it.
func (d *Dispatcher) allocate(c *client, bytes int64) bool {
	granted := bytes <= 0
	if !granted {
		d.policy.Receive(d.now, share.Event{Kind: share.Allocate, Client: c.id, Bytes: bytes})
	}
	d.decide(func(x share.Decision) {
		granted = granted || x.Kind == share.Grant && x.Client == c.id
	})
	return granted && !c.evicted
}

// left returns the memory that no client has.
func (d *Dispatcher) left() int64 {
	left := d.device.Memory
	for _, c := range d.clients {
		left -= c.spec.Memory
	}
	return left
}

// Launch presents the next launch of a client. It returns false for a client that has
// one, or that is unknown.
func (d *Dispatcher) Launch(now time.Duration, id share.ClientID, k share.Kernel) (share.LaunchID, bool) {
	d.now = max(d.now, now)
	c := d.find(id)
	if c == nil || c.next != nil {
		return 0, false
	}
	switch c.state {
	case idle:
		d.present(c, k)
		d.decide(nil)
		return c.launch, true
	case ended:
		c.next = &k
		return c.launch + 1, true
	case waiting, running, held:
	}
	return 0, false
}

func (d *Dispatcher) present(c *client, k share.Kernel) {
	c.launch++
	c.state, c.kernel, c.known, c.follows = waiting, k, true, c.inBurst
	if d.postpone(c) {
		return
	}
	k.First = !c.inBurst
	k.Expected = c.profile.Expect(k.Expected)
	c.inBurst = true
	d.policy.Receive(d.now, share.Event{Kind: share.Launch, Client: c.id, Launch: c.launch, Kernel: k})
}

// Ended appends the clients whose launches end now. The caller takes each back and then
// calls Completed.
func (d *Dispatcher) Ended(now time.Duration, out []share.ClientID) []share.ClientID {
	d.now = max(d.now, now)
	for _, c := range d.clients {
		if c.state == held && c.at <= d.now {
			c.state = ended
			d.stop(c)
			out = append(out, c.id)
		}
	}
	return out
}

// Completed says that the launch of a client has been taken back. The next one may have
// come before: otherwise the burst is over.
func (d *Dispatcher) Completed(now time.Duration, id share.ClientID) {
	d.now = max(d.now, now)
	c := d.find(id)
	if c == nil || c.state != ended {
		return
	}
	done := share.Event{Kind: share.Completed, Client: id, Launch: c.launch, Ran: c.ran}
	known := c.known
	c.state = idle
	if c.next != nil {
		d.present(c, *c.next) // before the end of the last one: the client is not idle
		c.next = nil
	}
	if known {
		d.policy.Receive(now, done)
	}
	if c.state == idle {
		c.inBurst = false
		d.policy.Receive(now, share.Event{Kind: share.Idle, Client: id})
	}
	d.decide(nil)
}

// Next returns the part that is to run now. The caller runs it and calls Ran.
func (d *Dispatcher) Next(now time.Duration) (Turn, bool) {
	d.now = max(d.now, now)
	d.read()
	d.checkLate()
	d.checkPaid()
	d.decide(nil)
	if d.out != nil {
		return Turn{}, false
	}
	var best *client
	for _, c := range d.clients {
		if c.state == running && !c.late && c.at <= d.now && (best == nil || c.before(best)) {
			best = c
		}
	}
	if best == nil {
		return Turn{}, false
	}
	d.tellWaited(best)
	d.out, best.began = best, d.now
	best.debt.Begin(d.now)
	t := Turn{Client: best.id, Launch: best.launch, First: best.first, client: best}
	best.first = false
	return t, true
}

// tellWaited tells the policy for how long a launch might have run and others did.
func (d *Dispatcher) tellWaited(c *client) {
	from := max(c.at, c.told)
	if c.state != running || !c.known || d.out == c || from >= d.now {
		return
	}
	c.told = d.now
	c.wait(d, d.now-from)
	d.policy.Receive(d.now, share.Event{Kind: share.Waited, Client: c.id, Launch: c.launch, Ran: d.now - from})
}

// before says which of two clients goes first: the one with a launch of high priority,
// then the one that got less service.
func (c *client) before(o *client) bool {
	if c.high != o.high {
		return c.high
	}
	return c.served < o.served
}

// Ran reports the end of a part that Next returned, and the time that it took. More
// says that the launch has further parts.
func (d *Dispatcher) Ran(now time.Duration, t Turn, took time.Duration, more bool) {
	d.now = max(d.now, now)
	c := t.client
	if c == nil || c != d.out && !c.late {
		return
	}
	took = min(max(took, 0), d.now)
	long := stretch(took, c.share(d))
	began, until := max(c.at, d.now-took-catchUp-c.behind), machine.Never
	if d.uncut {
		until = machine.After(d.now, maxDebt)
	}
	c.at = c.paced(d, began, took, until)
	c.behind = min(c.behind, max(d.now-c.at, 0))
	if from := max(c.served, d.virtual); c == d.out {
		c.served = from + stretch(max(took, d.now-c.began), c.weight(d))
		d.virtual = from
		d.out = nil
	} else {
		c.served = min(from+stretch(took, c.weight(d)), machine.After(from, maxDebt))
	}
	d.owe(c, took)
	c.late = false
	c.ran += took
	c.told = d.now
	c.meter.Serve(d.now, took)
	c.meter.Tell(d.now, long)
	d.total.Serve(d.now, took)
	if c.gone {
		return
	}
	switch {
	case !more:
		c.state, c.killed = held, false
		c.profile.Note(c.kernel.Expected, c.ran)
	case c.killed:
		d.again(c)
	}
	d.decide(nil)
}

// again returns a preempted launch to the gate. It will begin from its first part.
func (d *Dispatcher) again(c *client) {
	c.killed = false
	d.stop(c)
	if c.known {
		d.policy.Receive(d.now, share.Event{Kind: share.Killed, Client: c.id, Launch: c.launch})
	}
	d.present(c, c.kernel)
}

// Evicted returns the clients that the policy has ended since the last call.
func (d *Dispatcher) Evicted() []Eviction {
	out := d.evicted
	d.evicted = nil
	return out
}

// Wake returns when Next is due without other calls, or machine.Never.
func (d *Dispatcher) Wake() time.Duration {
	at := min(d.policy.Wake(), d.readAt, d.lateAt())
	for _, c := range d.clients {
		switch {
		case c.state == held || c.state == running && d.out == nil && !c.late:
			at = min(at, c.at)
		case c.unseen:
			at = min(at, c.paidAt())
		}
	}
	return at
}

// Violations returns the number of events that the policy found wrong.
func (d *Dispatcher) Violations() uint64 { return d.policy.Violations() }

// decide carries the decisions of the policy out until there are none. See, if not
// nil, sees them first.
func (d *Dispatcher) decide(see func(share.Decision)) {
	for range maxDecisions {
		d.buffer = d.policy.Transmit(d.now, d.buffer[:0])
		if len(d.buffer) == 0 {
			return
		}
		for _, x := range d.buffer {
			if see != nil {
				see(x)
			}
			if c := d.find(x.Client); c != nil {
				d.apply(c, x)
			}
		}
	}
}

func (d *Dispatcher) apply(c *client, x share.Decision) {
	switch x.Kind {
	case share.Permit:
		if c.state == waiting && c.launch == x.Launch {
			c.state, c.high, c.sms, c.first, c.ran = running, x.High, x.SMs, true, 0
			c.told = d.now
			if !c.follows {
				c.at = max(c.at, d.now)
			}
			d.begin(c)
		}
	case share.SetShare:
		c.rescale(d, x.Share)
	case share.Preempt:
		switch {
		case c.state != running || c.late:
		case d.out == c:
			c.killed = true
		default:
			d.again(c)
		}
	case share.Evict:
		if !c.evicted {
			c.evicted = true
			d.evicted = append(d.evicted, Eviction{c.id, x.Reason})
		}
	default: // windows, rates and holds: the policy keeps them by its permits. Memory: see Join
	}
}
