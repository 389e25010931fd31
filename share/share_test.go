package share_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// Random events, most of them plausible, never make a policy break its interface, and
// the same events give the same decisions.
func TestPoliciesKeepTheInterface(t *testing.T) {
	for _, p := range share.Policies() {
		t.Run(p.Name, func(t *testing.T) {
			for seed := range uint64(20) {
				rng := rand.New(rand.NewPCG(seed, 1))
				data := make([]byte, 12*400)
				for i := range data {
					data[i] = byte(rng.Uint32())
				}
				if a, b := drive(t, p.Name, data), drive(t, p.Name, data); text(a) != text(b) {
					t.Fatalf("seed %d: two runs differ", seed)
				}
			}
		})
	}
}

// Every policy serves every client that waits alone on the GPU, whatever its class.
func TestPoliciesServeALoneClient(t *testing.T) {
	for _, p := range share.Policies() {
		for _, class := range []share.Class{share.Online, share.Offline} {
			t.Run(p.Name+" "+class.String(), func(t *testing.T) {
				c := newChecker(t, p.Name, share.A100)
				c.join(1, share.ClientSpec{Class: class})
				c.warm()
				served := 0
				for range 1000 {
					c.launch(1, share.Kernel{Blocks: 1000, SMs: 50, Expected: 100 * time.Microsecond, First: true})
					c.pass(c.now + 100*time.Microsecond)
					if len(c.clients[1].flights) > 0 {
						served++
						c.complete(1, 100*time.Microsecond)
					}
				}
				if served < 900 {
					t.Errorf("%d of 1000 launches were served", served)
				}
			})
		}
	}
}

func TestEventsThatDoNotFitAreCounted(t *testing.T) {
	for _, p := range share.Policies() {
		t.Run(p.Name, func(t *testing.T) {
			c := newChecker(t, p.Name, share.A100)
			c.join(1, share.ClientSpec{})
			for i, e := range []share.Event{
				{Kind: share.Join, Client: 1},
				{Kind: share.Join, Client: 0},
				{Kind: share.Launch, Client: 7},
				{Kind: share.Completed, Client: 1, Launch: 5},
				{Kind: share.Killed, Client: 1, Launch: 5},
				{Kind: share.Allocate, Client: 1, Bytes: -1},
				{Kind: share.Allocate, Client: 1},
				{Kind: share.Free, Client: 1, Bytes: 1},
				{Kind: share.Failed, Client: 1, Fault: 99},
				{Kind: 99, Client: 1},
			} {
				c.receive(e)
				if got := c.policy.Violations(); got != uint64(i+1) {
					t.Errorf("%d violations after event %d: %v", got, i, e.Kind)
				}
			}
			c.launch(1, share.Kernel{})
			c.receive(share.Event{Kind: share.Launch, Client: 1, Launch: 99})
			c.receive(share.Event{Kind: share.Idle, Client: 1})
			if got := c.policy.Violations(); got != 12 {
				t.Errorf("%d violations, want those of a second waiting launch and of a burst that has not ended", got)
			}
		})
	}
}

// A client that never completes a launch is evicted, and the others go on.
func TestStuckClientIsEvicted(t *testing.T) {
	for _, p := range share.Policies() {
		t.Run(p.Name, func(t *testing.T) {
			c := newChecker(t, p.Name, share.A100)
			c.join(1, share.ClientSpec{Class: share.Offline})
			c.warm()
			c.launch(1, share.Kernel{Blocks: 1})
			c.pass(c.now + 2*time.Second)
			if len(c.clients[1].flights) != 1 {
				t.Fatal("the launch was not permitted")
			}
			c.pass(c.now + share.StuckAfter)
			if !c.clients[1].evicted {
				t.Fatal("the client was not evicted")
			}
			c.leave(1)
			c.join(2, share.ClientSpec{Class: share.Offline})
			c.launch(2, share.Kernel{Blocks: 1})
			c.pass(c.now + 2*time.Second)
			if len(c.clients[2].flights) != 1 {
				t.Error("the next client is not served")
			}
		})
	}
}

// Memory is granted to the byte, and sums do not overflow.
func TestMemoryLimit(t *testing.T) {
	for _, p := range share.Policies() {
		t.Run(p.Name, func(t *testing.T) {
			c := newChecker(t, p.Name, share.Device{SMs: 4, ThreadsPerSM: 1024, Memory: 100})
			c.join(1, share.ClientSpec{Memory: 60})
			for _, step := range []struct{ ask, have int64 }{{60, 60}, {1, 60}, {math.MaxInt64, 60}} {
				c.allocate(1, step.ask)
				c.decide()
				if got := c.clients[1].memory; got != step.have {
					t.Fatalf("after a request of %d the client has %d, want %d", step.ask, got, step.have)
				}
			}
			c.free(1, 10)
			c.allocate(1, 11)
			c.decide()
			c.allocate(1, 10)
			c.decide()
			if got := c.clients[1].memory; got != 60 {
				t.Errorf("the client has %d, want 60", got)
			}
		})
	}
}

