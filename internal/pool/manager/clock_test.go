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
		if got := strings.Contains(note, "by its clock no manager led for 24h"); got != (ahead > time.Hour) || got == (note == "") {
			t.Errorf("%v ahead: %q", ahead, note)
		}
	}
}
