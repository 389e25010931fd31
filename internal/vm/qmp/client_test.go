package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/dxpu-project/dxpu/internal/rawio/rights"
)

// call is a command as the fake QEMU gets it.
type call struct {
	Execute   string          `json:"execute"`
	Arguments json.RawMessage `json:"arguments"`
	ID        uint64          `json:"id"`
}

// fake is a QEMU: answer gives the lines that it sends on a command; %d in them is its id.
func fake(t *testing.T, answer func(call) []string) *Client {
	t.Helper()
	ours, theirs := net.Pipe()
	var wg sync.WaitGroup
	wg.Go(func() { serve(theirs, answer) })
	c, err := New(t.Context(), ours)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		wg.Wait()
	})
	return c
}

func serve(conn net.Conn, answer func(call) []string) {
	defer conn.Close()
	if _, err := fmt.Fprintln(conn, greetingLine); err != nil {
		return
	}
	for in := bufio.NewScanner(conn); in.Scan(); {
		var c call
		if err := json.Unmarshal(in.Bytes(), &c); err != nil {
			return
		}
		lines := []string{`{"return": {}, "id": %d}`}
		if c.Execute != "qmp_capabilities" {
			lines = answer(c)
		}
		for _, line := range lines {
			if line == "hang up" {
				return
			}
			if _, err := fmt.Fprintln(conn, strings.Replace(line, "%d", fmt.Sprint(c.ID), 1)); err != nil {
				return
			}
		}
	}
}

func deleted(id string) string {
	return fmt.Sprintf(`{"event": "DEVICE_DELETED", "timestamp": {"seconds": 1, "microseconds": 2}, "data": {"device": %q, "path": "/p"}}`, id)
}

const ok = `{"return": {}, "id": %d}`

func TestExecute(t *testing.T) {
	c := fake(t, func(c call) []string {
		switch c.Execute {
		case "query-status":
			return []string{`{"return": {"status": "running", "running": true}, "id": %d}`}
		case "echo":
			return []string{resumeLine, `{"return": ` + string(c.Arguments) + `, "id": %d}`}
		}
		return []string{`{"id": %d, "error": {"class": "CommandNotFound", "desc": "no such command"}}`}
	})
	if v := c.Version(); v.String() != "11.1.3" {
		t.Errorf("version %v", v)
	}
	var state struct{ Status string }
	if err := c.Execute(t.Context(), "query-status", nil, &state); state.Status != "running" || err != nil {
		t.Errorf("status %q, %v", state.Status, err)
	}
	var back map[string]int
	if err := c.Execute(t.Context(), "echo", map[string]int{"a": 1}, &back); err != nil || back["a"] != 1 {
		t.Errorf("echo: %v, %v", back, err)
	}
	var refusal *Error
	if err := c.Execute(t.Context(), "fly", nil, nil); !errors.As(err, &refusal) || refusal.Class != "CommandNotFound" || refusal.Command != "fly" {
		t.Errorf("fly: %v", err)
	}
	if err := c.Execute(t.Context(), "echo", map[string]int{"a": 1}, new([]int)); err == nil {
		t.Error("a reply of another type: no error")
	}
	if err := c.Execute(t.Context(), "echo", make(chan int), nil); err == nil {
		t.Error("arguments that are not JSON: no error")
	}
	if err := c.Execute(t.Context(), "query-status", nil, nil); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

func TestExecuteByMany(t *testing.T) {
	c := fake(t, func(c call) []string { return []string{`{"return": ` + string(c.Arguments) + `, "id": %d}`} })
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			var got map[string]int
			if err := c.Execute(t.Context(), "echo", map[string]int{"i": i}, &got); err != nil || got["i"] != i {
				t.Errorf("%d: %v, %v", i, got, err)
			}
		})
	}
	wg.Wait()
}

// A cancelled command's reply comes late and disturbs nothing.
func TestExecuteCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake(t, func(c call) []string {
			if c.Execute == "slow" {
				time.Sleep(time.Minute)
			}
			return []string{ok}
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Execute(ctx, "slow", nil, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("slow: %v", err)
		}
		if err := c.Execute(t.Context(), "fast", nil, nil); err != nil {
			t.Errorf("fast: %v", err)
		}
	})
}

func TestUnplug(t *testing.T) {
	const ost = `{"event": "ACPI_DEVICE_OST", "timestamp": {"seconds": 1, "microseconds": 2}, "data": {"info": {"device": "v0", "slot": "1", "slot-type": "DIMM", "source": %s, "status": %s}}}`
	status := func(source, status string) string {
		return strings.Replace(strings.Replace(ost, "%s", source, 1), "%s", status, 1)
	}
	for _, c := range []struct {
		name   string
		lines  []string
		refuse bool   // is the error ErrUnplugRefused?
		class  string // or an *Error of this class?
	}{
		{name: "event after the reply", lines: []string{ok, deleted("v0")}},
		{name: "event before the reply", lines: []string{deleted("v0"), ok}},
		{name: "other devices and parts go first", lines: []string{ok, deleted("v1"), deleted(""), deleted("v0")}},
		{name: "under way already", lines: []string{`{"id": %d, "error": {"class": "GenericError", "desc": "Device v0 is already in the process of unplug"}}`, deleted("v0")}},
		{name: "not there", lines: []string{`{"id": %d, "error": {"class": "DeviceNotFound", "desc": "Device 'v0' not found"}}`}, class: "DeviceNotFound"},
		{name: "guest refuses", lines: []string{ok, `{"event": "DEVICE_UNPLUG_GUEST_ERROR", "timestamp": {"seconds": 1, "microseconds": 2}, "data": {"device": "v0", "path": "/p"}}`}, refuse: true},
		{name: "_OST: busy", lines: []string{ok, status("3", "130")}, refuse: true},
		{name: "_OST: in progress, then gone", lines: []string{ok, status("3", "132"), status("3", "0"), deleted("v0")}},
		{name: "_OST: of an insertion", lines: []string{ok, status("1", "130"), deleted("v0")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := fake(t, func(call) []string { return c.lines })
			err := client.Unplug(t.Context(), "v0")
			var refusal *Error
			switch {
			case c.refuse && !errors.Is(err, ErrUnplugRefused):
				t.Errorf("got %v", err)
			case c.class != "" && (!errors.As(err, &refusal) || refusal.Class != c.class):
				t.Errorf("got %v", err)
			case !c.refuse && c.class == "" && err != nil:
				t.Error(err)
			}
		})
	}
}

func TestUnplugTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := fake(t, func(call) []string { return []string{ok} })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Unplug(ctx, "v0"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
}

func TestDeviceAdd(t *testing.T) {
	var got string
	c := fake(t, func(c call) []string {
		got = string(c.Arguments)
		return []string{ok}
	})
	if err := c.DeviceAdd(t.Context(), VFIOUser("v0", "rp0", "/run/x.sock")); err != nil {
		t.Fatal(err)
	}
	const want = `{"bus":"rp0","driver":"vfio-user-pci","id":"v0","socket":{"path":"/run/x.sock","type":"unix"}}`
	if got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if err := c.DeviceAdd(t.Context(), Device{Driver: "edu", ID: "e"}); err != nil || got != `{"driver":"edu","id":"e"}` {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestHasDevice(t *testing.T) {
	c := fake(t, func(c call) []string {
		if c.Execute != "qom-list" || !strings.Contains(string(c.Arguments), "/machine/peripheral") {
			return []string{`{"id": %d, "error": {"class": "GenericError", "desc": "what?"}}`}
		}
		return []string{`{"return": [{"name": "type", "type": "string"}, {"name": "dxpu1", "type": "child<vfio-user-pci>"}], "id": %d}`}
	})
	for id, want := range map[string]bool{"dxpu0": false, "dxpu1": true, "dxpu": false} {
		if has, err := c.HasDevice(t.Context(), id); has != want || err != nil {
			t.Errorf("%s: %v, %v", id, has, err)
		}
	}
	if pid := c.PID(); pid != 0 {
		t.Errorf("a pipe is of process %d", pid)
	}
}

func TestPID(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if conn, err := ln.Accept(); err == nil {
			serve(conn, func(call) []string { return []string{ok} })
		}
	})
	defer wg.Wait()
	defer ln.Close()
	c, err := Dial(t.Context(), path, new(rights.Disposer))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if pid := c.PID(); pid != os.Getpid() {
		t.Errorf("process %d, want %d", pid, os.Getpid())
	}
}

func TestSubscriptionOverflow(t *testing.T) {
	c := fake(t, func(call) []string {
		lines := make([]string, 0, queueLimit+2)
		for range queueLimit + 1 {
			lines = append(lines, resumeLine)
		}
		return append(lines, ok)
	})
	all, none := c.Subscribe(), c.Subscribe("STOP")
	defer all.Close()
	defer none.Close()
	if err := c.Execute(t.Context(), "go", nil, nil); err != nil {
		t.Fatal(err)
	}
	for i := range queueLimit {
		if e, err := all.Next(t.Context()); err != nil || e.Name != "RESUME" {
			t.Fatalf("event %d: %v, %v", i, e, err)
		}
	}
	if _, err := all.Next(t.Context()); !errors.Is(err, ErrOverflow) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := none.Next(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("filtered: %v", err)
	}
}

// All waiting callers learn of the end of QEMU, and no earlier event is lost.
func TestQEMUGoes(t *testing.T) {
	c := fake(t, func(call) []string { return []string{deleted("v0"), "hang up"} })
	s := c.Subscribe()
	defer s.Close()
	if err := c.Execute(t.Context(), "x", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("execute: %v", err)
	}
	<-c.Done()
	if e, err := s.Next(t.Context()); err != nil || e.Name != "DEVICE_DELETED" {
		t.Errorf("event from before: %v, %v", e, err)
	}
	if _, err := s.Next(t.Context()); !errors.Is(err, ErrClosed) {
		t.Errorf("event from after: %v", err)
	}
	if err := c.Unplug(t.Context(), "v1"); !errors.Is(err, ErrClosed) {
		t.Errorf("unplug: %v", err)
	}
}

func TestHostileServer(t *testing.T) {
	for _, line := range []string{
		greetingLine, `{"return": {}, "id": 99}`, `{"return": {}}`, "garbage", `{"event": 3}`,
	} {
		c := fake(t, func(call) []string { return []string{line} })
		if err := c.Execute(t.Context(), "x", nil, nil); !errors.Is(err, ErrNotQMP) || !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestGreeting(t *testing.T) {
	for _, line := range []string{"garbage\n", resumeLine + "\n", "", `{"QMP"`} {
		ours, theirs := net.Pipe()
		go func() {
			_, _ = theirs.Write([]byte(line))
			_ = theirs.Close()
		}()
		if c, err := New(t.Context(), ours); err == nil {
			t.Errorf("%q: %v", line, c.Version())
		}
	}
	ours, theirs := net.Pipe() // a server that says nothing
	defer theirs.Close()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Millisecond, cancel)
	if _, err := New(ctx, ours); !errors.Is(err, context.Canceled) {
		t.Errorf("silent server: %v", err)
	}
	if _, err := Dial(t.Context(), t.TempDir()+"/none", new(rights.Disposer)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no server: %v", err)
	}
}
