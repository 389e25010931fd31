package scenario

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/plant"
)

// Costs of the host, of our choice: an asynchronous launch takes some microseconds, and
// the gate adds the exchange of a permit through shared memory.
const (
	launchCost = 4 * time.Microsecond
	gateCost   = 500 * time.Nanosecond
)

// Sensors read every sensorPeriod and average over sensorSpan, like the driver's
// counters of processes.
const (
	sensorPeriod = 120 * time.Millisecond
	sensorSpan   = 8 // periods: about a second
)

// world is one run: a policy, the GPU, and its clients.
type world struct {
	spec    *Spec
	run     Run
	info    share.Info
	policy  share.Policy
	gpu     *plant.GPU
	clients []*client
	events  machine.Queue[timed]
	now     time.Duration
	sensors readings
	out     []share.Decision
	permits uint64
	memory  int64 // bytes × µs, to average
	lastMem time.Duration
	faults  int // ends of clients that failed the context of the others
}

// timed is an event of the world.
type timed struct {
	kind eventKind
	c    *client
	gen  int // of the client's launch, to ignore outdated ones
}

type eventKind uint8

const (
	join eventKind = iota
	leave
	arrive
	present
	terminate
	sample
	warm
)

func newWorld(s *Spec, r Run) (*world, error) {
	info, err := share.Find(r.Policy)
	if err != nil {
		return nil, err
	}
	policy, err := info.New(s.device, share.Settings{Sample: r.Sample, Deficit: r.Deficit, FIFO: r.FIFO})
	if err != nil {
		return nil, err
	}
	w := &world{spec: s, run: r, info: info, policy: policy, gpu: plant.New(plant.Default(s.device, info.Execution))}
	for i := range s.Clients {
		if !r.has(s.Clients[i].Name) {
			continue
		}
		p, err := s.program(s.Clients[i].Program)
		if err != nil {
			return nil, fmt.Errorf("client %q: %w", s.Clients[i].Name, err)
		}
		// The arrivals of a client are the same in all runs.
		c := &client{spec: &s.Clients[i], id: share.ClientID(i + 1), program: p, rng: rand.New(rand.NewPCG(s.Seed, uint64(i)))}
		c.memoryWanted = p.memory
		if m := s.Clients[i].Memory; m > 0 {
			c.memoryWanted = m << 20
		}
		w.clients = append(w.clients, c)
		w.events.Push(c.spec.From, timed{kind: join, c: c})
	}
	w.events.Push(sensorPeriod, timed{kind: sample})
	w.events.Push(s.Warmup, timed{kind: warm})
	return w, nil
}

func (r *Run) has(client string) bool {
	if len(r.Clients) == 0 {
		return true
	}
	for _, name := range r.Clients {
		if name == client {
			return true
		}
	}
	return false
}

func (s *Spec) program(name string) (*program, error) {
	if t, ok := strings.CutPrefix(name, "trace:"); ok {
		if w := s.traces[t]; w != nil {
			return recorded(w, name, s.device)
		}
		return nil, fmt.Errorf("no trace %q is loaded", t)
	}
	return newProgram(name, s.device)
}

// maxRounds bounds the exchange between policy and GPU at one instant.
const maxRounds = 100_000

// checkSteps is how often a run looks whether it is cancelled.
const checkSteps = 4096

// simulate runs the world to its end, or until ctx is cancelled.
func (w *world) simulate(ctx context.Context) error {
	rounds := 0
	for step := 0; ; step++ {
		if step%checkSteps == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		at := min(w.events.Wake(), w.gpu.Wake(), max(w.policy.Wake(), w.now))
		if at >= w.spec.Duration {
			break
		}
		if at > w.now {
			rounds = 0
		}
		if rounds++; rounds > maxRounds {
			return fmt.Errorf("policy %s does not let the time pass %v", w.run.Policy, w.now)
		}
		w.now = at
		w.gpu.Advance(at)
		w.completions()
		for {
			e, ok := w.events.Pop(at)
			if !ok {
				break
			}
			w.handle(e)
		}
		w.decide()
	}
	w.now = w.spec.Duration
	w.gpu.Advance(w.now)
	w.account()
	return nil
}

func (w *world) completions() {
	for _, d := range w.gpu.Take() {
		c := w.client(d.Client)
		if c == nil {
			continue
		}
		c.flying--
		w.policy.Receive(w.now, share.Event{Kind: share.Completed, Client: c.id, Launch: d.Launch, Ran: d.Ran})
		c.running = c.running[:copy(c.running, c.running[1:])]
		w.advanceJob(c)
	}
}

func (w *world) client(id share.ClientID) *client {
	for _, c := range w.clients {
		if c.id == id && c.joined {
			return c
		}
	}
	return nil
}

func (w *world) handle(e timed) {
	switch e.kind {
	case join:
		w.join(e.c)
	case leave:
		w.leave(e.c)
	case arrive:
		w.arrive(e.c)
	case present:
		if e.gen == e.c.gen && e.c.joined {
			w.present(e.c)
		}
	case terminate:
		if e.c.joined {
			w.policy.Receive(w.now, share.Event{Kind: share.Failed, Client: e.c.id, Fault: share.FaultTerminate})
		}
	case sample:
		w.sample()
		w.events.Push(w.now+sensorPeriod, timed{kind: sample})
	case warm:
		for _, c := range w.clients {
			c.base = w.usage(c)
		}
		w.sensors.base = w.gpu.Usage(0)
	}
}

// decide takes the policy's decisions and carries them out, until there are none.
func (w *world) decide() {
	for range maxRounds {
		w.out = w.policy.Transmit(w.now, w.out[:0])
		if len(w.out) == 0 {
			return
		}
		for _, d := range w.out {
			w.apply(d)
		}
	}
}

func (w *world) apply(d share.Decision) {
	c := w.client(d.Client)
	if c == nil {
		return
	}
	switch d.Kind {
	case share.Permit:
		w.permits++
		c.permitted(w, d)
	case share.SetShare:
		w.gpu.SetShare(w.now, c.id, d.Share)
	case share.Preempt:
		w.preempt(c)
	case share.Evict:
		c.evicted = true
		w.leave(c)
	case share.Grant:
		w.account()
		c.memory += d.Bytes
		w.start(c)
	case share.SetMemory:
		w.gpu.SetSpeed(w.now, c.id, pagedSpeed(c.memory, d.Bytes))
	default: // windows, rates and holds are kept by the policy itself, which gives the permits
	}
}

// pagedSpeed is the speed of a client part of whose memory is in the host's. It touches
// all of its memory in the same measure, and the bus is about 60 times slower than the
// GPU's memory. Our form.
func pagedSpeed(memory, resident int64) share.PPM {
	const slower = 60
	if memory <= 0 || resident >= memory {
		return share.Whole
	}
	away := int64(share.Whole) * (memory - max(resident, 0)) / memory
	return share.PPM(int64(share.Whole) * int64(share.Whole) / (int64(share.Whole) - away + slower*away))
}

// account adds the memory in use since the last change.
func (w *world) account() {
	var sum int64
	for _, c := range w.clients {
		if c.joined {
			sum += c.memory
		}
	}
	w.memory += (sum >> 20) * int64((w.now-w.lastMem)/time.Microsecond)
	w.lastMem = w.now
}
