package share_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// colocated is a policy with an online client 1 and an offline client 2, which has run alone
// for some seconds.
func colocated(t *testing.T, name string) *checker {
	t.Helper()
	c := newChecker(t, name, share.A100)
	half := share.ClientSpec{Request: share.Whole / 2}
	c.join(1, half)
	half.Class = share.Offline
	c.join(2, half)
	c.warm()
	for range 300 {
		c.request(100 * time.Microsecond)
		c.pass(c.now + 100*time.Millisecond)
	}
	for range 20 { // kernels of the offline client get profiles
		c.offline(50 * time.Microsecond)
	}
	return c
}

// request makes one request of the online client: a launch that runs for some time.
func (c *checker) request(long time.Duration) {
	c.t.Helper()
	c.launch(1, share.Kernel{Blocks: 100, SMs: 10, First: true})
	c.pass(c.now + long)
	c.complete(1, long)
	c.decide()
}

// offline makes one launch of the offline client, which may wait.
func (c *checker) offline(long time.Duration) {
	c.t.Helper()
	c.launch(2, share.Kernel{Blocks: 1000, SMs: 100, Expected: long})
	c.pass(c.now + time.Second)
	c.complete(2, long)
	c.pass(c.now + 100*time.Millisecond)
}

// The policies that never hold an online client give it all of the credit, whatever the offline
// one does, and the offline one some of it while nothing is to be protected.
func TestOnlineClientsHaveCredit(t *testing.T) {
	for _, name := range []string{"antman", "muxflow", "orion", "reef", "tgs"} {
		t.Run(name, func(t *testing.T) {
			c := colocated(t, name)
			if got := c.credits[1]; got != share.MaxInFlight {
				t.Errorf("credit of %d for the online client", got)
			}
			c.pass(c.now + 10*time.Second)
			if c.credits[2] < 1 {
				t.Error("no credit for the offline client while the online one does nothing")
			}
			before := c.used
			c.launch(2, share.Kernel{Blocks: 1, SMs: 1})
			c.decide()
			c.launch(1, share.Kernel{Blocks: 100, SMs: 10, First: true})
			c.decide()
			if c.used != before+2 {
				t.Errorf("%d launches with credit, want both", c.used-before)
			}
			if got := c.credits[1]; got != share.MaxInFlight {
				t.Errorf("credit of %d for the online client within a request", got)
			}
			if most, ok := map[string]int32{"orion": 1, "reef": 0}[name]; ok && c.credits[2] > most {
				t.Errorf("credit of %d for the offline client beside a request, want %d", c.credits[2], most)
			}
		})
	}
}

// In turns the holder alone has credit, until its turn is over.
func TestCreditOfATurn(t *testing.T) {
	for _, name := range []string{"timeslice", "gemini"} {
		t.Run(name, func(t *testing.T) {
			c := newChecker(t, name, share.A100)
			for id := range share.ClientID(2) {
				c.join(id+1, share.ClientSpec{Request: share.Whole / 2})
			}
			k := share.Kernel{Blocks: 100, SMs: 10}
			c.launch(1, k)
			c.decide()
			c.launch(2, k)
			c.decide()
			if c.credits[1] == 0 || c.credits[2] != 0 {
				t.Fatalf("credits %v", c.credits)
			}
			for range 1000 {
				if c.pass(c.now + time.Millisecond); c.credits[1] == 0 {
					break
				}
			}
			if len(c.credits) != 0 {
				t.Errorf("credits %v after the turn", c.credits)
			}
			c.complete(1, time.Millisecond)
			c.decide()
			if c.credits[1] != 0 || c.credits[2] == 0 {
				t.Errorf("credits %v in the other turn", c.credits)
			}
		})
	}
}

// Near its limit a client asks for each launch.
func TestCreditNearTheLimit(t *testing.T) {
	c := newChecker(t, "gemini", share.A100)
	c.join(1, share.ClientSpec{Limit: share.Percent(30)})
	const kernel = 10 * time.Millisecond
	with := 0
	for c.now < 9*time.Second {
		for range 2 { // a burst without an end
			c.launch(1, share.Kernel{Blocks: 100, SMs: 10})
			c.decide()
		}
		c.pass(c.now + kernel)
		c.complete(1, kernel)
		c.decide()
		if c.credits[1] > 0 {
			with++
		}
	}
	if c.credits[1] != 0 {
		t.Errorf("credit of %d at the limit", c.credits[1])
	}
	if with < 200 {
		t.Errorf("%d launches with credit, want most of 300", with)
	}
}

