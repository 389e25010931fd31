package gate_test

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/gate"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/share"
)

// program is a process in virtual time: bursts of kernels with some launches ahead.
type program struct {
	id     gate.ProcessID
	client share.ClientID
	kernel time.Duration
	burst  int           // kernels of a burst; 0: no end
	pause  time.Duration // after a burst
	ahead  int           // launches that it has at the gate or in flight

	next, left, out int
	ran             time.Duration
	gone            bool

	credit bool // it launches by its credit, and reports later, as the library does
	asking bool // its one thread waits for a permit

	spans  [][2]time.Duration                // in which its kernels ran
	blocks int64                             // that it tells; 0: 1000
	tell   func(time.Duration) time.Duration // what it tells of a launch, nil: the truth
	twice  bool                              // it tells each end twice
	copies func(n int) time.Duration         // before its n-th kernel, in the same stream
	late   func(n int) time.Duration         // until it tells the end
	stops  int                               // kernels until it is stopped, and tells no end; 0: never
	untold []gate.Permit
}

// world is a GPU that runs one kernel at a time, in the order of the permits.
type world struct {
	t        testing.TB
	g        *gate.Gate
	now      time.Duration
	events   machine.Queue[func()]
	programs map[gate.ProcessID]*program
	queue    []gate.Permit
	busy     bool
	byCredit int // launches
	asked    int
	resizes  bool // launches in flight may be forgotten
}

var device = share.Device{SMs: 80, ThreadsPerSM: 2048, Memory: 16 << 30}

func newWorld(t testing.TB, policy string) *world {
	t.Helper()
	g, err := gate.New(device, policy)
	if err != nil {
		t.Fatal(err)
	}
	return &world{t: t, g: g, programs: map[gate.ProcessID]*program{}}
}

func (w *world) join(id share.ClientID, spec share.ClientSpec) {
	w.t.Helper()
	if err := w.g.Join(w.now, id, spec); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) add(p *program) {
	w.t.Helper()
	if err := w.g.Enter(w.now, p.client, p.id); err != nil {
		w.t.Fatal(err)
	}
	if p.ahead == 0 {
		p.ahead = 4
	}
	w.programs[p.id] = p
	p.left = p.burst
	w.fill(p)
}

func (w *world) remove(p *program) {
	p.gone = true
	delete(w.programs, p.id)
	w.g.Exit(w.now, p.id)
}

func (w *world) fill(p *program) {
	if p.credit {
		w.fillByCredit(p)
		return
	}
	for p.out < p.ahead && (p.burst == 0 || p.left > 0) {
		p.next++
		p.out++
		p.left--
		if !w.g.Launch(w.now, p.id, gate.Launch{ID: uint64(p.next), Blocks: cmp.Or(p.blocks, 1000), Threads: 256, Kernels: 1, Function: uint64(p.id)}) {
			w.t.Fatalf("launch %d of process %d was refused", p.next, p.id)
		}
	}
	if p.burst > 0 && p.left == 0 {
		w.g.Idle(w.now, p.id)
	}
}

func (w *world) start() {
	for !w.busy && len(w.queue) > 0 {
		x := w.queue[0]
		w.queue = w.queue[1:]
		p := w.programs[x.Process]
		if p == nil {
			continue
		}
		w.busy = true
		from := w.now
		if p.copies != nil {
			from += p.copies(len(p.spans))
		}
		end := from + p.kernel
		p.spans = append(p.spans, [2]time.Duration{from, end})
		if p.late != nil {
			end += p.late(len(p.spans))
		}
		w.events.Push(end, func() { w.ended(p, x) })
	}
}

func (w *world) ended(p *program, x gate.Permit) {
	w.busy = false
	if p.stops > 0 && len(p.spans) >= p.stops {
		p.untold = append(p.untold, x)
	} else if !p.gone {
		p.ran += p.kernel
		p.out--
		w.done(p, x.Launch)
		switch {
		case p.burst == 0 || p.left > 0:
			w.fill(p)
		case p.out == 0:
			w.events.Push(w.now+p.pause, func() {
				if !p.gone {
					p.left = p.burst
					w.fill(p)
				}
			})
		}
	}
	w.start()
}

