package share

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// StuckAfter is how long a launch may run until its client is evicted, without the time for
// which it waited for others (Waited). It is above the longest kernels of training, which take
// seconds.
const StuckAfter = time.Minute

// core is the part that policies have in common: the table of clients, the check of
// events, the account of memory, and evictions. S is the policy's state of a client.
//
// Invariant: a client has at most one waiting launch and MaxInFlight flights, and its
// memory is at most its limit, unless a resize has lowered that; all clients together have
// at most the device's memory, unless the policy over-commits.
type core[S any] struct {
	device     Device
	now        time.Duration
	clients    []*client[S] // in the order in which they joined
	violations uint64
	memory     int64         // granted to all clients
	overCommit int64         // memory beyond the device's that the policy grants
	refused    []ClientID    // joined while the table was full, at most MaxClients
	turns      uint64        // joins and turns so far
	heads      int           // clients with a waiting launch
	due        bool          // begin may have something to decide
	stuck      time.Duration // until then no launch runs for too long
}

// flight is a launch that waits or runs.
type flight struct {
	id     LaunchID
	since  time.Duration // when it came to the gate; when it was permitted
	waited time.Duration // since then, for others
	before time.Duration // ran at most so long before it was permitted, by a credit
	kernel Kernel
}

// stuckAt returns when the launch will have run too long.
func (f *flight) stuckAt() time.Duration { return machine.After(f.since+f.waited, StuckAfter) }

type client[S any] struct {
	id      ClientID
	spec    ClientSpec
	waiting bool
	head    flight   // valid while waiting
	flights []flight // permitted, in that order
	memory  int64
	request int64 // memory that the client asked for and that is not yet decided; 0: none
	evict   Reason
	told    bool          // the eviction was given out
	leaving bool          // asked to leave: evicted when nothing runs
	turn    uint64        // number of its last turn, or of its join
	ended   time.Duration // its last launch
	state   S
}

func (k *core[S]) clock(now time.Duration) time.Duration {
	k.now = max(k.now, now)
	return k.now
}

// Violations implements Policy.
func (k *core[S]) Violations() uint64 { return k.violations }

func (k *core[S]) find(id ClientID) *client[S] {
	for _, c := range k.clients {
		if c.id == id {
			return c
		}
	}
	return nil
}

// receive checks an event, puts its values in range, and applies it to the table. It
// returns the client, or nil if the policy is to ignore the event. After a Leave the
// returned client is no longer in the table.
func (k *core[S]) receive(now time.Duration, e *Event) *client[S] {
	k.clock(now)
	if e.Kind == Join {
		return k.join(e)
	}
	c := k.find(e.Client)
	if c == nil {
		if e.Kind != Sampled && e.Kind != Failed || e.Client != 0 {
			k.violations++
		}
		return nil
	}
	if !k.apply(c, e) {
		k.violations++
		return nil
	}
	return c
}

func (k *core[S]) join(e *Event) *client[S] {
	if k.find(e.Client) != nil || e.Client == 0 {
		k.violations++
		return nil
	}
	if len(k.clients) >= MaxClients {
		if len(k.refused) < MaxClients && !slices.Contains(k.refused, e.Client) {
			k.refused, k.due = append(k.refused, e.Client), true
		}
		return nil
	}
	c := &client[S]{id: e.Client, spec: e.Spec.clamp(k.device)}
	k.take(c)
	k.clients = append(k.clients, c)
	return c
}

// apply changes the account of a client. It reports whether the event fits.
func (k *core[S]) apply(c *client[S], e *Event) bool {
	switch e.Kind {
	case Leave:
		k.clients = slices.DeleteFunc(k.clients, func(x *client[S]) bool { return x == c })
		k.memory -= c.memory
		k.behead(c)
	case Launch:
		if c.waiting {
			return false
		}
		e.Kernel = e.Kernel.clamp(k.device)
		k.heads++
		c.waiting, c.head = true, flight{id: e.Launch, since: k.now, before: min(max(e.Ran, 0), maxBefore), kernel: e.Kernel}
	case Resized:
		e.Spec.Class = c.spec.Class
		c.spec = e.Spec.clamp(k.device)
	case Completed, Killed:
		return k.end(c, e)
	case Waited:
		return k.wait(c, e)
	case Idle:
		return !c.waiting && len(c.flights) == 0
	case Allocate:
		if e.Bytes <= 0 || c.request != 0 {
			return false
		}
		c.request, k.due = e.Bytes, true
	case Free:
		if e.Bytes <= 0 || e.Bytes > c.memory {
			return false
		}
		c.memory -= e.Bytes
		k.memory -= e.Bytes
	case Sampled:
		e.Sample = e.Sample.clamp(k.device)
	case Failed:
		return k.fail(c, e)
	default:
		return false
	}
	return true
}

// maxBefore bounds how long before its event a launch with credit may have started.
const maxBefore = 10 * time.Millisecond

// end takes a launch out of the flights. The time that a client reports cannot be
// longer than the launch has been in flight.
func (k *core[S]) end(c *client[S], e *Event) bool {
	i := slices.IndexFunc(c.flights, func(f flight) bool { return f.id == e.Launch })
	if i < 0 {
		return false
	}
	f := c.flights[i]
	e.Kernel, e.Ran = f.kernel, min(max(e.Ran, 0), k.now-f.since+f.before)
	c.flights = append(c.flights[:i], c.flights[i+1:]...)
	c.ended = k.now
	if len(c.flights) > 0 {
		k.stuck = min(k.stuck, c.flights[0].stuckAt()) // it may have waited less than the one before it
	}
	k.due = k.due || c.leaving
	if e.Kind == Killed {
		k.behead(c)
	}
	return true
}

