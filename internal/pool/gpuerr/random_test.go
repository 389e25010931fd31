package gpuerr

import (
	"encoding/json"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// ledger is a plain account of a GPU: all its errors, and the rules in words.
type ledger struct {
	all      []Occurrence
	due      bool
	out      bool // it was to be replaced, and was not reset since
	until    time.Time
	times    int
	returned time.Time
}

func (l *ledger) report(now time.Time, code uint32, b Backoff) Action {
	l.all = append(l.all, Occurrence{code, 1, now})
	c, n := Lookup(code), uint64(0)
	for _, o := range l.all {
		if o.Code == code && now.Sub(o.Time) < c.Window {
			n++
		}
	}
	action := c.Action
	if c.Limit > 0 && n >= c.Limit {
		action = c.Escalated
	}
	if action < Reset {
		return action
	}
	l.due = true
	if action == Replace && !l.out {
		if !l.returned.IsZero() && now.Sub(l.returned) >= b.Max {
			l.times = 0
		}
		l.times++
		l.out = true
	}
	if l.out {
		long := b.Base
		for range l.times - 1 {
			long = min(2*long, b.Max)
		}
		l.until = now.Add(long)
	}
	return action
}

// At random errors, resets, repairs and restarts of the agent, a GPU is in service exactly when
// the rules say so, and it always returns by itself.
func TestHealthAgainstTheRules(t *testing.T) {
	b := Backoff{Base: 10 * time.Minute, Max: day}
	rapid.Check(t, func(t *rapid.T) {
		h, l, now := &Health{Backoff: b}, &ledger{}, t0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.SampledFrom([]time.Duration{0, time.Second, time.Minute, 10 * time.Minute, hour, day}).Draw(t, "later")))
			switch rapid.IntRange(0, 7).Draw(t, "step") {
			case 0, 1, 2, 3:
				code := rapid.SampledFrom([]uint32{DeviceFailed, 13, 31, 38, 48, 62, 79, 94, 95, 109, 7777}).Draw(t, "code")
				want := l.report(now, code, b)
				if got, _ := h.Report(now, code, 1); got != want {
					t.Fatalf("%v of code %d, want %v", got, code, want)
				}
			case 4, 5:
				want := !now.Before(l.until)
				if want {
					l.due, l.out, l.until, l.returned = false, false, time.Time{}, now
				}
				if got := h.Reset(now); got != want {
					t.Fatalf("the reset returned the GPU: %t, want %t", got, want)
				}
			case 6:
				h.Repair(now)
				l.due, l.out, l.until, l.returned = false, false, time.Time{}, now
			case 7:
				text, err := json.Marshal(h)
				if err != nil {
					t.Fatal(err)
				}
				h = &Health{Backoff: b}
				if err := json.Unmarshal(text, h); err != nil {
					t.Fatal(err)
				}
			}
			want := InService
			switch {
			case now.Before(l.until):
				want = OutOfService
			case l.due:
				want = ResetDue
			}
			if got, _ := h.Service(now); got != want {
				t.Fatalf("%v, want %v", got, want)
			}
		}
		if at := h.Wake(); at.After(now) {
			now = at
		}
		if !h.Reset(now) {
			t.Fatal("the GPU does not return")
		}
		if got, _ := h.Service(now); got != InService {
			t.Fatalf("%v after its time and a reset", got)
		}
	})
}