func (w *world) run(until time.Duration) {
	for steps := 0; ; steps++ {
		w.permitted(w.g.Transmit(w.now, nil))
		w.start()
		at := min(w.events.Wake(), max(w.g.Wake(), w.now))
		if at > until {
			w.now = until
			return
		}
		if at > w.now {
			steps = 0
		} else if steps > 10_000 {
			w.t.Fatalf("the time %v does not pass", w.now)
		}
		w.now = at
		for {
			f, ok := w.events.Pop(w.now)
			if !ok {
				break
			}
			f()
		}
	}
}

func percent(n int) share.ClientSpec {
	return share.ClientSpec{Request: share.Percent(n), Limit: share.Percent(n), Memory: 1 << 20}
}

// The programs of a share get its compute over ten seconds: within 3 % with steady kernels,
// within 10 % with bursts. Two processes of one share have it together.
func TestShares(t *testing.T) {
	for _, c := range []struct {
		name     string
		within   float64
		shares   []int
		programs []program
	}{
		{"alone", 0.03, []int{30}, []program{{kernel: 7 * time.Millisecond}}},
		{"steady", 0.03, []int{30, 50, 20}, []program{{kernel: 7 * time.Millisecond}, {kernel: 2 * time.Millisecond}, {kernel: 200 * time.Microsecond}}},
		{"long and short kernels", 0.03, []int{25, 75}, []program{{kernel: 500 * time.Microsecond}, {kernel: 60 * time.Millisecond}}},
		{"two processes of a share", 0.03, []int{60, 40}, []program{{kernel: 3 * time.Millisecond}, {kernel: 3 * time.Millisecond}, {client: 1, kernel: time.Millisecond}}},
		{"bursts", 0.10, []int{20, 40, 40}, []program{
			{kernel: 5 * time.Millisecond, burst: 60, pause: 20 * time.Millisecond},
			{kernel: 5 * time.Millisecond, burst: 60, pause: 20 * time.Millisecond},
			{kernel: 5 * time.Millisecond},
		}},
	} {
		t.Run(c.name, func(t *testing.T) { testShares(t, c.shares, c.programs, c.within, false) })
		t.Run(c.name+" by credit", func(t *testing.T) { testShares(t, c.shares, c.programs, c.within, true) })
	}
}

func testShares(t *testing.T, shares []int, programs []program, within float64, credit bool) {
	t.Helper()
	w := newWorld(t, "gemini")
	for i, n := range shares {
		w.join(share.ClientID(i+1), percent(n))
	}
	for i := range programs {
		p := programs[i]
		p.id, p.credit = gate.ProcessID(i+100), credit
		if p.client == 0 {
			p.client = share.ClientID(i + 1)
		}
		w.add(&p)
	}
	w.run(10 * time.Second)
	before := make([]time.Duration, len(shares))
	for i := range shares {
		before[i] = w.g.Usage(share.ClientID(i + 1)).Busy
	}
	w.run(20 * time.Second)
	for i, n := range shares {
		got := (w.g.Usage(share.ClientID(i+1)).Busy - before[i]).Seconds() * 10
		t.Logf("share %d: %.2f %% of %d %%", i+1, got, n)
		if got < float64(n)*(1-within) || got > float64(n)*(1+within) {
			t.Errorf("share %d got %.2f %% of the GPU, want %d %% within %.0f %%", i+1, got, n, 100*within)
		}
	}
	if n := w.g.Violations(); n != 0 {
		t.Errorf("the policy found %d events wrong", n)
	}
	if credit && w.byCredit == 0 {
		t.Error("no launch had a credit")
	}
	t.Logf("%d launches by credit, %d asked", w.byCredit, w.asked)
}

// Every policy gets work done, with processes that come, end in the middle of their
// launches, are held and resized, and finds no event wrong. In the end nothing is left.
func TestEveryPolicy(t *testing.T) {
	for _, info := range share.Policies() {
		t.Run(info.Name, func(t *testing.T) { t.Parallel(); testEveryPolicy(t, info.Name, false) })
		t.Run(info.Name+" by credit", func(t *testing.T) { t.Parallel(); testEveryPolicy(t, info.Name, true) })
	}
}

