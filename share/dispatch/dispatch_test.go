package dispatch_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/dispatch"
)

// program is a client in virtual time: jobs of kernels, each computed in parts.
type program struct {
	id      share.ClientID
	spec    share.ClientSpec
	kernel  time.Duration // on the whole GPU
	part    time.Duration
	kernels int           // of a job
	pause   time.Duration // between jobs; 0: a steady load
	burst   int           // jobs without a pause
	gap     time.Duration // from a turn to the beginning of its part
	kill    time.Duration // after which its owner ends a part of it; 0: never
	tell    share.Kernel  // what it says of its launches; no blocks: the truth
	silent  bool          // it launches nothing

	left, jobs  int
	began       time.Duration
	latencies   []time.Duration
	ranLaunches int
	todo        time.Duration // of the launch that runs
	restarts    int
	gone        bool
}

// world runs a dispatcher and its clients.
type world struct {
	t        testing.TB
	d        *dispatch.Dispatcher
	programs []*program
	events   machine.Queue[func()]
	now      time.Duration
	evicted  []dispatch.Eviction
}

var small = share.Device{SMs: 80, ThreadsPerSM: 2048, Memory: 1 << 30}

func newWorld(t testing.TB, policy string, programs ...*program) *world {
	t.Helper()
	d, err := dispatch.ByName(small, policy)
	if err != nil {
		t.Fatal(err)
	}
	return worldOf(t, d, programs)
}

func worldOf(t testing.TB, d *dispatch.Dispatcher, programs []*program) *world {
	t.Helper()
	w := &world{t: t, d: d}
	for _, p := range programs {
		w.add(p)
	}
	return w
}

func (w *world) add(p *program) {
	w.t.Helper()
	if err := w.join(p); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) join(p *program) error {
	if err := w.d.Join(w.now, p.id, p.spec); err != nil {
		return err
	}
	w.programs = append(w.programs, p)
	if !p.silent {
		w.events.Push(w.now, func() { w.job(p) })
	}
	return nil
}

func (w *world) remove(p *program) {
	p.gone = true
	w.d.Leave(w.now, p.id)
}

func (w *world) job(p *program) {
	p.left, p.began = max(p.kernels, 1), w.now
	w.launch(p)
}

func (w *world) launch(p *program) {
	if p.gone {
		return
	}
	k := share.Kernel{Blocks: 1000, SMs: 80, Expected: p.kernel / 1000}
	if p.tell.Blocks != 0 {
		k = p.tell
	}
	if _, ok := w.d.Launch(w.now, p.id, k); !ok {
		w.t.Fatalf("the launch of client %d was refused", p.id)
	}
}

func (w *world) program(id share.ClientID) *program {
	i := slices.IndexFunc(w.programs, func(p *program) bool { return p.id == id && !p.gone })
	if i < 0 {
		w.t.Fatalf("no client %d", id)
	}
	return w.programs[i]
}

// run lets the time pass.
func (w *world) run(until time.Duration) {
	for steps := 0; ; steps++ {
		at := min(w.events.Wake(), max(w.d.Wake(), w.now))
		if at > until {
			w.now = until
			return
		}
		if at > w.now {
			steps = 0
		} else if steps > 10_000 {
			w.t.Fatalf("the time %v does not pass: wake %v", w.now, w.d.Wake())
		}
		w.now = at
		for {
			f, ok := w.events.Pop(w.now)
			if !ok {
				break
			}
			f()
		}
		for _, id := range w.d.Ended(w.now, nil) {
			w.ended(w.program(id))
		}
		w.next()
		w.evicted = append(w.evicted, w.d.Evicted()...)
	}
}

func (w *world) next() {
	turn, ok := w.d.Next(w.now)
	if !ok {
		return
	}
	p := w.program(turn.Client)
	if turn.First {
		if p.todo > 0 {
			p.restarts++
		}
		p.todo = p.kernel
	}
	took := min(cmp.Or(p.part, time.Millisecond), p.todo)
	if p.kill > 0 && took > p.kill {
		took, p.todo = p.kill, p.kill
	}
	w.events.Push(w.now+p.gap+took, func() {
		p.todo -= took
		w.d.Ran(w.now, turn, took, p.todo > 0)
	})
}

func (w *world) ended(p *program) {
	p.ranLaunches++
	if p.left--; p.left > 0 {
		w.launch(p)
	} else {
		p.latencies = append(p.latencies, w.now-p.began)
		p.jobs++
		if p.pause > 0 && p.jobs%max(p.burst, 1) == 0 {
			w.events.Push(w.now+p.pause, func() {
				if !p.gone {
					w.job(p)
				}
			})
		} else {
			w.job(p)
		}
	}
	w.d.Completed(w.now, p.id)
}