func TestTableOfClientsIsBounded(t *testing.T) {
	c := newChecker(t, "streams", share.A100)
	for id := range share.ClientID(share.MaxClients) {
		c.join(id+1, share.ClientSpec{})
	}
	for id := share.ClientID(1000); id < 1100; id++ {
		c.receive(share.Event{Kind: share.Join, Client: id})
	}
	c.decide()
	full := 0
	for _, d := range c.trail {
		if d.Kind == share.Evict && d.Reason == share.ReasonFull && d.Client >= 1000 {
			full++
		}
	}
	if full != share.MaxClients {
		t.Errorf("%d clients were refused, want %d: the list of refusals is bounded", full, share.MaxClients)
	}
}

func TestRatio(t *testing.T) {
	for _, tc := range []struct {
		a, b time.Duration
		want share.PPM
	}{
		{0, 1, 0},
		{1, 0, 0},
		{-1, 5, 0},
		{1, 2, 500_000},
		{5, 5, share.Whole},
		{9, 5, share.Whole},
		{math.MaxInt64 / 2, math.MaxInt64, 499_999},
		{1, 3, 333_333},
	} {
		if got := share.Ratio(tc.a, tc.b); got != tc.want {
			t.Errorf("Ratio(%d, %d) = %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
	if got := share.Whole.Of(math.MaxInt64); got != math.MaxInt64 {
		t.Errorf("the whole of the longest time is %d", got)
	}
}

// A permit takes no allocation, so an enforcement can give 10,000 each second and client.
func TestPermitsDoNotAllocate(t *testing.T) {
	for _, p := range share.Policies() {
		t.Run(p.Name, func(t *testing.T) {
			policy, err := p.New(share.A100, share.Settings{})
			if err != nil {
				t.Fatal(err)
			}
			var now time.Duration
			var out []share.Decision
			send := func(e share.Event) {
				now += 10 * time.Microsecond
				policy.Receive(now, e)
				out = policy.Transmit(now, out[:0])
			}
			send(share.Event{Kind: share.Join, Client: 1})
			send(share.Event{Kind: share.Join, Client: 2, Spec: share.ClientSpec{Class: share.Offline}})
			id := share.LaunchID(0)
			if n := testing.AllocsPerRun(1000, func() {
				id++
				for c := share.ClientID(1); c <= 2; c++ {
					send(share.Event{Kind: share.Launch, Client: c, Launch: id, Kernel: share.Kernel{Blocks: 100, SMs: 10, Expected: time.Microsecond, First: true}})
				}
				for c := share.ClientID(1); c <= 2; c++ {
					send(share.Event{Kind: share.Completed, Client: c, Launch: id, Ran: time.Microsecond})
					send(share.Event{Kind: share.Idle, Client: c})
				}
			}); n != 0 {
				t.Errorf("%v allocations for two launches", n)
			}
		})
	}
}

// Offline clients get what online clients leave of the multiprocessors while their kernels run,
// not on average, less a margin, and most of the GPU once the online clients run nothing.
func TestShareBesideOnlineClients(t *testing.T) {
	c := newChecker(t, "muxflow", share.A100)
	c.join(1, share.ClientSpec{})
	c.join(2, share.ClientSpec{Class: share.Offline})
	c.warm()
	shareOf := func() share.PPM {
		t.Helper()
		for range 2 { // a new share is told with the first launch of a job
			c.launch(2, share.Kernel{Blocks: 1, First: true})
			c.decide()
			c.complete(2, time.Millisecond)
			c.decide()
		}
		for i := len(c.trail) - 1; i >= 0; i-- {
			if c.trail[i].Kind == share.SetShare {
				return c.trail[i].Share
			}
		}
		return 0
	}
	reading := func(use, active int) {
		c.receive(share.Event{Kind: share.Sampled, Client: 1, Sample: share.Sample{
			Utilisation: share.Percent(use), SMActivity: share.Percent(active), Clock: share.Whole,
		}})
		c.pass(c.now + time.Second)
	}
	if got := shareOf(); got != share.Percent(70) {
		t.Errorf("a share of %d ppm beside nothing", got)
	}
	reading(20, 8)
	if got := shareOf(); got != share.Percent(30) {
		t.Errorf("a share of %d ppm beside 40 %% of the multiprocessors for a fifth of the time", got)
	}
	for range 40 {
		reading(100, 20)
	}
	if got := shareOf(); got < share.Percent(49) || got > share.Percent(50) {
		t.Errorf("a share of %d ppm beside 20 %%", got)
	}
	for range 8 {
		reading(0, 0)
	}
	if got := shareOf(); got > share.Percent(50) {
		t.Errorf("a share of %d ppm in a short pause", got)
	}
	for range 3 {
		reading(0, 0)
	}
	if got := shareOf(); got != share.Percent(70) {
		t.Errorf("a share of %d ppm after a long pause", got)
	}
	reading(10, 6) // not averaged with what was before the pause
	if got := shareOf(); got != share.Percent(10) {
		t.Errorf("a share of %d ppm beside 60 %%", got)
	}
}
