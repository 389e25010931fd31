package share_test

import (
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/share"
)

// checker is an enforcement that checks each decision of a policy against what it
// announced. Its clients may do anything.
type checker struct {
	t       testing.TB
	device  share.Device
	policy  share.Policy
	now     time.Duration
	clients map[share.ClientID]*checked
	memory  int64
	out     []share.Decision
	trail   []share.Decision // all decisions
	over    int64            // memory that the policy may over-commit
	credits map[share.ClientID]int32
	owed    share.ClientID // has to get its permit now; 0: none
	used    int            // launches with a credit
}

type checked struct {
	spec    share.ClientSpec
	waiting share.LaunchID // 0: none
	next    share.LaunchID
	flights map[share.LaunchID]time.Duration // since
	longest time.Duration                    // that a launch ran
	asked   int64
	memory  int64
	evicted bool
	held    bool
	stays   int64 // of the memory, on the GPU
}

func newChecker(t testing.TB, name string, d share.Device) *checker {
	t.Helper()
	info, err := share.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	p, err := info.New(d, share.Settings{})
	if err != nil {
		t.Fatal(err)
	}
	c := &checker{t: t, device: d, policy: p, clients: map[share.ClientID]*checked{}, credits: map[share.ClientID]int32{}}
	if name == "tgs" || name == "antman" {
		c.over = d.Memory
	}
	return c
}

func (c *checker) receive(e share.Event) { c.policy.Receive(c.now, e) }

func (c *checker) join(id share.ClientID, s share.ClientSpec) {
	if c.clients[id] == nil && id != 0 {
		if s.Memory <= 0 || s.Memory > c.device.Memory {
			s.Memory = c.device.Memory
		}
		c.clients[id] = &checked{spec: s, flights: map[share.LaunchID]time.Duration{}}
	}
	c.receive(share.Event{Kind: share.Join, Client: id, Spec: s})
}

func (c *checker) leave(id share.ClientID) {
	if k := c.clients[id]; k != nil {
		c.memory -= k.memory
		delete(c.clients, id)
	}
	c.receive(share.Event{Kind: share.Leave, Client: id})
}

func (c *checker) resize(id share.ClientID, s share.ClientSpec) {
	if x := c.clients[id]; x != nil {
		if s.Memory <= 0 || s.Memory > c.device.Memory {
			s.Memory = c.device.Memory
		}
		s.Class = x.spec.Class
		x.spec = s
	}
	c.receive(share.Event{Kind: share.Resized, Client: id, Spec: s})
}

// launch announces the next launch, if none waits.
func (c *checker) launch(id share.ClientID, k share.Kernel) {
	x := c.clients[id]
	if x == nil || x.waiting != 0 {
		return
	}
	x.next++
	x.waiting = x.next
	c.owed = 0
	if int(c.credits[id]) > len(x.flights) && k.Expected <= x.longest {
		c.owed = id
	}
	c.receive(share.Event{Kind: share.Launch, Client: id, Launch: x.waiting, Kernel: k})
}

func (c *checker) allocate(id share.ClientID, n int64) {
	x := c.clients[id]
	if x != nil && x.asked == 0 && n > 0 {
		x.asked = n
	}
	c.receive(share.Event{Kind: share.Allocate, Client: id, Bytes: n})
}

func (c *checker) free(id share.ClientID, n int64) {
	if x := c.clients[id]; x != nil && n > 0 && n <= x.memory {
		x.memory -= n
		c.memory -= n
	}
	c.receive(share.Event{Kind: share.Free, Client: id, Bytes: n})
}

// oldest returns the lowest launch in flight, 0 if there is none.
func (x *checked) oldest() (id share.LaunchID) {
	for l := range x.flights {
		if id == 0 || l < id {
			id = l
		}
	}
	return id
}

func (c *checker) complete(id share.ClientID, ran time.Duration) {
	x := c.clients[id]
	if x == nil || len(x.flights) == 0 {
		return
	}
	l := x.oldest()
	x.longest = max(x.longest, min(ran, c.now-x.flights[l]))
	delete(x.flights, l)
	c.receive(share.Event{Kind: share.Completed, Client: id, Launch: l, Ran: ran})
	if len(x.flights) == 0 && x.waiting == 0 {
		c.receive(share.Event{Kind: share.Idle, Client: id})
	}
}