func percent(n int) share.ClientSpec {
	return share.ClientSpec{Request: share.Percent(n), Limit: share.Percent(n), Memory: 1 << 20}
}

// wantShares runs the programs, and wants each that does not idle to have its share between 10
// and 20 s, within a part of it.
func (w *world) wantShares(t *testing.T, within float64) {
	t.Helper()
	w.run(10 * time.Second)
	var before []time.Duration
	for _, p := range w.programs {
		before = append(before, w.d.Usage(p.id).Service)
	}
	w.run(20 * time.Second)
	for i, p := range w.programs {
		if p.pause == time.Second {
			continue
		}
		got := (w.d.Usage(p.id).Service - before[i]).Seconds() / 10
		want := float64(p.spec.Limit) / float64(share.Whole)
		t.Logf("client %d: %.2f %% of %.0f %%", p.id, 100*got, 100*want)
		if got < want*(1-within) || got > want*(1+within) {
			t.Errorf("client %d got %.2f %% of the GPU, want %.0f %% within %.0f %%", p.id, 100*got, 100*want, 100*within)
		}
	}
	if n := w.d.Violations(); n != 0 {
		t.Errorf("the policy found %d events wrong", n)
	}
}

// A client with more work than its share gets its share over ten seconds: within 3 % with
// steady kernels, within 10 % with bursts, whatever the others do.
func TestShares(t *testing.T) {
	steady := func(n int) *program { return &program{spec: percent(n), kernel: 7 * time.Millisecond} }
	long := func(n int) *program { return &program{spec: percent(n), kernel: 60 * time.Millisecond} }
	bursts := func(n int) *program { // far more work than the share, in bursts
		return &program{spec: percent(n), kernel: 5 * time.Millisecond, kernels: 20, burst: 3, pause: 20 * time.Millisecond}
	}
	for _, policy := range []string{"mps", "gemini"} {
		for _, c := range []struct {
			name     string
			within   float64
			programs []*program
		}{
			{"steady alone", 0.03, []*program{steady(30)}},
			{"steady", 0.03, []*program{steady(30), steady(50), steady(20)}},
			{"long and short kernels", 0.03, []*program{steady(25), long(75)}},
			{"one idle", 0.03, []*program{steady(25), {spec: percent(50), kernel: time.Millisecond, pause: time.Second}, long(25)}},
			{"bursts", 0.10, []*program{bursts(20), bursts(40), steady(40)}},
		} {
			t.Run(policy+"/"+c.name, func(t *testing.T) {
				for i, p := range c.programs {
					p.id = share.ClientID(i + 1)
				}
				newWorld(t, policy, c.programs...).wantShares(t, c.within)
			})
		}
	}
}

// Shares that are no whole number of multiprocessors are kept, too: together they are no
// more than the GPU.
func TestSharesBetweenMultiprocessors(t *testing.T) {
	var programs []*program
	for i, limit := range append(slices.Repeat([]share.PPM{33_000}, 15), 505_000) {
		p := &program{id: share.ClientID(i + 1), spec: percent(1), kernel: 7 * time.Millisecond}
		p.spec.Request, p.spec.Limit = limit, limit
		programs = append(programs, p)
	}
	w := newWorld(t, "mps", programs...)
	w.run(20 * time.Second)
	for _, p := range programs {
		got, want := w.d.Usage(p.id).Service.Seconds()/20, float64(p.spec.Limit)/float64(share.Whole)
		if got < want*0.97 || got > want*1.03 {
			t.Errorf("client %d got %.2f %% of the GPU, want %.2f %%", p.id, 100*got, 100*want)
		}
	}
}

// With static shares of the multiprocessors, a kernel takes as long beside others as it
// takes alone.
func TestNeighbourIsNotFelt(t *testing.T) {
	run := func(flood bool) time.Duration {
		quiet := &program{id: 1, spec: percent(50), kernel: 4 * time.Millisecond, kernels: 3, pause: 11 * time.Millisecond}
		programs := []*program{quiet}
		if flood {
			programs = append(programs, &program{id: 2, spec: percent(50), kernel: 90 * time.Millisecond, part: 3 * time.Millisecond})
		}
		w := newWorld(t, "mps", programs...)
		w.run(10 * time.Second)
		slices.Sort(quiet.latencies)
		return quiet.latencies[len(quiet.latencies)*99/100]
	}
	alone, beside := run(false), run(true)
	t.Logf("p99 %v alone, %v beside", alone, beside)
	if beside > alone*6/5 {
		t.Errorf("p99 of %v beside a flood, %v alone", beside, alone)
	}
}