// behead drops the waiting launch of a client, or lets it go.
func (k *core[S]) behead(c *client[S]) {
	if c.waiting {
		c.waiting = false
		k.heads--
	}
}

// wait notes that a launch waited: that time does not make it stuck.
func (k *core[S]) wait(c *client[S], e *Event) bool {
	i := slices.IndexFunc(c.flights, func(f flight) bool { return f.id == e.Launch })
	if i < 0 || e.Ran < 0 {
		return false
	}
	f := &c.flights[i]
	f.waited = min(f.waited+min(e.Ran, k.now), k.now-f.since)
	return true
}

func (k *core[S]) fail(c *client[S], e *Event) bool {
	switch e.Fault {
	case FaultTerminate:
		c.leaving, k.due = true, true
	case FaultClient:
		k.evictFor(c, ReasonFault)
	case FaultContext, FaultDevice, FaultCleared:
	default:
		return false
	}
	return true
}

func (k *core[S]) evictFor(c *client[S], r Reason) {
	if c.evict == NoReason {
		c.evict, k.due = r, true
	}
}

// begin appends the decisions that do not depend on the policy: refusals, evictions and
// memory. Most calls have none: they look at no client.
func (k *core[S]) begin(now time.Duration, out []Decision) []Decision {
	if k.clock(now); !k.due && k.now < k.stuck {
		return out
	}
	for _, id := range k.refused {
		out = append(out, Decision{Kind: Evict, Client: id, Reason: ReasonFull})
	}
	k.refused, k.stuck = k.refused[:0], machine.Never
	for _, c := range k.clients {
		if len(c.flights) > 0 && c.evict == NoReason {
			at := c.flights[0].stuckAt()
			if k.now >= at {
				k.evictFor(c, ReasonStuck)
			} else {
				k.stuck = min(k.stuck, at)
			}
		}
		if c.leaving && len(c.flights) == 0 {
			k.evictFor(c, ReasonLeaves)
		}
		if c.evict != NoReason && !c.told {
			c.told = true
			out = append(out, Decision{Kind: Evict, Client: c.id, Reason: c.evict})
		}
		if c.request != 0 {
			out = append(out, k.decideMemory(c))
		}
	}
	k.due = false
	return out
}

// decideMemory grants what fits the client's limit and the device, to the byte.
func (k *core[S]) decideMemory(c *client[S]) Decision {
	d := Decision{Kind: Refuse, Client: c.id, Bytes: c.request}
	if c.evict == NoReason && c.request <= c.spec.Memory-c.memory && c.request <= k.left(c) {
		c.memory += c.request
		k.memory += c.request
		d.Kind = Grant
	}
	c.request = 0
	return d
}

// left returns the memory that a client may be granted beyond what all have. Online clients
// get none that was over-committed: theirs stays on the GPU.
func (k *core[S]) left(c *client[S]) int64 {
	left := k.device.Memory + k.overCommit - k.memory
	if k.overCommit > 0 && c.spec.Class == Online {
		left = min(left, k.beside())
	}
	return left
}

// beside returns the memory of the device that online clients leave.
func (k *core[S]) beside() int64 {
	free := k.device.Memory
	for _, c := range k.clients {
		if c.spec.Class == Online {
			free -= c.memory
		}
	}
	return free
}

// ready reports whether the client has a launch that may be permitted.
func (c *client[S]) ready() bool {
	return c.waiting && len(c.flights) < MaxInFlight && c.evict == NoReason && !c.leaving
}

// busy reports whether the client has work that waits or runs.
func (c *client[S]) busy() bool { return c.ready() || len(c.flights) > 0 }

// requestGap is how long a request may have no launch until it is taken as over: a program
// that asks again and again whether its launches have ended never waits for them. Ours.
const requestGap = 20 * time.Millisecond

// gapEnds returns when a request of the client is over without a word of it: machine.Never
// while a launch of it waits or runs.
func (c *client[S]) gapEnds() time.Duration {
	if c.waiting || len(c.flights) > 0 {
		return machine.Never
	}
	return machine.After(c.ended, requestGap)
}

// permit lets the waiting launch start. The client must be ready.
func (k *core[S]) permit(c *client[S], out []Decision, high bool, sms int32) []Decision {
	f := c.head
	f.since = k.now
	k.behead(c)
	c.flights = append(c.flights, f)
	k.stuck = min(k.stuck, c.flights[0].stuckAt())
	return append(out, Decision{Kind: Permit, Client: c.id, Launch: f.id, High: high, SMs: sms})
}

// wake returns when the core needs a Transmit of its own.
func (k *core[S]) wake() time.Duration {
	at := machine.Never
	for _, c := range k.clients {
		if len(c.flights) > 0 && c.evict == NoReason {
			at = min(at, c.flights[0].stuckAt())
		}
	}
	return at
}

// take notes that a client has its turn: all others come before it.
func (k *core[S]) take(c *client[S]) {
	k.turns++
	c.turn = k.turns
}

// first returns the one of two clients that had its turn longer ago, or joined then: clients
// that join keep none waiting that was there before. The first may be nil.
func first[S any](a, b *client[S]) *client[S] {
	if a == nil || b.turn < a.turn {
		return b
	}
	return a
}