// The wait for the token is no part of a burst: two clients with long bursts have the quotas
// that each has alone, not ever longer ones.
func TestBurstsWithoutTheirWaits(t *testing.T) {
	c := newChecker(t, "gemini", share.A100)
	for id := range share.ClientID(2) {
		c.join(id+1, share.ClientSpec{Request: share.Whole / 2})
	}
	const kernel, burst = 5 * time.Millisecond, 60
	var left [3]int
	var rest [3]time.Duration // until then the client has nothing to do
	var turn, longest time.Duration
	var holder share.ClientID
	for c.now < time.Minute {
		for id := share.ClientID(1); id <= 2; id++ {
			x := c.clients[id]
			if left[id] == 0 && x.waiting == 0 && len(x.flights) == 0 && c.now >= rest[id] {
				left[id] = burst
			}
			for left[id] > 0 && x.waiting == 0 && len(x.flights) < 2 {
				c.launch(id, share.Kernel{Blocks: 100, SMs: 10})
				left[id]--
				c.decide()
			}
		}
		c.pass(c.now + kernel)
		for id := share.ClientID(1); id <= 2; id++ {
			if len(c.clients[id].flights) == 0 {
				continue
			}
			if id != holder {
				holder, turn = id, c.now-kernel
			}
			if c.now > 30*time.Second {
				longest = max(longest, c.now-turn)
			}
			c.complete(id, kernel)
			rest[id] = c.now + 2*kernel
			c.decide()
		}
	}
	t.Logf("turns of up to %v", longest)
	if most := 5 * burst * kernel / 4; longest > most {
		t.Errorf("a turn of %v, want at most %v", longest, most)
	}
}

// A launch by credit that is told with its end has run before it was told.
func TestRanBeforeItWasTold(t *testing.T) {
	for _, before := range []time.Duration{0, time.Millisecond} {
		c := newChecker(t, "gemini", share.A100)
		c.join(1, share.ClientSpec{Limit: share.Percent(30)})
		c.receive(share.Event{Kind: share.Launch, Client: 1, Launch: 1, Ran: before})
		c.clients[1].waiting = 1
		c.decide()
		c.receive(share.Event{Kind: share.Launch, Client: 1, Launch: 2, Ran: before}) // the burst goes on
		c.clients[1].waiting = 2
		c.complete(1, 20*time.Microsecond)
		c.decide()
		// Near a limit there is credit only for kernels whose time is known.
		if got := c.credits[1] > 0; got != (before > 0) {
			t.Errorf("credit of %d after a launch of %v", c.credits[1], before)
		}
	}
}

// Clients without a limit never ask. Those with one have credit for half of their largest launches
// that their bucket has, once their sizes are known.
func TestCreditWithinALimit(t *testing.T) {
	const kernel = time.Millisecond
	for _, name := range []string{"gaia", "gaiapi"} {
		t.Run(name, func(t *testing.T) {
			c := newChecker(t, name, share.A100)
			c.join(1, share.ClientSpec{Limit: share.Percent(30)})
			c.join(2, share.ClientSpec{})
			c.decide()
			if c.credits[1] != 0 || c.credits[2] != share.MaxInFlight {
				t.Errorf("credits %v at first", c.credits)
			}
			c.receive(share.Event{Kind: share.Sampled, Client: 1}) // idle: its bucket will fill
			k := share.Kernel{Blocks: 800_000}
			for _, size := range []int64{k.Blocks, 1} {
				c.launch(1, share.Kernel{Blocks: size})
				c.decide()
				c.pass(c.now + time.Second)
				c.complete(1, kernel)
				c.decide()
			}
			c.pass(c.now + time.Second)
			// gaia's bucket has 7,077,888 blocks, that of gaiapi 20 ms.
			if want := map[string]int32{"gaia": 4, "gaiapi": 8}[name]; c.credits[1] != want {
				t.Errorf("credit of %d with a full bucket, want %d", c.credits[1], want)
			}
			launched := 0
			for ; c.credits[1] > 0 && launched < 100; launched++ { // faster than the bucket fills
				c.launch(1, k)
				c.decide()
				c.pass(c.now + kernel)
				c.complete(1, kernel)
				c.decide()
			}
			if launched < 5 || launched > 40 {
				t.Errorf("%d launches until the credit ends", launched)
			}
			c.launch(1, k) // at once after the last one by credit: it is still permitted
			c.decide()
			if c.clients[1].waiting != 0 {
				t.Error("a launch with what is left of the bucket waits")
			}
		})
	}
}

