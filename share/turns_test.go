package share_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// Short programs that come and go do not keep a client waiting that was there before: each of
// them is a client of its own, as with a loop of "dxpu share run".
func TestClientsThatComeAndGoTakeTurns(t *testing.T) {
	for _, p := range share.Policies() {
		if p.Name == "mig" || p.Name == "gaia" {
			continue // has no room for as many clients, or needs readings of each
		}
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			comeAndGo(t, p.Name, share.Percent(50), share.Percent(10))
			comeAndGo(t, p.Name, 0, 0)
		})
	}
}

// comeAndGo runs a client that stays and others, with their requests.
func comeAndGo(t *testing.T, policy string, stays, comes share.PPM) {
	t.Helper()
	c := newChecker(t, policy, share.A100)
	spec := share.ClientSpec{Class: share.Offline, Memory: 1, Request: comes}
	c.join(1, share.ClientSpec{Class: share.Offline, Memory: 1, Request: stays})
	c.warm()
	const run = 500 * time.Microsecond
	k := share.Kernel{Blocks: 1000, SMs: 108, Expected: run}
	next := share.ClientID(2)
	short := []share.ClientID{next, next + 1}
	for _, id := range short {
		c.join(id, spec)
	}
	next += 2
	served, start := 0, c.now
	for c.now < start+4*time.Second {
		for _, id := range append([]share.ClientID{1}, short...) {
			c.launch(id, k)
			c.decide()
		}
		c.pass(c.now + run)
		if x := c.clients[1]; len(x.flights) > 0 {
			c.complete(1, run)
			c.decide()
			served++
		}
		for i, id := range short { // one that has run leaves with its work, and another one comes
			if len(c.clients[id].flights) == 0 {
				continue
			}
			c.complete(id, run)
			c.join(next, spec)
			c.launch(next, k)
			c.leave(id)
			short[i] = next
			next++
			c.decide()
			break
		}
	}
	t.Logf("%d launches of the client that stays, %d others", served, next)
	if served < 2500 {
		t.Errorf("requests of %d and %d ppm: %d launches of the client that stays in 4 s, %d of those that come and go", stays, comes, served, next)
	}
}

// A launch that alone takes longer than the limit of a window runs, too, and the limit holds over
// a window that is as much longer.
func TestGeminiServesALaunchLongerThanItsLimit(t *testing.T) {
	for _, expected := range []time.Duration{0, 600 * time.Millisecond} {
		c := newChecker(t, "gemini", share.A100)
		c.join(1, share.ClientSpec{Limit: share.Percent(5)}) // 500 ms of ten seconds
		const run = 600 * time.Millisecond
		served := 0
		for c.now < 10*time.Minute {
			c.launch(1, share.Kernel{Blocks: 1, Expected: expected})
			c.decide()
			if len(c.clients[1].flights) > 0 {
				c.pass(c.now + run)
				c.complete(1, run)
				c.decide()
				served++
				continue
			}
			c.pass(c.now + 50*time.Millisecond)
		}
		if served < 48 || served > 51 {
			t.Errorf("%d launches of 600 ms in ten minutes with a limit of 5 %%, want 50", served)
		}
	}
}

// A launch that is longer than the limit of a window is paid for by a higher limit, once there is one.
func TestGeminiPaysALongLaunchByItsNewLimit(t *testing.T) {
	c := newChecker(t, "gemini", share.A100)
	c.join(1, share.ClientSpec{Limit: share.Percent(1)})
	const run = 50 * time.Second
	c.launch(1, share.Kernel{Blocks: 1})
	c.decide()
	c.pass(run)
	c.complete(1, run)
	c.decide()
	c.resize(1, share.ClientSpec{Limit: share.Percent(50)})
	c.launch(1, share.Kernel{Blocks: 1})
	for c.decide(); len(c.clients[1].flights) == 0 && c.now < time.Hour; {
		c.pass(c.now + time.Second)
	}
	if want := 149 * time.Second; c.now < want || c.now > want+2*time.Second {
		t.Errorf("the next launch runs at %v, want %v: 1 %% of the run has paid for 0.5 s, and half of the time since pays the rest", c.now, want)
	}
}

// An offline program that launches on without waiting for its kernels ends no mini-batch, and
// has idle slots all the same.
func TestAntManEndsAMiniBatchWithoutAnEnd(t *testing.T) {
	c := newChecker(t, "antman", share.A100)
	c.join(1, share.ClientSpec{})
	c.join(2, share.ClientSpec{Class: share.Offline})
	for range 10 { // production is measured
		c.request(time.Millisecond)
	}
	if got := c.endless(2, 30*time.Second).Seconds() / 30; got < 0.15 || got > 0.25 {
		t.Errorf("the offline client has the GPU for %.0f %% of the time, want 20 %%", 100*got)
	}
}

