package scenario

import (
	"math/rand/v2"
	"time"

	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/plant"
)

// client runs a program on the GPU: jobs arrive or follow each other, and each one's
// launches pass the gate in order, asynchronously; then the host waits for all.
type client struct {
	spec    *Client
	id      share.ClientID
	program *program
	rng     *rand.Rand

	joined, evicted, started bool
	memory, memoryWanted     int64

	arrivals []time.Duration // of the jobs that wait; the first one runs while active
	active   bool
	next     int            // the step that is presented next
	again    []plant.Kernel // killed kernels, which run again first
	steps    []int          // the steps of the killed kernels
	running  []running      // permitted and not completed, in order
	flying   int            // their number
	waiting  *running       // presented
	launches share.LaunchID
	gen      int

	latencies []time.Duration
	jobs      int // completed after the warmup
	shed      int // arrived while too many waited
	kills     int
	base      plant.Usage
	left      plant.Usage // at its end
}

// running is a launch of the client.
type running struct {
	id     share.LaunchID
	step   int
	kernel plant.Kernel
}

// maxWaiting bounds the jobs that wait; more are shed and counted.
const maxWaiting = 20_000

func (w *world) join(c *client) {
	c.joined = true
	w.gpu.Attach(c.id)
	class := share.Online
	if c.spec.Offline {
		class = share.Offline
	}
	w.policy.Receive(w.now, share.Event{Kind: share.Join, Client: c.id, Spec: share.ClientSpec{
		Class: class, Request: share.Percent(c.spec.Request), Limit: share.Percent(c.spec.Limit),
		Memory: c.memoryWanted,
	}})
	w.policy.Receive(w.now, share.Event{Kind: share.Allocate, Client: c.id, Bytes: c.memoryWanted})
	if c.spec.Until > 0 {
		w.events.Push(c.spec.Until, timed{kind: leave, c: c})
	}
	if c.spec.Terminate > 0 {
		w.events.Push(c.spec.Terminate, timed{kind: terminate, c: c})
	}
	if c.spec.Kill > 0 {
		w.events.Push(c.spec.Kill, timed{kind: leave, c: c})
	}
}

// start begins the work of a client that has its memory.
func (w *world) start(c *client) {
	if c.started {
		return
	}
	c.started = true
	if c.spec.Rate > 0 {
		w.events.Push(w.now+c.interval(w.now), timed{kind: arrive, c: c})
	} else {
		w.arrive(c)
	}
}

func (w *world) leave(c *client) {
	if !c.joined {
		return
	}
	w.account()
	if c.flying > 0 && w.info.Execution == share.OneContext {
		w.faults++ // MPS: the end of a client with running kernels fails the context of all
	}
	c.joined = false
	c.gen++
	c.left = w.gpu.Usage(c.id)
	w.gpu.Detach(w.now, c.id)
	w.policy.Receive(w.now, share.Event{Kind: share.Leave, Client: c.id})
}

// Bursts are on for burstOn of each burstPeriod, with the rate that gives the mean.
const (
	burstPeriod = 2 * time.Second
	burstOn     = 500 * time.Millisecond
)

// interval draws the time to the next arrival.
func (c *client) interval(now time.Duration) time.Duration {
	mean := float64(time.Second) / c.spec.Rate
	switch c.spec.Arrival {
	case "periodic":
		return time.Duration(mean)
	case "bursts":
		d := time.Duration(c.rng.ExpFloat64() * mean * float64(burstOn) / float64(burstPeriod))
		phase := now % burstPeriod
		if phase >= burstOn { // off: draw from the beginning of the next burst
			return burstPeriod - phase + d
		}
		return d + (phase+d)/burstOn*(burstPeriod-burstOn)
	}
	return time.Duration(c.rng.ExpFloat64() * mean)
}

func (w *world) arrive(c *client) {
	if !c.joined {
		return
	}
	if len(c.arrivals) >= maxWaiting {
		c.shed++
	} else {
		c.arrivals = append(c.arrivals, w.now)
	}
	if c.spec.Rate > 0 {
		w.events.Push(w.now+max(1, c.interval(w.now)), timed{kind: arrive, c: c})
	}
	w.begin(c)
}