// Only a client that alone has work launches ahead with Paella: otherwise the policy chooses.
func TestCreditOfTheOnlyJob(t *testing.T) {
	c := newChecker(t, "paella", share.A100)
	for id := range share.ClientID(3) {
		c.join(id+1, share.ClientSpec{})
	}
	wants := func(what string, want ...int32) {
		t.Helper()
		c.decide()
		for i, n := range want {
			if got := c.credits[share.ClientID(i+1)]; got != n {
				t.Errorf("%s: credit of %d for client %d, want %d", what, got, i+1, n)
			}
		}
	}
	k := share.Kernel{Blocks: 1 << 20, SMs: share.A100.SMs}
	wants("without work", 1, 1, 1)
	c.launch(2, k)
	wants("one job", 0, 3, 0)
	for range 2 {
		c.launch(2, k)
		wants("its launches", 0, 3, 0)
	}
	if n := len(c.clients[2].flights); n != 3 {
		t.Fatalf("%d launches in flight", n)
	}
	c.launch(3, k)
	wants("two jobs", 0, 0, 0)
	for range 3 {
		c.complete(2, 0)
	}
	wants("the other job", 0, 0, 3)
	c.complete(3, 0)
	wants("the end of both", 1, 1, 1)
}

// The holder of the token has credit until a burst like its last ones would not end in its
// quota, and the policy wakes up for that.
func TestCreditForAnotherBurst(t *testing.T) {
	c := newChecker(t, "gemini", share.A100)
	c.join(1, share.ClientSpec{})
	const burst, quota = 60 * time.Millisecond, 250 * time.Millisecond
	c.launch(1, share.Kernel{Blocks: 1})
	c.decide()
	c.pass(burst)
	c.complete(1, burst)
	c.decide()
	if c.credits[1] == 0 || c.policy.Wake() != quota-burst {
		t.Errorf("credit of %d until %v, want some until %v", c.credits[1], c.policy.Wake(), quota-burst)
	}
	if c.pass(quota - burst); c.credits[1] != 0 {
		t.Errorf("credit of %d for a burst that does not end in the quota", c.credits[1])
	}
}

// An offline client has no credit in its idle slot.
func TestCreditInAnIdleSlot(t *testing.T) {
	c := newChecker(t, "antman", share.A100)
	c.join(1, share.ClientSpec{})
	c.join(2, share.ClientSpec{Class: share.Offline})
	for range 10 { // production is measured
		c.request(time.Millisecond)
	}
	if c.credits[2] == 0 {
		t.Error("no credit before the first mini-batch")
	}
	c.launch(2, share.Kernel{Blocks: 1})
	c.decide()
	c.pass(c.now + 10*time.Millisecond)
	c.complete(2, 10*time.Millisecond)
	if c.decide(); c.credits[2] != 0 {
		t.Errorf("credit of %d in the idle slot", c.credits[2])
	}
	if c.pass(c.now + 100*time.Millisecond); c.credits[2] == 0 {
		t.Error("no credit after the idle slot")
	}
}

// An opportunistic client has credit for half of its largest launches that fit the limit, and none
// while production is profiled.
func TestCreditBelowARate(t *testing.T) {
	for _, tc := range []struct {
		blocks int64
		credit int32
	}{{1000, 8}, {4000, 3}, {12_000, 1}, {16_000, 0}} { // of a limit of 30,001 then
		c := newChecker(t, "tgs", share.A100)
		c.join(1, share.ClientSpec{Class: share.Offline})
		c.launch(1, share.Kernel{Blocks: tc.blocks})
		c.decide()
		if c.credits[1] != share.MaxInFlight {
			t.Errorf("credit of %d without production", c.credits[1])
		}
		c.complete(1, time.Millisecond)
		c.join(2, share.ClientSpec{})
		c.decide()
		for range 61 { // six readings of a steady rate
			c.launch(2, share.Kernel{Blocks: 2000})
			c.decide()
			c.complete(2, time.Millisecond)
			if c.now < 4*time.Second && c.credits[1] != 0 {
				t.Fatalf("credit of %d at %v", c.credits[1], c.now)
			}
			c.pass(c.now + 100*time.Millisecond)
		}
		if c.credits[1] != tc.credit {
			t.Errorf("credit of %d for launches of %d blocks, want %d", c.credits[1], tc.blocks, tc.credit)
		}
		c.join(3, share.ClientSpec{}) // profiles again
		if c.decide(); c.credits[1] != 0 {
			t.Errorf("credit of %d while production is profiled", c.credits[1])
		}
	}
}