func testEveryPolicy(t *testing.T, policy string, credit bool) {
	t.Helper()
	w := newWorld(t, policy)
	w.resizes = true
	for i := range share.ClientID(3) {
		w.join(i+1, share.ClientSpec{Class: share.Class(i % 2), Request: share.Percent(30), Memory: 1 << 30})
	}
	online := &program{id: 1, client: 1, kernel: time.Millisecond, burst: 5, pause: 20 * time.Millisecond, credit: credit}
	offline := &program{id: 2, client: 2, kernel: 4 * time.Millisecond, credit: credit}
	w.add(online)
	w.add(offline)
	rng := rand.New(rand.NewPCG(1, 2))
	var guests []*program
	next := gate.ProcessID(10)
	for range 200 {
		w.run(w.now + time.Duration(rng.Int64N(int64(100*time.Millisecond))))
		switch rng.IntN(6) {
		case 0, 1:
			if len(guests) < 10 {
				next++
				p := &program{id: next, client: share.ClientID(rng.IntN(3) + 1), kernel: time.Duration(rng.Int64N(int64(3 * time.Millisecond))), ahead: 20, credit: credit}
				w.add(p)
				guests = append(guests, p)
			}
		case 2:
			w.g.Hold(w.now, 3, rng.IntN(2) == 0)
		case 3:
			spec := share.ClientSpec{Class: share.Offline, Request: share.Percent(10 + rng.IntN(20)), Memory: 1 << 30}
			if !w.g.Resize(w.now, 3, spec) {
				t.Fatal("no room for a small change")
			}
		default:
			if n := len(guests); n > 0 {
				i := rng.IntN(n)
				w.remove(guests[i])
				guests = slices.Delete(guests, i, i+1)
			}
		}
	}
	for _, p := range guests {
		w.remove(p)
	}
	before := [...]time.Duration{online.ran, offline.ran}
	w.run(w.now + time.Minute)
	if online.ran == before[0] || offline.ran == before[1] {
		t.Errorf("in a minute the programs ran for %v and %v", online.ran-before[0], offline.ran-before[1])
	}
	if n := w.g.Violations(); n != 0 {
		t.Errorf("the policy found %d events wrong", n)
	}
	w.remove(online)
	w.remove(offline)
	for id := range share.ClientID(3) {
		w.run(w.now + time.Second)
		if n := w.g.InFlight(id + 1); n != 0 {
			t.Errorf("%d launches of client %d are left", n, id+1)
		}
		w.g.Leave(w.now, id+1)
	}
	if e := w.g.Evicted(); len(e) > 0 {
		t.Errorf("evicted %v", e)
	}
}

// A share that is resized again and again keeps to its limit over ten seconds: the gate forgets
// neither what it has used nor what runs.
func TestLimitHoldsAcrossResizes(t *testing.T) {
	w := newWorld(t, "gemini")
	w.join(1, percent(30))
	w.join(2, percent(10))
	w.add(&program{id: 1, client: 1, kernel: 7 * time.Millisecond})
	for i := range 100 {
		w.run(time.Duration(i) * 100 * time.Millisecond)
		n := w.g.InFlight(1)
		if !w.g.Resize(w.now, 1, percent(30-i%2)) || w.g.InFlight(1) < n {
			t.Fatalf("%d launches in flight before the resize, %d after it", n, w.g.InFlight(1))
		}
	}
	if got := w.g.Usage(1).Busy; got > 3*time.Second || got < 2700*time.Millisecond {
		t.Errorf("%v in ten seconds with a limit of 30 %%", got)
	}
}

// A held client gets no permit, and the others get its time. It goes on when it is resumed.
func TestHold(t *testing.T) {
	w := newWorld(t, "timeslice")
	w.join(1, share.ClientSpec{})
	w.join(2, share.ClientSpec{})
	a, b := &program{id: 1, client: 1, kernel: time.Millisecond, ahead: 8}, &program{id: 2, client: 2, kernel: time.Millisecond}
	w.add(a)
	w.add(b)
	w.run(time.Second)
	w.g.Hold(w.now, 1, true)
	inFlight, before := w.g.InFlight(1), a.ran
	w.run(w.now + 10*time.Millisecond) // launches in flight end, and none begins
	if got := a.ran - before; got > time.Duration(inFlight)*a.kernel {
		t.Errorf("a held client with %d launches in flight ran for %v more", inFlight, got)
	}
	ranA, ranB := a.ran, b.ran
	w.run(w.now + 2*time.Minute) // longer than a launch may run
	if a.ran != ranA {
		t.Errorf("a held client ran for %v", a.ran-ranA)
	}
	if got := b.ran - ranB; got < 2*time.Minute-time.Second {
		t.Errorf("the other client ran for %v in two minutes", got)
	}
	w.g.Hold(w.now, 1, false)
	ranA = a.ran
	w.run(w.now + time.Second)
	if got := a.ran - ranA; got < 400*time.Millisecond {
		t.Errorf("the resumed client ran for %v in a second", got)
	}
	if e, n := w.g.Evicted(), w.g.Violations(); len(e) > 0 || n > 0 {
		t.Errorf("evicted %v, %d events wrong", e, n)
	}
}

