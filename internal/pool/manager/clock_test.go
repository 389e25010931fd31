package manager

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// The manager tells once of a wall clock that is set while it leads. No node is lost, and no lease
// ends that it has granted.
func TestClockIsSet(t *testing.T) {
	for _, by := range []time.Duration{time.Hour, -time.Hour, 24 * time.Hour, -24 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var jump atomic.Int64
				w := newStallWorld(t)
				w.m.mu.Lock()
				w.m.wall = func(now time.Time) time.Time { return now.Round(0).Add(time.Duration(jump.Load())) }
				w.m.mu.Unlock()
				time.Sleep(time.Second)
				if s := w.events(); strings.Contains(s, "the clock of the leading manager") {
					t.Fatalf("without a jump:\n%s", s)
				}
				id := w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true, ExpiresAfter: durationpb.New(time.Hour / 2)})
				jump.Store(int64(by))
				time.Sleep(time.Second)
				want := "the clock of the leading manager was set forward by " + by.Abs().String()
				if by < 0 {
					want = "the clock of the leading manager was set back by " + by.Abs().String()
				}
				if got := strings.Count(w.events(), want); got != 1 {
					t.Errorf("%d events with %q:\n%s", got, want, w.events())
				}
				w.wantNoLoss(t, "a clock that was set")
				if l := w.lease(id); l.State == leaseReleased || l.State == leaseFailed {
					t.Errorf("lease %v", l)
				}
			})
		})
	}
}

// The event of a clock that was set names no caller, although the transaction of any call may tell
// it, and an earlier term's clock is no matter of the next one.
func TestClockIsSetByNoCaller(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1))
	w.m.mu.Lock()
	w.m.jumped = time.Hour
	w.m.mu.Unlock()
	ctx := context.WithValue(t.Context(), callKey{}, &call{caller: auth.Identity{Actor: "node h1"}})
	if err := w.m.update(ctx, func(*tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	events, _, _, _ := w.m.events.after(0)
	if e := events[len(events)-1]; !strings.Contains(e.Message, "the clock of the leading manager was set") || e.Actor != "" {
		t.Errorf("the last event: %v", e)
	}
	w.m.jumped = time.Hour
	w.m.beginTerm()
	if w.m.jumped != 0 {
		t.Errorf("a new term begins with a clock that was set by %v", w.m.jumped)
	}
}

// A pool without new samples, as during an upgrade, has a leader as long as it has events.
func TestEventsShowALeader(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
	w.passReporting(2 * sampleInterval)
	w.clock.pass(time.Hour)
	w.create(&dxpuv1.LeaseSpec{Count: 1, Wait: true})
	_ = w.m.view(func(tx *tx) error {
		if note := w.m.clockNote(tx); note != "" {
			t.Errorf("%q", note)
		}
		return nil
	})
}

// The first leader of a pool that was restored from an old backup does not know when a manager led
// last, and does not say that its clock is ahead. The next one does.
func TestClockNoteOfARestoredPool(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 1), boxNode("b1", 1))
	w.passReporting(2 * sampleInterval)
	records, err := Restored(w.encoded())
	if err != nil {
		t.Fatal(err)
	}
	note := func() (note string) {
		_ = w.m.view(func(tx *tx) error {
			note = w.m.clockNote(tx)
			return nil
		})
		return note
	}
	w.clock.pass(7 * 24 * time.Hour)
	w.restoredPool(records)
	_ = w.m.view(func(tx *tx) error {
		if tx.samples.len() == 0 {
			t.Error("the backup has no samples")
		}
		return nil
	})
	if got := note(); got != "" {
		t.Errorf("the first leader: %q", got)
	}
	w.settle()
	w.clock.pass(24 * time.Hour)
	if got := note(); !strings.Contains(got, "newest event or sample is 24h") {
		t.Errorf("a later leader: %q", got)
	}
}

// A leader whose clock is behind that of the one before goes on with short time limits as if they
// began now: none takes longer by the difference.
func TestClockBehindDelaysNothing(t *testing.T) {
	const behind = 3 * time.Hour
	begin := func() (*world, *MemoryStore, string) {
		store := &MemoryStore{}
		w := newWorld(t, Config{Store: store}, hostNode("h1", 1), boxNode("b1", 1), boxNode("b2", 1))
		id := w.create(&dxpuv1.LeaseSpec{Count: 1})
		w.settle()
		w.wantLease(id, leaseActive)
		return w, store, id
	}
	next := func(w *world, store *MemoryStore) { // the next leader
		w.clock.pass(-behind)
		w.restoredPoolIn(store)
	}
	t.Run("link", func(t *testing.T) {
		w, store, id := begin()
		was := w.lease(id).Bindings[0]
		w.nodes["h1"].linkDown = true
		w.report("h1")
		next(w, store)
		w.passReporting(4 * time.Second)
		if now := w.lease(id).Bindings; len(now) < 2 || now[0].Reason != dxpuv1.Reason_REASON_LINK_LOST {
			t.Errorf("the link of %s is lost for four seconds: %v", was.Id, now)
		}
	})
	t.Run("attach", func(t *testing.T) {
		w, store, id := begin()
		w.delete(id, true)
		w.settle()
		w.nodes["b1"].deaf, w.nodes["b2"].deaf = true, true
		id = w.create(&dxpuv1.LeaseSpec{Count: 1})
		w.rounds(2)
		next(w, store)
		w.passReporting(defaultAttachTimeout + 3*time.Second)
		if l := w.lease(id); len(l.Bindings) < 2 {
			t.Errorf("nothing was attached for 23 s: %v", l)
		}
	})
	t.Run("quarantine", func(t *testing.T) {
		w, store, _ := begin()
		w.nodes["b2"].addError(0, 79)
		w.report("b2")
		next(w, store)
		w.passReporting(time.Second)
		until := w.gpu("b2/0").QuarantinedUntil.AsTime()
		if left := until.Sub(w.clock.now()); left <= 0 || left > 10*time.Minute {
			t.Errorf("the quarantine of ten minutes ends in %v", left)
		}
	})
}

// A new leader whose clock is a day ahead, or whose pool had no leader for a day, says so.
func TestClockAheadIsNoticed(t *testing.T) {
	for _, ahead := range []time.Duration{0, time.Minute, 24 * time.Hour} {
		w := newWorld(t, Config{}, hostNode("h1", 1), boxNode("b1", 1))
		w.passReporting(2 * sampleInterval)
		w.m.mu.Lock()
		w.m.dropStateLocked(nil)
		w.m.mu.Unlock()
		w.clock.pass(ahead)
		note := ""
		_ = w.m.view(func(tx *tx) error {
			note = w.m.clockNote(tx)
			return nil
		})
		if got := strings.Contains(note, "by its clock the pool's newest event or sample is 24h"); got != (ahead > time.Hour) || got == (note == "") {
			t.Errorf("%v ahead: %q", ahead, note)
		}
	}
}