// Every policy gets all work done, with programs that come and go, and finds no event of
// the dispatcher wrong.
func TestEveryPolicy(t *testing.T) {
	for _, info := range share.Policies() {
		t.Run(info.Name, func(t *testing.T) {
			online := &program{id: 1, spec: share.ClientSpec{Request: share.Percent(40), Memory: 1 << 20}, kernel: 2 * time.Millisecond, kernels: 5, pause: 20 * time.Millisecond}
			offline := &program{id: 2, spec: share.ClientSpec{Class: share.Offline, Request: share.Percent(40), Memory: 1 << 20}, kernel: 9 * time.Millisecond}
			w := newWorld(t, info.Name, online, offline)
			rng := rand.New(rand.NewPCG(1, 2))
			for second := range 60 {
				w.run(time.Duration(second+1) * time.Second)
				if second%7 == 3 {
					guest := &program{id: 3, spec: share.ClientSpec{Request: share.Percent(10), Memory: 1 << 20}, kernel: time.Millisecond}
					if err := w.join(guest); err != nil {
						if info.Name != "mig" { // its profiles leave no room
							t.Fatal(err)
						}
						continue
					}
					w.run(w.now + time.Duration(rng.Int64N(int64(time.Second))))
					w.remove(guest)
				}
			}
			t.Logf("online %d jobs, offline %d launches, restarted %d, evicted %v", online.jobs, offline.ranLaunches, offline.restarts, w.evicted)
			if online.jobs < 600 {
				t.Errorf("%d online jobs in a minute", online.jobs)
			}
			if offline.ranLaunches < 100 {
				t.Errorf("%d offline launches in a minute", offline.ranLaunches)
			}
			if n := w.d.Violations(); n != 0 {
				t.Errorf("the policy found %d events wrong", n)
			}
			if info.Name == "reef" && offline.restarts == 0 {
				t.Error("the policy preempts, and no launch was restarted")
			}
		})
	}
}

// A share that changes while a launch waits, runs or is held takes effect at once.
func TestResize(t *testing.T) {
	p := &program{id: 1, spec: percent(20), kernel: 10 * time.Millisecond}
	other := &program{id: 2, spec: percent(20), kernel: 10 * time.Millisecond}
	w := newWorld(t, "mps", p, other)
	w.run(5 * time.Second)
	for i := range 200 { // at all states of its launches
		w.run(w.now + 1700*time.Microsecond)
		if !w.d.Resize(w.now, 1, percent(20+i%2*20)) {
			t.Fatal("the share was not changed")
		}
	}
	w.d.Resize(w.now, 1, percent(60))
	if w.d.Resize(w.now, 1, share.ClientSpec{Memory: small.Memory}) {
		t.Error("a client got the memory of another one")
	}
	before, from := w.d.Usage(1).Service, w.now
	w.run(w.now + 10*time.Second)
	got := (w.d.Usage(1).Service - before).Seconds() / (w.now - from).Seconds()
	if got < 0.6*0.97 || got > 0.6*1.03 {
		t.Errorf("%.2f %% of the GPU after the change to 60 %%", 100*got)
	}
	if n := w.d.Violations(); n != 0 {
		t.Errorf("the policy found %d events wrong", n)
	}
}

// A client for whose new size the policy has no room keeps the old one, and goes on.
func TestResizeWithoutRoom(t *testing.T) {
	spec := share.ClientSpec{Request: share.Percent(40), Memory: 400 << 20}
	p, other := &program{id: 1, spec: spec, kernel: time.Millisecond}, &program{id: 2, spec: spec, kernel: time.Millisecond}
	w := newWorld(t, "mig", p, other)
	for range 20 { // at all states of its launches
		w.run(w.now + 1700*time.Microsecond)
		larger := spec
		larger.Memory = 600 << 20 // is there, but no instance of this size is
		if w.d.Resize(w.now, 1, larger) {
			t.Fatal("the client got two instances")
		}
	}
	before := p.ranLaunches
	w.run(w.now + time.Second)
	if len(w.evicted) > 0 || p.ranLaunches < before+100 {
		t.Errorf("evicted %v, %d launches in a second", w.evicted, p.ranLaunches-before)
	}
	if err := w.d.Join(w.now, 3, share.ClientSpec{Memory: small.Memory - 800<<20 + 1}); err == nil {
		t.Error("the account has lost memory of the client")
	}
	if n := w.d.Violations(); n != 0 {
		t.Errorf("the policy found %d events wrong", n)
	}
}

