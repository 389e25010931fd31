package gpuerr

import (
	"encoding/json"
	"testing"
	"time"
)

// The catalogue's immediate actions of errors that are often seen.
func TestCatalogue(t *testing.T) {
	for code, want := range map[uint32]Action{
		8: RestartApplication, 13: RestartApplication, 31: RestartApplication, 43: Ignore, 45: Ignore, 48: Reset, 62: Reset, 63: Ignore, 64: Reset,
		74: Reset, 79: Replace, 92: Ignore, 94: RestartApplication, 95: Reset, 109: Reset, 119: Reset, 128: RestartApplication, 137: Ignore, 140: Reset, 154: Ignore, 156: Reset,
	} {
		if c := Lookup(code); c.Action != want {
			t.Errorf("%v: %v, want %v", c, c.Action, want)
		}
	}
	for i := 1; i < len(classes); i++ {
		if classes[i].Code == classes[i-1].Code {
			t.Errorf("%v is listed twice", classes[i])
		}
	}
}

func TestHealth(t *testing.T) {
	var h Health
	now := t0
	at := func(want Service) {
		t.Helper()
		if got, why := h.Service(now); got != want || (want != InService) != (why.Name != "") {
			t.Errorf("%v because of %v, want %v", got, why, want)
		}
	}
	// A program's errors change nothing, however many they are.
	if a, _ := h.Report(now, 31, 1e9); a != RestartApplication {
		t.Error(a)
	}
	at(InService)
	if a, escalated := h.Report(now, 48, 1); a != Reset || escalated {
		t.Error(a, escalated)
	}
	at(ResetDue)
	if !h.Reset(now) {
		t.Error("not in service after the reset")
	}
	at(InService)
	// The third within a day takes it out of service, and it returns by itself.
	now = now.Add(time.Hour)
	h.Report(now, 48, 1)
	h.Reset(now)
	if a, escalated := h.Report(now, 48, 1); a != Replace || !escalated {
		t.Error(a, escalated)
	}
	at(OutOfService)
	if h.Reset(now) {
		t.Error("a reset ended the time out of service")
	}
	// A lesser error meanwhile starts the time again.
	now = now.Add(9 * time.Minute)
	h.Report(now, 62, 1)
	now = now.Add(9 * time.Minute)
	at(OutOfService)
	now = h.Wake()
	at(ResetDue)
	if !h.Reset(now) {
		t.Error("not in service after its time")
	}
	at(InService)
	// The second time is twice as long; after a day in service it is short again.
	h.Report(now, 79, 1)
	if got := h.Wake().Sub(now); got != 20*time.Minute {
		t.Errorf("out of service for %v, want 20 minutes", got)
	}
	now = h.Wake()
	h.Reset(now)
	now = now.Add(day)
	h.Report(now, 79, 1)
	if got := h.Wake().Sub(now); got != 10*time.Minute {
		t.Errorf("out of service for %v, want 10 minutes", got)
	}
	if a, _ := h.Report(now, 79, 0); a != Ignore {
		t.Error("no error at all:", a)
	}
}

// Times of a clock that was ahead count for no longer than they may.
func TestHealthAfterAWrongClock(t *testing.T) {
	ahead := t0.Add(365 * day)
	var h Health
	h.Report(ahead, 79, 1)
	h.Clamp(t0)
	if until := h.Wake(); !until.Equal(t0.Add(10 * time.Minute)) {
		t.Errorf("out of service until %v", until)
	}
	h.Clamp(t0.Add(time.Minute)) // as the next agent does
	if until := h.Wake(); !until.Equal(t0.Add(10 * time.Minute)) {
		t.Errorf("out of service until %v", until)
	}
	// A return to service in time to come would make each further time out of service longer.
	h.Reset(ahead)
	h.Clamp(t0)
	h.Report(t0.Add(day), 79, 1)
	if until := h.Wake(); !until.Equal(t0.Add(day + 10*time.Minute)) {
		t.Errorf("out of service until %v", until)
	}
	// Errors of time to come would count until then.
	h = Health{}
	h.Report(ahead, 48, 2)
	h.Clamp(t0)
	if a, _ := h.Report(t0.Add(2*day), 48, 1); a != Reset {
		t.Errorf("%v, want a reset", a)
	}
}

func TestParseLog(t *testing.T) {
	for _, tt := range []struct {
		line string
		want Message
		ok   bool
	}{
		{"NVRM: Xid (PCI:0000:3B:00): 31, pid=4559, name=python3, Ch 00000008, intr 10000000", Message{"0000:3b:00", -1, 31, 4559}, true},
		{"[  966.503025] NVRM: Xid (0000:01:00): 14, Ch 0000000b", Message{"0000:01:00", -1, 14, 0}, true},
		{"6,1234,5;NVRM: Xid (PCI:00000000:01:00 GPU-I:05): 94, pid='<unknown>', name=<unknown>", Message{"0000:01:00", 5, 94, 0}, true},
		{"NVRM: Xid (PCI:0001:01:00): 79, GPU has fallen off the bus.", Message{"0001:01:00", -1, 79, 0}, true},
		{"NVRM: Xid (PCI:00010000:01:00): 79", Message{"10000:01:00", -1, 79, 0}, true},
		{"NVRM: Xid (PCI:0000:01:00): 99999999999", Message{}, false},
		{"NVRM: Xid (PCI:0000:01:00): 0, nothing", Message{}, false},
		{"NVRM: GPU at 0000:03:00: GPU-b850f46d", Message{}, false},
		{"", Message{}, false},
	} {
		if got, ok := ParseLog(tt.line); got != tt.want || ok != tt.ok {
			t.Errorf("%q: %+v, %v", tt.line, got, ok)
		}
	}
}

// A health that was written and read goes on as before, and bytes from a file are bounded.
func TestHealthInAFile(t *testing.T) {
	h := Health{Backoff: Backoff{Base: time.Minute, Max: time.Hour}}
	h.Report(t0, 48, 2)
	h.Report(t0, 79, 1)
	text, err := json.Marshal(&h)
	if err != nil {
		t.Fatal(err)
	}
	again := Health{Backoff: h.Backoff}
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	if got, why := again.Service(t0); got != OutOfService || why.Code != 79 || !again.Wake().Equal(t0.Add(time.Minute)) {
		t.Errorf("%v because of %v until %v", got, why, again.Wake())
	}
	if !again.Reset(t0.Add(time.Minute)) {
		t.Error("not in service after its time")
	}
	if a, escalated := again.Report(t0.Add(time.Hour), 48, 1); a != Replace || !escalated {
		t.Errorf("%v: the errors before the file do not count", a)
	}
	if err := json.Unmarshal([]byte(`{"times":1000000000,"until":"2500-01-01T00:00:00Z"}`), &again); err != nil {
		t.Fatal(err)
	}
	again.Repair(t0)
	if got, _ := again.Service(t0); got != InService {
		t.Errorf("%v after the repair", got)
	}
	again.Report(t0, 79, 1)
	if until := again.Wake(); !until.Equal(t0.Add(time.Hour)) {
		t.Errorf("out of service until %v", until)
	}
}