// begin starts the next job, if none runs.
func (w *world) begin(c *client) {
	if c.active || len(c.arrivals) == 0 {
		return
	}
	c.active, c.next = true, 0
	w.later(c, c.program.steps[0].host)
}

// later presents the client's next launch after the host's work for it.
func (w *world) later(c *client, host time.Duration) {
	c.gen++
	w.events.Push(w.now+host+launchCost+gateCost, timed{kind: present, c: c, gen: c.gen})
}

// present brings the next launch to the gate.
func (w *world) present(c *client) {
	if c.waiting != nil {
		return
	}
	c.launches++
	r := &running{id: c.launches}
	switch {
	case len(c.again) > 0:
		r.kernel, r.step = c.again[0], c.steps[0]
	case c.active && c.next < len(c.program.steps):
		r.kernel, r.step = c.program.steps[c.next].kernel, c.next
	default:
		return
	}
	c.waiting = r
	s := &c.program.steps[r.step]
	w.policy.Receive(w.now, share.Event{Kind: share.Launch, Client: c.id, Launch: r.id, Kernel: share.Kernel{
		Blocks: r.kernel.Blocks, SMs: r.kernel.SMs(w.spec.device), Bound: s.bound, First: r.step == 0 && len(c.again) == 0, Update: s.update,
		Expected: r.kernel.Alone(w.spec.device), Remaining: c.program.remaining(r.step, w.spec.device),
	}})
}

// remaining returns the time of the kernels from step i on, alone.
func (p *program) remaining(i int, d share.Device) time.Duration {
	if p.left == nil {
		p.left = make([]time.Duration, len(p.steps)+1)
		for j := len(p.steps) - 1; j >= 0; j-- {
			p.left[j] = p.left[j+1] + p.steps[j].kernel.Alone(d)
		}
	}
	return p.left[i]
}

// permitted submits the waiting launch to the GPU.
func (c *client) permitted(w *world, d share.Decision) {
	r := c.waiting
	if r == nil || r.id != d.Launch {
		return
	}
	c.waiting = nil
	c.running = append(c.running, *r)
	c.flying++
	w.gpu.Submit(w.now, c.id, r.id, r.kernel, d.High, d.SMs)
	if len(c.again) > 0 {
		c.again, c.steps = c.again[1:], c.steps[1:]
	} else {
		c.next++
	}
	switch {
	case len(c.again) > 0:
		w.later(c, 0)
	case c.next < len(c.program.steps):
		w.later(c, c.program.steps[c.next].host)
	}
}

// preempt kills the kernels of a client on the GPU; they run again, without the blocks
// that have ended.
func (w *world) preempt(c *client) {
	killed := w.gpu.Preempt(w.now, c.id)
	w.completions() // those that ended at this instant
	if len(killed) == 0 {
		return
	}
	c.waiting = nil
	var again []plant.Kernel
	var steps []int
	for _, k := range killed {
		c.kills++
		for _, r := range c.running {
			if r.id == k.Launch {
				r.kernel.Blocks = max(1, k.Blocks)
				again, steps = append(again, r.kernel), append(steps, r.step)
			}
		}
		w.policy.Receive(w.now, share.Event{Kind: share.Killed, Client: c.id, Launch: k.Launch})
	}
	c.running, c.flying = c.running[:0], 0
	c.again, c.steps = append(again, c.again...), append(steps, c.steps...)
	if len(c.again) > 0 || c.active && c.next < len(c.program.steps) {
		w.later(c, 0)
	}
}

// advanceJob ends the client's job when all its kernels have completed.
func (w *world) advanceJob(c *client) {
	if !c.active || c.flying > 0 || c.waiting != nil || c.next < len(c.program.steps) || len(c.again) > 0 {
		return
	}
	c.active = false
	if arrived := c.arrivals[0]; w.now >= w.spec.Warmup && arrived >= w.spec.Warmup {
		c.latencies = append(c.latencies, w.now-arrived)
	}
	if w.now >= w.spec.Warmup {
		c.jobs++
	}
	c.arrivals = c.arrivals[:copy(c.arrivals, c.arrivals[1:])]
	w.policy.Receive(w.now, share.Event{Kind: share.Idle, Client: c.id})
	if c.spec.Rate == 0 {
		w.events.Push(w.now+c.spec.Think, timed{kind: arrive, c: c})
		return
	}
	w.begin(c)
}
