package mps

import (
	"slices"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/share"
)

func TestCommands(t *testing.T) {
	l := Limits{Share: 255_000, Memory: 20350<<20 + 5}
	for _, tt := range []struct {
		action Action
		want   string
	}{
		{Action{Verb: SetDefaultShare, Limits: l}, "set_default_active_thread_percentage 25.5"},
		{Action{Verb: SetDefaultMemory, Limits: l}, "set_default_device_pinned_mem_limit 0 20350M"},
		{Action{Verb: StartServer, UID: 1000}, "start_server -uid 1000"},
		{Action{Verb: SetShare, Server: 7, Limits: Limits{Share: share.Whole}}, "set_active_thread_percentage 7 100"},
		{Action{Verb: SetMemory, Server: 7, Limits: l}, "set_device_pinned_mem_limit 7 0 20350M"},
		{Action{Verb: TerminateClient, Server: 7, Client: 8}, "terminate_client 7 8"},
		{Action{Verb: ShutdownServer, Server: 7}, "shutdown_server 7 -f"},
		{Action{Verb: Quit}, "quit"},
		{Action{Verb: Quit, Busy: true}, "quit -t 10"},
		{Action{Verb: StartDaemon}, ""},
		{Action{Verb: KillDaemon}, ""},
	} {
		if got := tt.action.Command(); got != tt.want {
			t.Errorf("%q, want %q", got, tt.want)
		}
	}
}

func TestCheck(t *testing.T) {
	set := Action{Verb: SetShare, Server: 7, Limits: Limits{Share: 250_000}}
	for _, tt := range []struct {
		action Action
		answer string
		ok     bool
	}{
		{set, "25.0\n", true},
		{set, "100.0\n", false},
		{set, "Server 7 not found\n", false},
		{Action{Verb: SetMemory}, "", true},
		{Action{Verb: SetMemory}, "Invalid value" + strings.Repeat("\xff", 500), false},
	} {
		if err := tt.action.Check(tt.answer); (err == nil) != tt.ok {
			t.Errorf("%q: %v", tt.answer, err)
		}
	}
}

func TestParse(t *testing.T) {
	for _, tt := range []struct {
		text string
		want []int
		ok   bool
	}{
		{"", nil, true},
		{"28941\n", []int{28941}, true},
		{"30119 30112\n30204 30112", []int{30112, 30119, 30204}, true},
		{"0", nil, false},
		{"-1", nil, false},
		{"2147483648", nil, false},
		{"Segmentation fault", nil, false},
		{strings.Repeat("1 ", maxPIDs+1), nil, false},
	} {
		got, err := ParsePIDs(tt.text)
		if !slices.Equal(got, tt.want) || (err == nil) != tt.ok {
			t.Errorf("ParsePIDs(%.20q) = %v, %v", tt.text, got, err)
		}
	}
	for text, want := range map[string]Status{"ACTIVE\n": StatusActive, "FAULT": StatusFault, " INITIALIZING": StatusInitializing, "": StatusUnknown, "ACTIVE ACTIVE": StatusUnknown} {
		if got, err := ParseStatus(text); got != want || (err == nil) != (want != StatusUnknown) {
			t.Errorf("ParseStatus(%q) = %v, %v", text, got, err)
		}
	}
	if !NoDaemon("Cannot find MPS control daemon process\n") || NoDaemon("") {
		t.Error("NoDaemon")
	}
}

// FuzzText reads any output of the control program. An error has no value beside it.
func FuzzText(f *testing.F) {
	for _, text := range []string{"", "4711\n4712 4713\n", "ACTIVE\n", "25.5\n", "Cannot find MPS control daemon process\n", "Failed to set\n", "-1", "99999999999", "\xff"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		pids, err := ParsePIDs(text)
		if err != nil && pids != nil || len(pids) > maxPIDs || !slices.IsSorted(pids) || len(pids) > 0 && pids[0] <= 0 {
			t.Errorf("%q: %v, %v", text, pids, err)
		}
		if s, err := ParseStatus(text); (err != nil) != (s == StatusUnknown) {
			t.Errorf("%q: %v, %v", text, s, err)
		}
		NoDaemon(text)
		for v := StartDaemon; v <= Quit; v++ {
			if err := (Action{Verb: v, Limits: Limits{Share: share.Whole}}).Check(text); err != nil && len(err.Error()) > 1000 {
				t.Errorf("%d bytes of an error", len(err.Error()))
			}
		}
	})
}
