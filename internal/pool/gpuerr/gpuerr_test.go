package gpuerr

import (
	"cmp"
	"math"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var t0 = time.Unix(1_700_000_000, 0)

func TestTable(t *testing.T) {
	if !slices.IsSortedFunc(classes, func(a, b Class) int { return cmp.Compare(a.Code, b.Code) }) {
		t.Error("classes is not sorted by code: Lookup needs that")
	}
	for _, c := range classes {
		if c.Name == "" || c.Action < Ignore || c.Action > Replace {
			t.Errorf("%+v: incomplete", c)
		}
		if (c.Limit == 0) != (c.Window == 0) || (c.Limit == 0) != (c.Escalated == 0) || c.Limit > 0 && c.Escalated <= c.Action {
			t.Errorf("%+v: want a window with the limit, and a more severe action", c)
		}
		if Lookup(c.Code) != c {
			t.Errorf("Lookup(%d) = %+v", c.Code, Lookup(c.Code))
		}
	}
	for _, code := range []uint32{1, 162, 999, math.MaxUint32} {
		if c := Lookup(code); c.Code != code || c.Action != Ignore {
			t.Errorf("Lookup(%d) = %+v", code, c)
		}
	}
}

func TestAssess(t *testing.T) {
	at := func(code uint32, count uint64, after time.Duration) Occurrence {
		return Occurrence{code, count, t0.Add(after)}
	}
	tests := []struct {
		name      string
		history   []Occurrence
		code      uint32
		now       time.Duration
		want      Action
		escalated bool
	}{
		{"none", nil, 48, 0, Reset, false},
		{"one", []Occurrence{at(48, 1, 0)}, 48, 0, Reset, false},
		{"one below the limit", []Occurrence{at(48, 1, 0), at(48, 1, hour)}, 48, hour, Reset, false},
		{"limit", []Occurrence{at(48, 1, 0), at(48, 1, hour), at(48, 1, 2*hour)}, 48, 2 * hour, Replace, true},
		{"limit at once", []Occurrence{at(48, 3, 0)}, 48, 0, Replace, true},
		{"just outside the window", []Occurrence{at(48, 2, 0), at(48, 1, day)}, 48, day, Reset, false},
		{"just inside", []Occurrence{at(48, 2, 0), at(48, 1, day-1)}, 48, day - 1, Replace, true},
		{"others do not count", []Occurrence{at(74, 9, 0), at(48, 1, 0)}, 48, 0, Reset, false},
		{"a tenant cannot escalate", []Occurrence{at(31, 1e9, 0)}, 31, 0, RestartApplication, false},
		{"counts do not overflow", []Occurrence{at(92, math.MaxUint64, 0), at(92, math.MaxUint64, 0)}, 92, 0, Replace, true},
		{"unknown", []Occurrence{at(7777, 20, 0)}, 7777, 0, Reset, true},
		{"comes and goes", []Occurrence{at(DeviceFailed, 1, 0), at(DeviceFailed, 1, 1), at(DeviceFailed, 1, 2)}, DeviceFailed, 2, Replace, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, escalated := Assess(tt.history, tt.code, t0.Add(tt.now))
			if got != tt.want || escalated != tt.escalated {
				t.Errorf("%v, %v; want %v, %v", got, escalated, tt.want, tt.escalated)
			}
		})
	}
}

// TestAppend compares histories kept by Append with complete ones: both require the
// same actions.
func TestAppend(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var all, kept []Occurrence
		now := t0
		for range rapid.IntRange(0, 60).Draw(t, "n") {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(day)).Draw(t, "later")))
			h := Occurrence{rapid.SampledFrom([]uint32{0, 31, 48, 92, 5555}).Draw(t, "code"), rapid.Uint64Range(1, 3).Draw(t, "count"), now}
			all, kept = append(all, h), Append(kept, h)
			a, _ := Assess(all, h.Code, now)
			if b, _ := Assess(kept, h.Code, now); a != b || len(kept) > maxOccurrences {
				t.Fatalf("%v of all, %v of %d kept", a, b, len(kept))
			}
		}
	})
}

// Errors that are reported one by one reach a limit above the bound of a history, and those of
// one code do not make others forgotten.
func TestManySingleErrors(t *testing.T) {
	var h Health
	now := t0
	h.Report(now, 48, 1)
	h.Report(now, 48, 1)
	h.Reset(now)
	for i := 1; i <= 99; i++ {
		now = now.Add(hour / 100)
		if a, _ := h.Report(now, 121, 1); a != Ignore {
			t.Fatalf("%v at error %d", a, i)
		}
	}
	if a, escalated := h.Report(now, 121, 1); a != Replace || !escalated {
		t.Errorf("%v at error 100", a)
	}
	if a, escalated := h.Report(now, 48, 1); a != Replace || !escalated {
		t.Errorf("%v: the earlier errors of memory are forgotten", a)
	}
	if len(h.recent) > maxOccurrences {
		t.Errorf("%d occurrences are kept", len(h.recent))
	}
}

// A full history loses no error when the clock goes back.
func TestClockThatGoesBack(t *testing.T) {
	var h []Occurrence
	for i := range maxOccurrences {
		h = Append(h, Occurrence{121, 1, t0.Add(time.Duration(i) * time.Second)})
	}
	h = Append(h, Occurrence{121, 1, t0})
	all := uint64(0)
	for _, o := range h {
		all += o.Count
	}
	if all != maxOccurrences+1 {
		t.Errorf("%d errors are remembered, want %d", all, maxOccurrences+1)
	}
}

func TestBackoff(t *testing.T) {
	b := Backoff{Base: time.Minute, Max: 10 * time.Minute}
	for n, want := range map[int]time.Duration{
		0: time.Minute, 1: time.Minute, 2: 2 * time.Minute, 3: 4 * time.Minute, 4: 8 * time.Minute, 5: 10 * time.Minute, 1 << 20: 10 * time.Minute,
	} {
		if got := b.After(n); got != want {
			t.Errorf("After(%d) = %v, want %v", n, got, want)
		}
	}
}