// decide takes and checks the decisions that are due.
func (c *checker) decide() {
	c.t.Helper()
	for round := 0; ; round++ {
		if round > 2*share.MaxClients*share.MaxInFlight {
			c.t.Fatal("the decisions of one instant do not end")
		}
		c.out = c.policy.Transmit(c.now, c.out[:0])
		c.trail = append(c.trail, c.out...)
		if len(c.out) == 0 {
			break
		}
		for _, d := range c.out {
			c.check(d)
		}
	}
	if at := c.policy.Wake(); at <= c.now {
		c.t.Fatalf("at %v, nothing to decide, but Wake is %v", c.now, at)
	}
	c.resident()
	c.credit()
}

// resident checks that the memory that stays on the GPU fits there: that of online clients does.
func (c *checker) resident() {
	c.t.Helper()
	if c.over == 0 {
		return
	}
	n := int64(0)
	for _, x := range c.clients {
		if x.spec.Class == share.Online {
			n += x.memory
		} else {
			n += min(x.stays, x.memory)
		}
	}
	if n > c.device.Memory {
		c.t.Fatalf("%d bytes stay on a GPU of %d", n, c.device.Memory)
	}
}

// credit checks that the last launch with a credit got its permit, and takes the new ones.
func (c *checker) credit() {
	c.t.Helper()
	if x := c.clients[c.owed]; c.owed != 0 && x != nil {
		c.used++
		if x.waiting != 0 {
			c.t.Fatalf("a launch of client %d waits beside %d in flight, with a credit of %d", c.owed, len(x.flights), c.credits[c.owed])
		}
	}
	c.owed = 0
	clear(c.credits)
	p, ok := c.policy.(share.Creditor)
	if !ok {
		return
	}
	for _, x := range p.Credits(nil) {
		if k := c.clients[x.Client]; k == nil || k.evicted || c.credits[x.Client] != 0 || x.Launches < 1 || x.Launches > share.MaxInFlight {
			c.t.Fatalf("credit %+v", x)
		}
		c.credits[x.Client] = x.Launches
	}
}

func (c *checker) check(d share.Decision) {
	c.t.Helper()
	x := c.clients[d.Client]
	if x == nil {
		if d.Kind == share.Evict && d.Reason == share.ReasonFull || d.Kind == share.Reset || d.Client == 0 {
			return
		}
		c.t.Fatalf("%v for client %d, which is not there", d.Kind, d.Client)
	}
	switch d.Kind {
	case share.Permit:
		if x.waiting == 0 || x.waiting != d.Launch {
			c.t.Fatalf("permit of launch %d of client %d, but %d waits", d.Launch, d.Client, x.waiting)
		}
		if x.evicted {
			c.t.Fatalf("permit for client %d, which is evicted", d.Client)
		}
		if x.held {
			c.t.Fatalf("permit for client %d, which is held", d.Client)
		}
		if d.SMs < 0 || d.SMs > c.device.SMs {
			c.t.Fatalf("permit on %d multiprocessors", d.SMs)
		}
		x.waiting = 0
		if x.flights[d.Launch] = c.now; len(x.flights) > share.MaxInFlight {
			c.t.Fatalf("client %d has %d launches in flight", d.Client, len(x.flights))
		}
	case share.SetShare:
		if d.Share <= 0 || d.Share > share.Whole {
			c.t.Fatalf("share of %d ppm", d.Share)
		}
	case share.Grant:
		x.memory += d.Bytes
		c.memory += d.Bytes
		if d.Bytes != x.asked || x.memory > x.spec.Memory || c.memory > c.device.Memory+c.over {
			c.t.Fatalf("granted %d of %d bytes: client %d has %d of %d, all have %d", d.Bytes, x.asked, d.Client, x.memory, x.spec.Memory, c.memory)
		}
		x.asked = 0
	case share.Refuse:
		x.asked = 0
	case share.Evict:
		if x.evicted {
			c.t.Fatalf("client %d is evicted twice", d.Client)
		}
		x.evicted = true
	case share.Preempt:
		for len(x.flights) > 0 {
			l := x.oldest()
			delete(x.flights, l)
			x.waiting = 0
			c.receive(share.Event{Kind: share.Killed, Client: d.Client, Launch: l})
		}
	case share.SetMemory:
		if d.Bytes < 0 || d.Bytes > x.memory {
			c.t.Fatalf("%d bytes stay on the GPU of %d that client %d has", d.Bytes, x.memory, d.Client)
		}
		x.stays = d.Bytes
	case share.Hold, share.Resume:
		if x.held == (d.Kind == share.Hold) {
			c.t.Fatalf("%v of client %d twice", d.Kind, d.Client)
		}
		x.held = !x.held
	default:
	}
}

