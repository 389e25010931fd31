package localpool

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// A daemon that was killed is reported once, and is no error of Stop.
func TestEndOfADaemon(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Skip("sleep is not installed")
	}
	ended := make(chan End, 2)
	d := &Daemons{Program: sleep, Dir: t.TempDir(), JoinToken: "x", Ended: ended}
	for _, name := range []string{"one", "two"} {
		if err := d.Start(name, "1000"); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Kill(d.list[0].cmd.Process.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := <-ended; e.Name != "one" || e.Err == nil || !strings.Contains(e.Err.Error(), "killed") {
		t.Errorf("%+v", e)
	}
	// sleep ends by SIGTERM without a handler, which is an error of the second only.
	if err := d.Stop(); err == nil || !strings.HasPrefix(err.Error(), "two: signal: terminated") || strings.Contains(err.Error(), "one") {
		t.Errorf("stop: %v", err)
	}
	if len(ended) != 0 {
		t.Errorf("another end: %+v", <-ended)
	}
	if d.Count() != 2 {
		t.Errorf("%d processes", d.Count())
	}
}

func TestLastError(t *testing.T) {
	log := t.TempDir() + "/log"
	if err := os.WriteFile(log, []byte("level=INFO\ndxpu: error: first\ndxpu: hint: a hint\ndxpu: error: second\ndxpu: hint: more\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := lastError(log); got != "second" {
		t.Errorf("%q", got)
	}
	if got := lastError(log + "absent"); got != "" {
		t.Errorf("%q", got)
	}
}

// The nodes of a simulated pool share a process, and report less often than real ones.
func TestSimulatedNodesReportSeldom(t *testing.T) {
	for _, simulate := range []bool{false, true} {
		p := &Pool{spec: Spec{Simulate: simulate}}
		if got := slices.Contains(p.managerArgs("127.0.0.1:0", "url"), "--report-rate"); got != simulate {
			t.Errorf("simulated: %v, the manager bounds the reports: %v", simulate, got)
		}
	}
}