// The gate of a client is open only while there is nothing to share.
func TestOpen(t *testing.T) {
	w := newWorld(t, "gemini")
	w.join(1, share.ClientSpec{})
	w.join(2, percent(50))
	if !w.g.Open(1) || w.g.Open(2) {
		t.Errorf("open: %v and %v", w.g.Open(1), w.g.Open(2))
	}
	w.add(&program{id: 2, client: 2, kernel: time.Millisecond})
	if w.g.Open(1) {
		t.Error("open beside another process")
	}
	w.g.Exit(w.now, 2)
	w.g.Hold(w.now, 1, true)
	if w.g.Open(1) || !w.g.Held(1) {
		t.Error("open while held")
	}
	if w := newWorld(t, "mps"); !func() bool { w.join(1, percent(50)); return w.g.Open(1) }() {
		t.Error("closed although the hardware keeps the shares")
	}
}

// A launch that never ends evicts its client, which joins again.
func TestStuck(t *testing.T) {
	w := newWorld(t, "timeslice")
	w.join(1, share.ClientSpec{})
	w.join(2, share.ClientSpec{})
	if err := w.g.Enter(0, 1, 9); err != nil {
		t.Fatal(err)
	}
	if !w.g.Launch(0, 9, gate.Launch{ID: 1}) || len(w.g.Transmit(0, nil)) != 1 {
		t.Fatal("no permit")
	}
	other := &program{id: 10, client: 2, kernel: time.Millisecond}
	w.add(other)
	w.run(2 * share.StuckAfter)
	if e := w.g.Evicted(); len(e) != 1 || e[0] != (gate.Eviction{Client: 1, Reason: share.ReasonStuck}) {
		t.Errorf("evicted %v", e)
	}
	if other.ran < share.StuckAfter/2 {
		t.Errorf("the other client ran for %v", other.ran)
	}
	if w.g.Done(w.now, 9, 1, 0) {
		t.Error("the launch is still in flight")
	}
	if !w.g.Launch(w.now, 9, gate.Launch{ID: 2}) {
		t.Error("the process cannot launch")
	}
}

// Calls that do not fit change nothing.
func TestWrongCalls(t *testing.T) {
	w := newWorld(t, "gemini")
	w.join(1, percent(50))
	if w.g.Launch(0, 1, gate.Launch{}) || w.g.Done(0, 1, 1, 0) || w.g.Resize(0, 9, percent(1)) {
		t.Error("an unknown process has an effect")
	}
	w.g.Exit(0, 1)
	w.g.Idle(0, 1)
	w.g.Withdraw(0, 1)
	w.g.Count(0, 1, 1, 1)
	w.g.Hold(0, 9, true)
	w.g.Leave(0, 9)
	if err := w.g.Join(0, 1, percent(1)); err == nil {
		t.Error("a client joined twice")
	}
	for id := range gate.ProcessID(gate.MaxProcesses) {
		if err := w.g.Enter(0, 1, id+1); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.g.Enter(0, 1, 1000); err == nil {
		t.Error("a client has too many processes")
	}
	n := 0
	for w.g.Launch(0, 1, gate.Launch{ID: uint64(n)}) {
		n++
	}
	if n < gate.MaxWaiting || n > gate.MaxWaiting+share.MaxInFlight {
		t.Errorf("%d launches were taken", n)
	}
	if n := w.g.Violations(); n != 0 {
		t.Errorf("the policy found %d events wrong", n)
	}
	for range share.MaxClients {
		_ = w.g.Join(0, share.ClientID(rand.Uint32()|1<<20), percent(0))
	}
	if err := w.g.Join(0, 1<<30, percent(0)); err == nil {
		t.Error("the table has no end")
	}
}
