package gate_test

import (
	"cmp"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/gate"
	"github.com/dxpu-project/dxpu/share"
)

// reportDelay is that of the programs of these tests: the gate hears of launches by credit and
// of their ends later, in the same order.
const reportDelay = 100 * time.Microsecond

// later runs f after the delay, if the program lives.
func (w *world) later(p *program, f func()) {
	w.events.Push(w.now+reportDelay, func() {
		if !p.gone {
			f()
		}
	})
}

func (w *world) done(p *program, launch uint64) {
	ran := p.kernel
	if p.tell != nil {
		ran = p.tell(ran)
	}
	if p.twice {
		defer w.g.Done(w.now, p.id, launch, ran)
	}
	if !p.credit {
		w.g.Done(w.now, p.id, launch, ran)
		return
	}
	w.later(p, func() {
		if !w.g.Done(w.now, p.id, launch, ran) && !w.resizes {
			w.t.Errorf("the end of launch %d of process %d is not known", launch, p.id)
		}
	})
}

// permitted starts the launches with new permits, and lets programs look at their credits.
func (w *world) permitted(list []gate.Permit) {
	w.queue = append(w.queue, list...)
	for _, x := range list {
		if p := w.programs[x.Process]; p != nil {
			p.asking = false
		}
	}
	for id := gate.ProcessID(0); id < 200; id++ { // in the same order in each run
		if p := w.programs[id]; p != nil && p.credit {
			w.fill(p)
		}
	}
}

// fillByCredit launches as the library does: one thread, which goes ahead while it has credit,
// and otherwise asks and waits.
func (w *world) fillByCredit(p *program) {
	for !p.asking && (p.burst == 0 || p.left > 0) {
		credit := int(w.g.Credit(p.client))
		if credit > 0 && p.out >= credit {
			return
		}
		p.next++
		p.out++
		p.left--
		l := gate.Launch{ID: uint64(p.next), Blocks: cmp.Or(p.blocks, 1000), Threads: 256, Kernels: 1, Function: uint64(p.id), Started: credit > 0}
		launch := func() {
			if !w.g.Launch(w.now, p.id, l) {
				w.t.Fatalf("launch %d of process %d was refused", l.ID, p.id)
			}
		}
		if l.Started {
			w.byCredit++
			w.queue = append(w.queue, gate.Permit{Process: p.id, Launch: l.ID})
			w.later(p, launch)
		} else {
			w.asked++
			p.asking = true
			w.later(p, launch)
		}
		if p.burst > 0 && p.left == 0 {
			w.later(p, func() { w.g.Idle(w.now, p.id) })
		}
	}
}

func newCredit(t *testing.T, policy string) *world {
	t.Helper()
	w := newWorld(t, policy)
	w.join(1, share.ClientSpec{Memory: 1 << 20})
	w.join(2, share.ClientSpec{Class: share.Offline, Memory: 1 << 20})
	for id := range gate.ProcessID(2) {
		if err := w.g.Enter(0, share.ClientID(id+1), id+1); err != nil {
			t.Fatal(err)
		}
	}
	w.g.Transmit(0, nil)
	return w
}

// The processes of a client divide its credit; a held client has none.
func TestCredit(t *testing.T) {
	w := newCredit(t, "reef")
	check := func(what string, online, offline int32, changed int) {
		t.Helper()
		w.g.Transmit(w.now, nil)
		if a, b := w.g.Credit(1), w.g.Credit(2); a != online || b != offline {
			t.Errorf("%s: credits of %d and %d, want %d and %d", what, a, b, online, offline)
		}
		if n := len(w.g.Changed()); n != changed {
			t.Errorf("%s: %d clients changed, want %d", what, n, changed)
		}
	}
	check("at first", share.MaxInFlight, 2, 2)
	check("again", share.MaxInFlight, 2, 0)
	for id := range gate.ProcessID(2) {
		if err := w.g.Enter(0, 2, id+10); err != nil {
			t.Fatal(err)
		}
	}
	check("three processes", share.MaxInFlight, 0, 1)
	w.g.Exit(0, 10)
	check("two processes", share.MaxInFlight, 1, 1)
	w.g.Launch(0, 1, gate.Launch{ID: 1, Started: true})
	check("in a request", share.MaxInFlight, 0, 1)
	w.g.Hold(0, 1, true)
	check("held", 0, 0, 1)
	w.g.Hold(0, 1, false)
	w.g.Done(0, 1, 1, 0)
	w.g.Idle(0, 1)
	check("after the request", share.MaxInFlight, 1, 2)
	w.g.Exit(0, 1)
	check("no process", 0, 1, 1)
}