// pass lets the time pass to at, with the policy's wake-ups.
func (c *checker) pass(at time.Duration) {
	c.t.Helper()
	for steps := 0; ; steps++ {
		w := max(c.policy.Wake(), c.now)
		if w > at || w == machine.Never {
			break
		}
		if steps > 100_000 {
			c.t.Fatalf("too many wake-ups until %v", at)
		}
		c.now = w
		c.decide()
	}
	c.now = at
	c.receive(share.Event{Kind: share.Sampled, Sample: share.Sample{Clock: share.Whole, Temperature: 50}})
	c.decide()
}

// warm lets two seconds pass with readings of the sensors, for policies that wait for them.
func (c *checker) warm() {
	for range 20 {
		c.pass(c.now + 100*time.Millisecond)
	}
}

// drive feeds a policy with the events that data describes, 12 bytes each: honest ones
// and others.
func drive(t testing.TB, name string, data []byte) []share.Decision {
	c := newChecker(t, name, share.Device{SMs: 8, ThreadsPerSM: 1024, Memory: 1000})
	for ; len(data) >= 12; data = data[12:] {
		id := share.ClientID(data[1] % 8)
		n := int64(int32(binary.LittleEndian.Uint32(data[4:])))
		m := int64(int32(binary.LittleEndian.Uint32(data[8:])))
		c.event(data[0]%16, id, data[2], data[3], n, m)
		c.decide()
	}
	return c.trail
}

func (c *checker) event(kind uint8, id share.ClientID, a, b byte, n, m int64) {
	switch kind {
	case 0, 1:
		c.join(id, share.ClientSpec{Class: share.Class(a % 3), Request: share.PPM(n), Limit: share.PPM(m), Memory: int64(b) * 8, Weight: int32(n)})
	case 2:
		c.leave(id)
	case 3, 4, 5:
		c.launch(id, share.Kernel{
			Blocks: n, SMs: int32(m), Bound: share.Bound(a), First: b&1 != 0, Update: b&2 != 0,
			Expected: time.Duration(m) * time.Microsecond, Remaining: time.Duration(n) * time.Microsecond,
		})
	case 6, 7:
		c.complete(id, time.Duration(n))
	case 8:
		c.allocate(id, m%1200)
	case 9:
		c.free(id, m%1200)
	case 10:
		c.receive(share.Event{Kind: share.Sampled, Client: id, Sample: share.Sample{
			Utilisation: share.PPM(n), SMActivity: share.PPM(m), Memory: n, Clock: share.PPM(m), Temperature: int32(n),
		}})
	case 11:
		c.receive(share.Event{Kind: share.Failed, Client: id, Fault: share.Fault(a % 8)})
	case 12: // a liar: a launch that does not run, a burst that has not ended, no kind at all
		c.receive(share.Event{Kind: share.EventKind(max(a, 1)), Client: 9, Launch: share.LaunchID(n)})
		if x := c.clients[id]; x != nil && x.flights[share.LaunchID(n)] == 0 && share.LaunchID(n) != x.waiting {
			if _, runs := x.flights[share.LaunchID(n)]; !runs {
				c.receive(share.Event{Kind: share.Completed, Client: id, Launch: share.LaunchID(n), Ran: time.Duration(m)})
			}
		}
	case 13:
		if a&1 != 0 {
			c.resize(id, share.ClientSpec{Class: share.Class(b % 3), Request: share.PPM(m), Limit: share.PPM(n), Memory: int64(a) * 8})
			return
		}
		c.policy.Receive(c.now-time.Second, share.Event{Kind: share.Sampled})
	default:
		c.pass(c.now + time.Duration(uint32(n))%(200*time.Millisecond))
	}
}

// text describes decisions, to compare two runs.
func text(list []share.Decision) string { return fmt.Sprintf("%+v", list) }
