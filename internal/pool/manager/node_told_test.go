package manager

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// failingStore stores nothing while it fails.
type failingStore struct {
	MemoryStore
	fails bool
}

func (s *failingStore) Commit(ctx context.Context, put map[string][]byte, remove []string) error {
	if s.fails {
		return errors.New("the disk is full")
	}
	return s.MemoryStore.Commit(ctx, put, remove)
}

// A report whose changes the store does not keep, or which is refused, has told nothing: the events
// come with the next one.
func TestEventsOfReportsThatAreLost(t *testing.T) {
	const ok, failed = dxpuv1.Health_HEALTH_OK, dxpuv1.Health_HEALTH_FAILED
	for _, how := range []string{"not stored", "refused"} {
		t.Run(how, func(t *testing.T) {
			s := &failingStore{}
			w := newWorld(t, Config{Store: s}, hostNode("h1", 1), boxNode("b1", 1))
			w.create(&dxpuv1.LeaseSpec{Count: 1})
			w.settle()
			h := w.nodes["h1"]
			lose := func() {
				t.Helper()
				s.fails = how == "not stored"
				err := w.reportAs("h1", func(o *dxpuv1.ObservedState) {
					if how == "refused" {
						for i := range uint32(maxSlots - 1) {
							o.Slots = append(o.Slots, &dxpuv1.ObservedSlot{Slot: i + 1, Health: ok, Domain: strings.Repeat("<", maxText)})
						}
					}
				})
				if s.fails = false; err == nil {
					t.Fatal("the report was not lost")
				}
			}
			wantOnce := func(event string) {
				t.Helper()
				before := len(w.events())
				w.report("h1")
				w.report("h1")
				if got := strings.Count(w.events()[before:], event); got != 1 {
					t.Errorf("%d events with %q, want one:\n%s", got, event, w.events()[before:])
				}
			}
			h.pathHealth = []dxpuv1.Health{ok, ok}
			w.report("h1")
			for _, c := range []struct {
				second dxpuv1.Health
				event  string
			}{{failed, "(GPU b1/0 to h1) failed"}, {ok, "(GPU b1/0 to h1) works again"}} {
				h.pathHealth = []dxpuv1.Health{ok, c.second}
				lose()
				lose()
				wantOnce(c.event)
			}
			w.pass(time.Hour)
			if !strings.Contains(w.events(), "host h1 has stopped reporting") {
				t.Fatal("the host is not lost")
			}
			lose()
			wantOnce("host h1 is connected")
		})
	}
}

// The events of the clock about a node, and about the clock itself, come again if they are not stored.
func TestEventsOfTicksThatAreLost(t *testing.T) {
	s := &failingStore{}
	w := newWorld(t, Config{Store: s}, hostNode("h1", 1))
	w.m.mu.Lock()
	w.m.jumped = time.Hour
	w.m.mu.Unlock()
	w.clock.pass(time.Hour)
	s.fails = true
	if err := w.m.Tick(t.Context()); err == nil {
		t.Fatal("the store kept the changes")
	}
	s.fails = false
	_ = w.m.view(func(*tx) error { return nil }) // reads the state again
	for range 2 {
		if err := w.m.Tick(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"host h1 has stopped reporting", "the clock of the leading manager was set forward by 1h0m0s"} {
		if got := strings.Count(w.events(), want); got != 1 {
			t.Errorf("%d events with %q, want one:\n%s", got, want, w.events())
		}
	}
}