// A launch by credit gets no answer, counts as soon as it is told, and is charged with the time
// that it ran, also when launch and end are told at once.
func TestLaunchByCredit(t *testing.T) {
	w := newCredit(t, "reef")
	w.now = time.Second
	if !w.g.Launch(w.now, 1, gate.Launch{ID: 7, Kernels: 1, Blocks: 1, Started: true}) {
		t.Fatal("refused")
	}
	if out := w.g.Transmit(w.now, nil); len(out) != 0 {
		t.Errorf("permits %v", out)
	}
	if n := w.g.InFlight(1); n != 1 {
		t.Errorf("%d launches in flight", n)
	}
	const ran = 20 * time.Microsecond
	if !w.g.Done(w.now, 1, 7, ran) || w.g.Done(w.now, 1, 7, ran) {
		t.Error("the end counts not at all or twice")
	}
	if u := w.g.Usage(1); u.Busy != ran || u.Launches != 1 || u != w.g.ProcessUsage(1) {
		t.Errorf("usage %+v", u)
	}
	// A liar's launch is not longer than the time for which it can have run.
	w.g.Launch(w.now, 1, gate.Launch{ID: 8, Started: true})
	w.g.Done(w.now, 1, 8, time.Hour)
	if u := w.g.Usage(1); u.Busy > 2*time.Millisecond {
		t.Errorf("usage %+v", u)
	}
	if n := w.g.Violations(); n != 0 {
		t.Errorf("the policy found %d events wrong", n)
	}
}

// A launch that is told after its credit was taken back waits for its turn in the account. If
// it ends before, it was no launch of the policy, and is charged all the same.
func TestLaunchAfterItsCredit(t *testing.T) {
	w := newCredit(t, "timeslice")
	w.g.Launch(0, 2, gate.Launch{ID: 1})
	if out := w.g.Transmit(0, nil); len(out) != 1 || w.g.Credit(2) == 0 || w.g.Credit(1) != 0 {
		t.Fatalf("permits %v, credits %d and %d", out, w.g.Credit(1), w.g.Credit(2))
	}
	for id := range uint64(3) {
		w.g.Launch(0, 1, gate.Launch{ID: id, Kernels: 1, Started: true})
	}
	if out := w.g.Transmit(0, nil); len(out) != 0 || w.g.Waiting(1) != 3 || w.g.InFlight(1) != 0 {
		t.Errorf("permits %v, %d wait", out, w.g.Waiting(1))
	}
	w.now = time.Millisecond
	if !w.g.Done(w.now, 1, 0, time.Hour) || w.g.Done(w.now, 1, 0, time.Hour) {
		t.Error("the end counts not at all or twice")
	}
	if u := w.g.Usage(1); u.Launches != 1 || u.Busy < time.Millisecond || u.Busy > 2*time.Millisecond || w.g.Waiting(1) != 2 {
		t.Errorf("usage %+v, %d wait", u, w.g.Waiting(1))
	}
	w.g.Done(w.now, 2, 1, w.now)
	w.now = 10 * time.Millisecond // the turn is over
	w.g.Transmit(w.now, nil)
	if n := w.g.InFlight(1); n != 2 {
		t.Errorf("%d launches in flight in their turn, want 2", n)
	}
	w.g.Done(w.now, 1, 1, 0)
	w.g.Launch(w.now, 1, gate.Launch{ID: 9, Started: true})
	w.g.Exit(w.now, 1)
	if n := w.g.InFlight(1); n != 0 {
		t.Errorf("%d launches of a process that ended", n)
	}
	if n := w.g.Violations(); n != 0 {
		t.Errorf("the policy found %d events wrong", n)
	}
}

// A limit of utilisation is kept by credit as by permits, also with launches that are shorter
// than the time in which the gate hears of them. A client may get a bit less: the gate takes the
// time until it hears of an end for work.
func TestLimitsByCredit(t *testing.T) {
	const limit = 30
	for _, policy := range []string{"gaia", "gaiapi"} {
		for _, kernel := range []time.Duration{50 * time.Microsecond, 500 * time.Microsecond} {
			t.Run(policy+" "+kernel.String(), func(t *testing.T) {
				var used [2]float64
				for i, credit := range []bool{false, true} {
					w := newWorld(t, policy)
					w.join(1, percent(limit))
					w.add(&program{id: 1, client: 1, kernel: kernel, credit: credit})
					w.run(20 * time.Second) // gaia needs them
					before := w.g.Usage(1).Busy
					w.run(w.now + 10*time.Second)
					used[i] = (w.g.Usage(1).Busy - before).Seconds() * 10
					if n := w.g.Violations(); n != 0 {
						t.Errorf("the policy found %d events wrong", n)
					}
					if credit && w.byCredit < w.asked/2 {
						t.Errorf("%d launches by credit, %d asked", w.byCredit, w.asked)
					}
				}
				t.Logf("%.2f %% by permits, %.2f %% by credit", used[0], used[1])
				if most := max(used[0], limit) * 1.01; used[1] > most || used[1] < limit*0.93 {
					t.Errorf("%.2f %% of the GPU by credit, %.2f %% by permits, limit %d %%", used[1], used[0], limit)
				}
			})
		}
	}
}
