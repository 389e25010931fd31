package cli

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

const unitDir = "../../deploy/systemd"

// This program accepts the commands in the units.
func TestUnitsRunCommandsThatExist(t *testing.T) {
	for _, unit := range units(t) {
		raw, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(raw)) {
			command, ok := strings.CutPrefix(strings.TrimSpace(line), "ExecStart=/usr/bin/dxpu ")
			if !ok {
				continue
			}
			args := append(strings.Fields(strings.ReplaceAll(command, "$DXPU_FLAGS", "")), "--help")
			var out bytes.Buffer
			if rc := Main(args, strings.NewReader(""), &out, &out); rc != exitOK {
				t.Errorf("%s: dxpu %s: exit code %d: %s", unit, strings.Join(args, " "), rc, &out)
			}
		}
	}
}

func TestUnitsAreGoodSystemd(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("systemd-analyze is not installed")
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	args := []string{"verify"}
	for _, unit := range units(t) {
		raw, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		copied := filepath.Join(dir, filepath.Base(unit))
		if err := os.WriteFile(copied, bytes.ReplaceAll(raw, []byte("/usr/bin/dxpu"), []byte(self)), 0o644); err != nil {
			t.Fatal(err)
		}
		args = append(args, copied)
	}
	if out, err := exec.Command(analyze, args...).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
}

// A service that fails again and again, until an address or a disk is there, is
// started again for ever: systemd's default limit would end that within seconds.
func TestUnitsRestartForEver(t *testing.T) {
	for _, unit := range units(t) {
		raw, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		section, _, _ := strings.Cut(string(raw), "[Service]")
		if !strings.Contains(string(raw), "\nRestart=always\n") || !strings.Contains(section, "\nStartLimitIntervalSec=0\n") {
			t.Errorf("%s: systemd gives up after some starts", unit)
		}
	}
}

// Where a start cannot help, the unit is "failed" with the reason: after wrong flags, for a
// node that the manager refuses, and for a manager that another one has replaced.
func TestUnitsThatCannotStartFail(t *testing.T) {
	for _, unit := range units(t) {
		raw, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		codes := fmt.Sprintf("\nRestartPreventExitStatus=%d %d\n", exitUsage, exitRefused)
		if !strings.Contains(string(raw), codes) {
			t.Errorf("%s has no line %q", unit, codes)
		}
	}
}

func units(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(unitDir, "*.service"))
	if err != nil || len(found) != 3 {
		t.Fatalf("units: %v, %v; want three", found, err)
	}
	return found
}

// notifySocket creates the socket of a service manager.
func notifySocket(ts *testscript.TestScript, _ bool, _ []string) {
	path := filepath.Join(ts.MkAbs("."), "notify")
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	ts.Check(err)
	ts.Defer(func() { _ = c.Close() })
	ts.Setenv("NOTIFY_SOCKET", path)
	notifySockets.Store(path, c)
}

var notifySockets sync.Map // of *net.UnixConn by path

// awaitReady waits until a daemon reports that it serves.
func awaitReady(ts *testscript.TestScript, _ bool, _ []string) {
	v, _ := notifySockets.Load(ts.Getenv("NOTIFY_SOCKET"))
	c := v.(*net.UnixConn)
	ts.Check(c.SetReadDeadline(time.Now().Add(20 * time.Second)))
	buf := make([]byte, 64)
	n, err := c.Read(buf)
	ts.Check(err)
	if string(buf[:n]) != "READY=1" {
		ts.Fatalf("the daemon sent %q", buf[:n])
	}
}
