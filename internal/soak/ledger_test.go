package soak

import (
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A limit does not count the time in which the machine did not run the process, and
// holds otherwise.
func TestLimitsWithoutStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		var late atomic.Bool
		began := time.Now()
		finished := l.limit(4*time.Second, func() { late.Store(true) })
		time.Sleep(3 * time.Second)
		l.stalled.Add(int64(500 * time.Millisecond))
		time.Sleep(6 * time.Second) // stallGrace x 500 ms are 6 s
		synctest.Wait()
		if late.Load() {
			t.Errorf("late after %v with a stall", time.Since(began))
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if !late.Load() {
			t.Errorf("not late after %v", time.Since(began))
		}
		finished()

		late.Store(false)
		finished = l.limit(4*time.Second, func() { late.Store(true) })
		time.Sleep(3 * time.Second)
		finished()
		if late.Load() {
			t.Error("late although it was finished in time")
		}
		finished = l.limit(4*time.Second, func() { late.Store(true) })
		time.Sleep(5 * time.Second)
		finished()
		if !late.Load() {
			t.Error("an old stall extends a limit")
		}
	})
}

// A machine that stalls again and again does not hide what never ends.
func TestLimitsEndInSpiteOfStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l ledger
		const limit = 4 * time.Second
		late := make(chan struct{})
		finished := l.limit(limit, func() { close(late) })
		defer finished()
		for range (limit + mostOvertime) / time.Second {
			time.Sleep(time.Second)
			l.stalled.Add(int64(time.Second))
		}
		synctest.Wait()
		select {
		case <-late:
		default:
			t.Errorf("not late after %v", limit+mostOvertime)
		}
	})
}

// A load without an answer is all ones in its own width, which may be one byte.
func TestLoadsWithoutAnAnswer(t *testing.T) {
	want := []byte{1, 2, 3, 4, 0xff, 6}
	for _, tc := range []struct {
		got  []byte
		ones bool
	}{
		{[]byte{0xff, 2, 3, 4, 0xff, 6}, true},
		{[]byte{1, 2, 3, 4, 0xff, 0xff}, true},
		{[]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, true},
		{[]byte{1, 2, 3, 5, 0xff, 6}, false},
		{[]byte{0xff, 0xff, 0xff, 0xff, 0, 6}, false},
	} {
		if got := onlyOnesDiffer(want, tc.got); got != tc.ones {
			t.Errorf("% x: %v, want %v", tc.got, got, tc.ones)
		}
	}
}

// The report of a run is made while a worker that was stuck goes on.
func TestReportBesideAWorker(t *testing.T) {
	r := &run{}
	r.ledger.progress = func(string, ...any) {}
	r.chaos = newChaos(nil, &r.ledger, r.watch.grace, 1)
	var over atomic.Bool
	var worker sync.WaitGroup
	worker.Go(func() {
		for !over.Load() {
			r.ledger.violate("late")
			r.ledger.excuse("late", time.Now())(time.Now())
		}
	})
	for len(r.report().Violations) < maxViolations {
		continue
	}
	over.Store(true)
	worker.Wait()
}

// A loss without a cause tells the last faults of the paths before it.
func TestLossTellsTheFaultsBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ledger{began: time.Now(), progress: t.Logf}
		l.tell("an old fault")
		time.Sleep(toldTime + time.Second)
		for range 2 * toldFaults {
			l.tell("path 1: loss")
		}
		time.Sleep(time.Second)
		l.lose(time.Now(), "slot %d", 9)
		if len(l.faults) != toldFaults || len(l.violations) != 1 || strings.Count(l.violations[0], "1s ago path 1: loss") != toldFaults || strings.Contains(l.violations[0], "old") {
			t.Errorf("%d faults, violations %q", len(l.faults), l.violations)
		}
		l.excuse("an outage", time.Now())
		time.Sleep(time.Second)
		l.lose(time.Now(), "slot 9")
		if len(l.violations) != 1 {
			t.Errorf("an excused loss is a violation: %q", l.violations)
		}
	})
}