// endless lets a client launch on for some time without a wait for its kernels. It returns for
// how long one of them was on the GPU.
func (c *checker) endless(id share.ClientID, long time.Duration) (busy time.Duration) {
	c.t.Helper()
	const run = time.Millisecond
	x := c.clients[id]
	for end := c.now + long; c.now < end; {
		for x.waiting == 0 && len(x.flights) < 2 { // it is never idle
			c.launch(id, share.Kernel{Blocks: 1})
			c.decide()
		}
		c.pass(c.now + run)
		if len(x.flights) == 0 {
			continue
		}
		busy += run
		if len(x.flights) > 1 || x.waiting != 0 {
			c.complete(id, run)
			c.decide()
		}
	}
	return busy
}

// The time that such a program was alone is no mini-batch: it does not wait for several times as
// long when production comes.
func TestAntManAsksForNoIdleSlotAfterTheTimeAlone(t *testing.T) {
	c := newChecker(t, "antman", share.A100)
	c.join(2, share.ClientSpec{Class: share.Offline})
	if got := c.endless(2, time.Minute); got < 59*time.Second {
		t.Fatalf("alone, the offline client has the GPU for %v of a minute", got)
	}
	c.join(1, share.ClientSpec{})
	for range 10 {
		c.request(time.Millisecond)
	}
	if got := c.endless(2, 30*time.Second).Seconds() / 30; got < 0.15 || got > 0.25 {
		t.Errorf("the offline client has the GPU for %.0f %% of the time after it was alone, want 20 %%", 100*got)
	}
}

// Each online training of orion is compared with its own time alone, also after another one has left.
func TestOrionComparesATrainingWithItself(t *testing.T) {
	c := newChecker(t, "orion", share.A100)
	iterate := func(id share.ClientID, long time.Duration) {
		t.Helper()
		c.launch(id, share.Kernel{Blocks: 1, SMs: 10, First: true, Update: true, Bound: share.BoundCompute})
		c.pass(c.now + long)
		c.complete(id, long)
		c.decide()
	}
	c.join(1, share.ClientSpec{})
	for range 10 {
		iterate(1, time.Millisecond)
	}
	c.leave(1)
	c.join(2, share.ClientSpec{}) // its iterations are longer, and as long beside others as alone
	for range 100 {
		iterate(2, 3*time.Millisecond)
	}
	c.join(3, share.ClientSpec{Class: share.Offline})
	c.launch(2, share.Kernel{Blocks: 1, SMs: 10, First: true, Bound: share.BoundCompute})
	c.decide()
	c.launch(3, share.Kernel{Blocks: 1, SMs: 90, Bound: share.BoundMemory, Expected: time.Microsecond})
	c.decide()
	if len(c.clients[3].flights) != 1 {
		t.Error("the offline client waits beside a training that it never slowed down")
	}
}

// Memory of online clients is never over-committed: it stays on the GPU.
func TestOnlineMemoryIsNotOverCommitted(t *testing.T) {
	for _, name := range []string{"tgs", "antman"} {
		t.Run(name, func(t *testing.T) {
			c := newChecker(t, name, share.Device{SMs: 8, ThreadsPerSM: 1024, Memory: 1000})
			for id, bytes := range []int64{500, 700, 700} {
				c.join(share.ClientID(id+1), share.ClientSpec{Class: []share.Class{share.Offline, share.Online, share.Online}[id]})
				c.allocate(share.ClientID(id+1), bytes)
				c.decide()
			}
			for id, want := range []int64{500, 700, 0} {
				if got := c.clients[share.ClientID(id+1)].memory; got != want {
					t.Errorf("client %d has %d bytes, want %d", id+1, got, want)
				}
			}
			if got := c.clients[1].stays; got != 300 {
				t.Errorf("%d bytes of the offline client stay on the GPU, want 300", got)
			}
		})
	}
}

// A resize forgets nothing of what a client has used: its limit holds over the window.
func TestResizeKeepsTheUsage(t *testing.T) {
	c := newChecker(t, "gemini", share.A100)
	limit := share.ClientSpec{Limit: share.Percent(30)}
	c.join(1, limit)
	const run = 10 * time.Millisecond
	busy := time.Duration(0)
	for i := 0; c.now < 10*time.Second; i++ {
		if i%100 == 99 {
			limit.Limit ^= 1
			c.resize(1, limit)
		}
		c.launch(1, share.Kernel{Blocks: 1, Expected: run})
		c.pass(c.now + run)
		if len(c.clients[1].flights) > 0 {
			c.complete(1, run)
			busy += run
		}
	}
	if busy > 3*time.Second {
		t.Errorf("%v in ten seconds with a limit of 30 %%", busy)
	}
}

