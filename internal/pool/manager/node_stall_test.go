package manager

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// slowStore takes a time for each commit.
type slowStore struct {
	MemoryStore
	takes atomic.Int64 // ns
}

func (s *slowStore) Commit(ctx context.Context, put map[string][]byte, remove []string) error {
	time.Sleep(time.Duration(s.takes.Load()))
	return s.MemoryStore.Commit(ctx, put, remove)
}

// stallWorld is a manager that runs, with eight nodes that report as agents do: one
// report at a time, the next one 250 ms after the answer.
type stallWorld struct {
	*world
	store  *slowStore
	jump   atomic.Int64 // ns by which the manager's clock is ahead: as if it had not run
	silent atomic.Bool  // the nodes do not report
	change atomic.Bool  // each report differs from the one before
	late   atomic.Int64 // ns that a report waits before the manager hears it
}

func newStallWorld(t *testing.T) *stallWorld {
	w := &stallWorld{store: &slowStore{}}
	var nodes []*fakeNode
	for _, id := range []string{"b1", "b2", "b3", "b4", "b5", "b6", "b7"} {
		nodes = append(nodes, boxNode(id, 2))
	}
	w.world = newWorld(t, Config{Store: w.store}, append(nodes, hostNode("h1", 4))...)
	w.m.cfg.Now = func() time.Time { return time.Now().Add(time.Duration(w.jump.Load())) }
	w.m.cfg.Echo = func(ctx context.Context) error {
		pause(ctx, nil, time.Duration(w.late.Load()))
		return nil
	}
	w.m.mu.Lock()
	w.m.dropStateLocked(nil) // the new clock begins with the state
	clear(w.m.live)
	w.m.mu.Unlock()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = w.m.Run(ctx) })
	for _, n := range w.nodes {
		wg.Go(func() {
			for ctx.Err() == nil {
				if !w.silent.Load() {
					if w.change.Load() {
						n.dead[0] = !n.dead[0]
					}
					pause(ctx, nil, time.Duration(w.late.Load()))
					_, _, _ = w.m.report(ctx, n.observe(), func(*tx) error { return nil })
				}
				pause(ctx, nil, 250*time.Millisecond)
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
	time.Sleep(2 * time.Second)
	return w
}

func (w *stallWorld) wantNoLoss(t *testing.T, what string) {
	t.Helper()
	if s := w.events(); strings.Contains(s, "has stopped reporting") {
		t.Errorf("%s: nodes that report count as lost:\n%s", what, s)
	}
}

// A store that stalls for longer than the time after which a silent node is lost
// makes no node lost: unchanged reports do not wait, changed ones are no silence.
func TestStalledStoreLosesNoNode(t *testing.T) {
	for _, changed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newStallWorld(t)
			w.change.Store(changed)
			w.store.takes.Store(int64(1300 * time.Millisecond))
			for range 5 { // several in a row
				_ = w.m.update(t.Context(), func(t *tx) error {
					t.touch("h1")
					return nil
				})
			}
			time.Sleep(5 * time.Second)
			w.wantNoLoss(t, "stalled store")
			w.store.takes.Store(0)
			w.change.Store(false)
			w.silent.Store(true)
			time.Sleep(3 * time.Second)
			if s := w.events(); strings.Count(s, "has stopped reporting") != 8 {
				t.Errorf("eight nodes are silent:\n%s", s)
			}
		})
	}
}

// An unchanged report is answered while the store stalls, and the answer has no
// revision that is not durable.
func TestUnchangedReportDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := gated(t, hostNode("h1", 1))
		before := w.m.state.nodes.get("h1").DesiredRevision
		w.m.live["h1"].watches++
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = w.m.update(context.Background(), func(t *tx) error {
				t.touch("h1")
				return nil
			})
		})
		synctest.Wait() // until the change waits for the store
		got, _, err := w.m.report(t.Context(), w.nodes["h1"].observe(), func(*tx) error { return nil })
		if err != nil || got != before {
			t.Errorf("the answer announces revision %d, want %d: %v", got, before, err)
		}
		s.gate <- nil
		wg.Wait()
		got, _, err = w.m.report(t.Context(), w.nodes["h1"].observe(), func(*tx) error { return nil })
		if err != nil || got <= before {
			t.Errorf("the answer announces revision %d after the commit, want a later one than %d: %v", got, before, err)
		}
	})
}

// A manager that was suspended does not count its own absence as silence of the nodes.
func TestSuspendedManagerLosesNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newStallWorld(t)
		w.jump.Add(int64(10 * time.Second))
		if p := w.m.totals(); p.BoxesConnected != 7 {
			t.Errorf("the first answer after the stall: %v", p)
		}
		time.Sleep(3 * time.Second)
		w.wantNoLoss(t, "suspended manager")
		w.silent.Store(true)
		time.Sleep(2 * time.Second)
		if s := w.events(); strings.Count(s, "has stopped reporting") != 8 {
			t.Errorf("eight nodes are silent:\n%s", s)
		}
	})
}

// A manager that is too busy to read the reports in time, although its clock runs, makes no
// node lost. One that is silent is still noticed, as soon as the manager would have heard it.
func TestBusyManagerLosesNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newStallWorld(t)
		w.late.Store(int64(3 * time.Second))
		time.Sleep(30 * time.Second)
		w.wantNoLoss(t, "busy manager")
		w.silent.Store(true)
		time.Sleep(3*time.Second + time.Second + 2*3*time.Second) // the last report, the time-out, two messages
		if s := w.events(); strings.Count(s, "has stopped reporting") != 8 {
			t.Errorf("eight nodes are silent:\n%s", s)
		}
	})
}

// A manager with time to spare notices a silent node after its time-out, and no later.
func TestSilenceIsNoticedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newStallWorld(t)
		w.silent.Store(true)
		time.Sleep(time.Second + 2*tickInterval)
		if s := w.events(); strings.Count(s, "has stopped reporting") != 8 {
			t.Errorf("eight nodes have been silent for %s:\n%s", time.Second+2*tickInterval, s)
		}
	})
}

// A message to oneself comes back, and the way ends.
func TestEcho(t *testing.T) {
	e, err := NewEcho()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := e.Send(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if e.Send(t.Context()) == nil {
		t.Error("a message comes back by a way that has ended")
	}
}

// A late report that waits for the store is not a sign of life.
func TestLateReportIsNoSignOfLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := gated(t, hostNode("h1", 1))
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = w.m.update(context.Background(), func(t *tx) error {
				t.touch("h1")
				return nil
			})
		})
		synctest.Wait() // until the change waits for the store
		late := w.nodes["h1"].observe()
		late.Sequence = 0
		wg.Go(func() { _, _, _ = w.m.report(t.Context(), late, func(*tx) error { return nil }) })
		synctest.Wait()
		w.m.mu.Lock()
		waiting := w.m.live["h1"].unanswered
		w.m.mu.Unlock()
		if waiting != 0 {
			t.Error("the late report keeps its node alive")
		}
		s.gate <- nil
		wg.Wait()
	})
}
