package gate

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// recorder notes the events of a policy.
type recorder struct {
	share.Policy
	events []share.Event
}

func (r *recorder) Receive(now time.Duration, e share.Event) {
	r.events = append(r.events, e)
	r.Policy.Receive(now, e)
}

// last returns the last event of a kind for client 1.
func (r *recorder) last(t *testing.T, k share.EventKind) share.Event {
	t.Helper()
	return r.lastOf(t, k, 1)
}

func (r *recorder) lastOf(t *testing.T, k share.EventKind, id share.ClientID) share.Event {
	t.Helper()
	for i := len(r.events) - 1; i >= 0; i-- {
		if e := r.events[i]; e.Kind == k && e.Client == id {
			return e
		}
	}
	t.Fatalf("no event %v", k)
	return share.Event{}
}

func newRecorded(t *testing.T, policy string) (*Gate, *recorder) {
	t.Helper()
	g, err := New(share.Device{SMs: 80, ThreadsPerSM: 2048, Memory: 1 << 30}, policy)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{Policy: g.policy}
	g.policy = r
	for id := share.ClientID(1); id <= 2; id++ {
		if err := g.Join(0, id, share.ClientSpec{}); err != nil {
			t.Fatal(err)
		}
		if err := g.Enter(0, id, ProcessID(id)); err != nil {
			t.Fatal(err)
		}
	}
	return g, r
}

// The policy sees how long launches by credit ran, and its sensors how long the GPU was busy,
// although each launch and its end are told at once.
func TestTimesOfReports(t *testing.T) {
	g, r := newRecorded(t, "reef")
	const period, ran = 100 * time.Microsecond, 40 * time.Microsecond
	now := time.Duration(0)
	for id := range uint64(20_000) {
		now += period
		g.Launch(now, 1, Launch{ID: id, Started: true})
		g.Done(now, 1, id, ran)
		g.Transmit(now, nil)
	}
	if e := r.last(t, share.Launch); e.Ran < ran {
		t.Errorf("a launch began at most %v before it was told, want %v or more", e.Ran, ran)
	}
	if e := r.last(t, share.Completed); e.Ran != ran {
		t.Errorf("a launch ran for %v, want %v", e.Ran, ran)
	}
	if u := r.last(t, share.Sampled).Sample.Utilisation; u < share.Percent(39) || u > share.Percent(41) {
		t.Errorf("the sensor reads %d ppm, want 40 %%", u)
	}
}

// Launches whose credit was taken back before they were told count as running until they end,
// or their process does, and no longer.
func TestSensorsOfLateReports(t *testing.T) {
	for _, end := range []struct {
		name string
		f    func(g *Gate, now time.Duration)
	}{
		{"done", func(g *Gate, now time.Duration) { g.Done(now, 1, 5, 0) }},
		{"the process ends", func(g *Gate, now time.Duration) { g.Exit(now, 1) }},
		{"their turn", func(g *Gate, now time.Duration) {
			g.Done(now, 2, 1, 0)
			g.Idle(now, 2)
			g.Transmit(now, nil)
			g.Done(now, 1, 5, 0)
		}},
	} {
		t.Run(end.name, func(t *testing.T) {
			g, r := newRecorded(t, "timeslice")
			g.Launch(0, 2, Launch{ID: 1}) // has the turn, and runs long
			g.Launch(0, 1, Launch{ID: 5, Started: true})
			g.Transmit(3*time.Second, nil)
			if u := r.last(t, share.Sampled).Sample.Utilisation; u != share.Whole/2 { // of two that run
				t.Errorf("the sensor reads %d ppm of a launch that runs", u)
			}
			end.f(g, 3*time.Second)
			for now := 3 * time.Second; now < 6*time.Second; now += 100 * time.Millisecond {
				g.Transmit(now, nil)
			}
			if u := r.last(t, share.Sampled).Sample.Utilisation; u != 0 {
				t.Errorf("the sensor reads %d ppm after the end", u)
			}
		})
	}
}

// A launch that does not end has the time that no other program tells, and no more.
func TestReadingsBesideAnEndlessLaunch(t *testing.T) {
	g, r := newRecorded(t, "reef")
	g.Launch(0, 2, Launch{ID: 1, Started: true})
	g.Transmit(0, nil)
	now := time.Duration(0)
	for id := range uint64(50) { // two launches are in flight at any time
		g.Launch(now, 1, Launch{ID: id, Started: true})
		now += 100 * time.Millisecond
		if id > 0 {
			g.Done(now, 1, id-1, 30*time.Millisecond)
		}
		g.Transmit(now, nil)
	}
	for id, want := range map[share.ClientID]int{1: 30, 2: 70} {
		if got := r.lastOf(t, share.Sampled, id).Sample.Utilisation; got < share.Percent(want-10) || got > share.Percent(want+10) {
			t.Errorf("the sensor of client %d reads %d ppm, want %d %%", id, got, want)
		}
	}
}