// The memory of all clients together is never more than the GPU's, to the byte.
func TestMemory(t *testing.T) {
	for _, info := range share.Policies() {
		w := newWorld(t, info.Name)
		half := share.ClientSpec{Request: share.Percent(40), Memory: small.Memory / 2}
		for id := share.ClientID(1); id <= 2; id++ {
			if err := w.d.Join(0, id, half); err != nil {
				t.Fatalf("%s: client %d: %v", info.Name, id, err)
			}
		}
		one := share.ClientSpec{Request: share.Percent(5), Memory: 1}
		if err := w.d.Join(0, 3, one); err == nil {
			t.Errorf("%s: a byte beyond the memory was granted", info.Name)
		}
		w.d.Leave(0, 1)
		if err := w.d.Join(0, 3, one); err != nil {
			t.Errorf("%s: %v", info.Name, err)
		}
		if err := w.d.Join(0, 4, half); err == nil {
			t.Errorf("%s: half of the memory and a byte were granted", info.Name)
		}
	}
}

// Clients that join, launch, leave and cancel at random leave nothing behind.
func TestComeAndGo(t *testing.T) {
	for _, info := range share.Policies() {
		w := newWorld(t, info.Name)
		rng := rand.New(rand.NewPCG(7, 9))
		var present []*program
		for range 3000 {
			w.run(w.now + time.Duration(rng.Int64N(int64(3*time.Millisecond))))
			switch n := len(present); {
			case n > 0 && (n == 5 || rng.IntN(2) == 0):
				i := rng.IntN(n)
				w.remove(present[i])
				present = slices.Delete(present, i, i+1)
			default:
				id := share.ClientID(1)
				for slices.ContainsFunc(present, func(p *program) bool { return p.id == id }) {
					id++
				}
				p := &program{id: id, spec: percent(15), kernel: time.Duration(rng.Int64N(int64(20 * time.Millisecond))), part: 2 * time.Millisecond}
				p.spec.Class = share.Class(rng.IntN(2))
				p.spec.Memory = small.Memory / 5
				if err := w.join(p); err == nil {
					present = append(present, p)
				} else if info.Name != "mig" {
					t.Fatalf("%s: %v", info.Name, err)
				}
			}
		}
		for _, p := range present {
			w.remove(p)
		}
		w.run(w.now + time.Minute)
		if at := w.d.Wake(); at != machine.Never && info.Name == "mps" {
			t.Errorf("%s: wakes at %v without clients", info.Name, at)
		}
		if _, ok := w.d.Next(w.now); ok {
			t.Errorf("%s: a part without a client runs", info.Name)
		}
		if err := w.d.Join(w.now, 1, share.ClientSpec{Memory: small.Memory}); err != nil {
			t.Errorf("%s: memory is leaked: %v", info.Name, err)
		}
		if n := w.d.Violations(); n != 0 {
			t.Errorf("%s: %d events were wrong", info.Name, n)
		}
	}
}

// Calls that do not fit change nothing.
func TestWrongCalls(t *testing.T) {
	w := newWorld(t, "mps")
	if _, ok := w.d.Launch(0, 9, share.Kernel{}); ok {
		t.Error("a launch of an unknown client")
	}
	if err := w.d.Join(0, 1, percent(10)); err != nil {
		t.Fatal(err)
	}
	if err := w.d.Join(0, 1, percent(10)); err == nil {
		t.Error("a client joined twice")
	}
	if _, ok := w.d.Launch(0, 1, share.Kernel{}); !ok {
		t.Error("the first launch was refused")
	}
	if _, ok := w.d.Launch(0, 1, share.Kernel{}); ok {
		t.Error("a second waiting launch")
	}
	w.d.Completed(0, 1)
	w.d.Ran(0, dispatch.Turn{}, 0, false)
	w.d.Leave(0, 8)
	w.d.Resize(0, 8, percent(1))
	turn, ok := w.d.Next(0)
	if !ok || turn.Client != 1 || !turn.First {
		t.Errorf("turn %+v, %t", turn, ok)
	}
	if _, ok := w.d.Next(0); ok {
		t.Error("two parts at one time")
	}
	w.d.Leave(0, 1)
	w.d.Ran(time.Millisecond, turn, time.Millisecond, true)
	w.d.Ran(time.Millisecond, turn, time.Millisecond, true)
	if _, ok := w.d.Next(time.Millisecond); ok {
		t.Error("a part of a client that has left")
	}
	if n := w.d.Violations(); n != 0 {
		t.Errorf("the policy found %d events wrong", n)
	}
}