// A new limit is told to the hardware that keeps it.
func TestResizeTellsTheShare(t *testing.T) {
	for name, want := range map[string]share.PPM{"mps": share.Percent(20), "muxflow": share.Percent(20)} {
		t.Run(name, func(t *testing.T) {
			c := newChecker(t, name, share.A100)
			c.join(1, share.ClientSpec{Class: share.Offline, Limit: share.Percent(60)})
			c.warm()
			got := func() (s share.PPM) {
				c.launch(1, share.Kernel{Blocks: 1, First: true})
				c.decide()
				c.complete(1, time.Millisecond)
				c.decide()
				for _, d := range c.trail {
					if d.Kind == share.SetShare {
						s = d.Share
					}
				}
				return s
			}
			if s := got(); s != share.Percent(60) {
				t.Errorf("a share of %d ppm", s)
			}
			c.resize(1, share.ClientSpec{Limit: share.Percent(20)})
			if s := got(); s != want {
				t.Errorf("a share of %d ppm after the resize, want %d", s, want)
			}
		})
	}
}

// The limit of the memory in use holds on a GPU of any size.
func TestSysMonitorOnASmallGPU(t *testing.T) {
	d := share.Device{SMs: 2, ThreadsPerSM: 64, Memory: 1000}
	for used, want := range map[int64]share.Health{980: share.Healthy, 981: share.HealthInit} {
		var m share.SysMonitor
		for i := range 20 {
			m.Observe(time.Duration(i)*100*time.Millisecond, share.Sample{Clock: share.Whole, Memory: used}, d)
		}
		if got := m.State(); got != want {
			t.Errorf("%v with %d of 1000 bytes in use", got, used)
		}
	}
}

// A request whose program never waits for its launches ends all the same: the offline clients do
// not wait on an idle GPU.
func TestRequestWithoutAnEnd(t *testing.T) {
	for _, name := range []string{"reef", "orion"} {
		t.Run(name, func(t *testing.T) {
			c := newChecker(t, name, share.A100)
			c.join(1, share.ClientSpec{})
			c.join(2, share.ClientSpec{Class: share.Offline})
			c.receive(share.Event{Kind: share.Launch, Client: 1, Launch: 1, Kernel: share.Kernel{Blocks: 1, SMs: 108, Bound: share.BoundCompute}})
			c.clients[1].waiting, c.clients[1].next = 1, 1
			c.decide()
			c.pass(c.now + time.Millisecond)
			delete(c.clients[1].flights, 1)
			c.receive(share.Event{Kind: share.Completed, Client: 1, Launch: 1}) // and no Idle
			c.launch(2, share.Kernel{Blocks: 1, SMs: 108, Bound: share.BoundCompute})
			c.decide()
			if len(c.clients[2].flights) != 0 {
				t.Fatal("an offline launch within a request")
			}
			for end := c.now + 50*time.Millisecond; c.policy.Wake() <= end; { // no event comes
				c.now = c.policy.Wake()
				c.decide()
			}
			if len(c.clients[2].flights) != 1 {
				t.Error("the offline launch waits on an idle GPU")
			}
		})
	}
}

// Whatever clients did, nothing of it is left when they have gone: the next one has the GPU and
// its memory.
func TestNothingIsLeftOfClients(t *testing.T) {
	for _, p := range share.Policies() {
		t.Run(p.Name, func(t *testing.T) {
			for seed := range uint64(30) {
				rng := rand.New(rand.NewPCG(seed, 7))
				c := newChecker(t, p.Name, share.Device{SMs: 8, ThreadsPerSM: 1024, Memory: 1000})
				for range 300 {
					c.event(uint8(rng.IntN(16)), share.ClientID(rng.IntN(8)), byte(rng.Uint32()), byte(rng.Uint32()), int64(int32(rng.Uint32())), int64(int32(rng.Uint32())))
					c.decide()
				}
				for id := range share.ClientID(10) {
					c.leave(id)
				}
				c.decide()
				c.receive(share.Event{Kind: share.Failed, Fault: share.FaultCleared})
				for _, class := range []share.Class{share.Offline, share.Online} {
					const id = 100
					c.join(id, share.ClientSpec{Class: class})
					c.warm()
					c.allocate(id, 1000)
					c.launch(id, share.Kernel{Blocks: 1, SMs: 8, Bound: share.BoundCompute})
					c.pass(c.now + time.Second)
					if x := c.clients[id]; len(x.flights) != 1 || x.memory != 1000 {
						t.Fatalf("seed %d: a client that is alone has %d launches in flight and %d of 1000 bytes", seed, len(x.flights), x.memory)
					}
					c.leave(id)
					c.decide()
				}
			}
		})
	}
}
