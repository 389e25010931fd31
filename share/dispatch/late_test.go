package dispatch_test

import (
	"slices"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
	"github.com/dxpu-project/dxpu/share/dispatch"
)

// two is a device with two compute units, as processors of a small machine.
var two = share.Device{SMs: 2, ThreadsPerSM: 2048, Memory: 1 << 30}

// uncut returns a dispatcher for launches that are one part.
func uncut(t testing.TB, on share.Device, policy string) *dispatch.Dispatcher {
	t.Helper()
	d, err := dispatch.UncutByName(on, policy)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// newUncutWorld runs clients whose launches are one part each, as those of real hardware. A
// part that is late runs beside others, at full speed.
func newUncutWorld(t testing.TB, policy string, programs ...*program) *world {
	t.Helper()
	for _, p := range programs {
		p.part = p.kernel
	}
	return worldOf(t, uncut(t, two, policy), programs)
}

// Shares are kept over ten seconds though no launch can be cut, also beside kernels that are
// much longer.
func TestSharesOfUncutLaunches(t *testing.T) {
	client := func(n int, kernel time.Duration) *program { return &program{spec: percent(n), kernel: kernel} }
	const ms = time.Millisecond
	apart := func(n int) *program { // kernels of a turn of package session, in another process
		return &program{spec: percent(n), kernel: ms, gap: 80 * time.Microsecond}
	}
	for _, policy := range []string{"mps", "gemini"} {
		// The limit of gemini's window is never exceeded: where it is no whole number of kernels, one
		// of 150 ms is missing from 2.5 s.
		oneLess := map[string]float64{"mps": 0.03, "gemini": 0.06}[policy]
		// Its token is held between turns, too.
		gaps := map[string]float64{"mps": 0.03, "gemini": 0.10}[policy]
		for _, c := range []struct {
			name     string
			within   float64
			programs []*program
		}{
			{"alone", 0.03, []*program{client(30, 7*ms)}},
			{"equal kernels", 0.03, []*program{client(30, 7*ms), client(50, 7*ms), client(20, 7*ms)}},
			{"long and short kernels", 0.03, []*program{client(25, 50*ms), client(75, 5*ms)}},
			{"very long and short kernels", oneLess, []*program{client(25, 150*ms), client(75, 10*ms)}},
			{"short and long kernels", 0.03, []*program{client(25, 2*ms), client(75, 120*ms)}},
			{"gaps between turns", gaps, []*program{apart(60), apart(30)}},
			{"less than a multiprocessor", 0.03, []*program{client(10, 5*ms), client(90, 5*ms)}},
		} {
			t.Run(policy+"/"+c.name, func(t *testing.T) {
				for i, p := range c.programs {
					p.id = share.ClientID(i + 1)
				}
				newUncutWorld(t, policy, c.programs...).wantShares(t, c.within)
			})
		}
	}
}

// Kernels that are late, and so completed for the policy, are paid for, whatever the policy.
func TestLimitsOfLateLaunches(t *testing.T) {
	for _, policy := range []string{"mps", "gemini", "gaia", "gaiapi"} {
		for _, kernel := range []time.Duration{time.Second, 5 * time.Second} {
			p := &program{id: 1, spec: percent(10), kernel: kernel}
			beside := &program{id: 2, spec: percent(30), kernel: time.Millisecond}
			w := newUncutWorld(t, policy, p, beside)
			w.run(500 * time.Second)
			if got, want := w.d.Usage(1).Service, 50*time.Second; got > want+kernel || got < want*8/10-kernel {
				t.Errorf("%s: kernels of %v had %v of %v, want %v", policy, kernel, got, w.now, want)
			}
			if len(w.evicted) > 0 || w.d.Violations() != 0 {
				t.Errorf("%s: evicted %v, %d events were wrong", policy, w.evicted, w.d.Violations())
			}
		}
	}
}

// pair is a dispatcher with two clients.
func pair(t *testing.T, policy string) *dispatch.Dispatcher {
	t.Helper()
	d := uncut(t, small, policy)
	for id := range share.ClientID(2) {
		if err := d.Join(0, id+1, percent(50)); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// endless begins a launch of client 1 that does not end.
func endless(t *testing.T, d *dispatch.Dispatcher) dispatch.Turn {
	t.Helper()
	d.Launch(0, 1, share.Kernel{Blocks: 1})
	turn, ok := d.Next(0)
	if !ok || turn.Client != 1 {
		t.Fatal("no turn for the only launch")
	}
	return turn
}

// endOf lets the time pass until the launch of a client ends.
func endOf(t *testing.T, d *dispatch.Dispatcher, now time.Duration, id share.ClientID) time.Duration {
	t.Helper()
	for !slices.Contains(d.Ended(now, nil), id) {
		if turn, ok := d.Next(now); ok {
			t.Fatalf("a turn of client %d", turn.Client)
		}
		if now = d.Wake(); now > time.Hour {
			t.Fatalf("the launch of client %d does not end", id)
		}
	}
	d.Completed(now, id)
	return now
}

// waitsOf runs short kernels of client 2 for a minute and returns how long each waited for
// its turn.
func waitsOf(t *testing.T, d *dispatch.Dispatcher) (waits []time.Duration, now time.Duration) {
	t.Helper()
	for now < time.Minute {
		from := now
		if _, ok := d.Launch(now, 2, share.Kernel{Blocks: 1}); !ok {
			t.Fatal("the launch was refused")
		}
		turn, ok := d.Next(now)
		for !ok {
			if now = d.Wake(); now > time.Hour {
				t.Fatal("the launch waits for ever")
			}
			turn, ok = d.Next(now)
		}
		if turn.Client != 2 {
			t.Fatalf("a turn of client %d, whose launch has not ended", turn.Client)
		}
		waits = append(waits, now-from)
		now += 2 * time.Millisecond
		d.Ran(now, turn, 2*time.Millisecond, false)
		now = endOf(t, d, now, 2) + 4*time.Millisecond // less than its share
	}
	return waits, now
}

// A launch that does not end holds the others up for Patience only, under each policy, and may
// end much later.
func TestEndlessLaunch(t *testing.T) {
	for _, info := range share.Policies() {
		t.Run(info.Name, func(t *testing.T) {
			alone, _ := waitsOf(t, pair(t, info.Name))
			d := pair(t, info.Name)
			late := endless(t, d)
			waits, now := waitsOf(t, d)
			if e := d.Evicted(); len(e) > 0 {
				t.Errorf("evicted %v", e)
			}
			if waits[0] > dispatch.Patience+50*time.Millisecond { // a policy may have turns
				t.Errorf("the first launch of the neighbour waited %v", waits[0])
			}
			if got, want := slices.Max(waits[1:]), slices.Max(alone)+dispatch.Patience; got > want || len(waits) < len(alone)*9/10 {
				t.Errorf("%d launches waited up to %v, alone %d up to %v", len(waits), got, len(alone), slices.Max(alone))
			}
			d.Ran(now, late, now, false)
			if now = endOf(t, d, now, 1); now > 2*time.Minute+time.Second {
				t.Errorf("the client of the endless launch may go on after %v", now)
			}
			if _, ok := d.Launch(now, 1, share.Kernel{Blocks: 1}); !ok {
				t.Error("the next launch of the client was refused")
			}
			if n := d.Violations(); n != 0 {
				t.Errorf("the policy found %d events wrong", n)
			}
		})
	}
}

// A client whose launch ran for long beside those of others has its turns again soon after it,
// with the policies that permit launches of several clients at a time.
func TestTurnsAfterAnEndlessLaunch(t *testing.T) {
	const end = 10 * time.Minute
	for _, policy := range []string{"streams", "mps", "gaia", "gaiapi"} {
		p := &program{id: 1, spec: percent(100), kernel: end}
		w := newUncutWorld(t, policy, p, &program{id: 2, spec: percent(100), kernel: 20 * time.Millisecond})
		w.run(time.Second)
		p.kernel, p.part = 20*time.Millisecond, 20*time.Millisecond
		w.run(end + 2*time.Minute)
		before := w.d.Usage(1).Service
		w.run(w.now + 10*time.Second)
		if got := w.d.Usage(1).Service - before; got < 4*time.Second {
			t.Errorf("%s: it had %v of ten seconds, want half of them", policy, got)
		}
	}
}

// A client that leaves while its late launch runs leaves nothing behind, also if it joins
// again before the launch ends.
func TestLateLaunchOfAClientThatLeft(t *testing.T) {
	d := pair(t, "mps")
	former := endless(t, d)
	d.Next(time.Second)
	d.Leave(time.Second, 1)
	if err := d.Join(time.Second, 1, percent(50)); err != nil {
		t.Fatal(err)
	}
	d.Launch(time.Second, 1, share.Kernel{Blocks: 1})
	turn, ok := d.Next(time.Second)
	if !ok {
		t.Fatal("no turn for the client that joined again")
	}
	const soon = time.Second + dispatch.Patience/2
	d.Ran(soon, former, soon, false)
	d.Launch(soon, 2, share.Kernel{Blocks: 1})
	if _, ok := d.Next(soon); ok {
		t.Error("the end of the former launch was taken for that of the new one")
	}
	d.Ran(soon, turn, time.Millisecond, false)
	if got := d.Usage(1).Service; got != time.Millisecond {
		t.Errorf("the new client is charged %v", got)
	}
}
