//go:build linux

package hook

import (
	"bytes"
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
)

// installed is dxpu as a user has it: the program beside the driver library, and its agent
// as a process, with the fake GPU.
type installed struct {
	*served
	dir, dxpu string
	gpus      []string // empty: one
	// The policy, "" is timeslice, and what holds without an agent, "" is open.
	policy, without string
	pid             int // of the agent
}

var dxpuOnce sync.Once

// buildDXPU builds the program beside the library.
func buildDXPU(t *testing.T) string {
	t.Helper()
	out := filepath.Join(needBuilds(t).dir, "dxpu")
	dxpuOnce.Do(func() { runCommand(t, exec.Command("go", "build", "-o", out, "../cmd/dxpu")) })
	return out
}

// runCommand returns the output of a program.
func runCommand(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, errOut.String())
	}
	return out.String()
}

// stopOrContinue sends SIGSTOP or SIGCONT to a child. After SIGSTOP none of its threads runs.
func stopOrContinue(t testing.TB, p *os.Process, s syscall.Signal) {
	t.Helper()
	if err := p.Signal(s); err != nil {
		t.Fatal(err)
	}
	var status unix.WaitStatus
	if s != syscall.SIGSTOP {
		return
	}
	if _, err := unix.Wait4(p.Pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("process %d is not stopped: status %#x, %v", p.Pid, status, err)
	}
}

// serve starts the agent. The function that it returns stops or continues it, or ends it by
// another signal.
func (c *installed) serve(t *testing.T) func(os.Signal) {
	t.Helper()
	run := filepath.Join(c.dir, "run")
	args := []string{"share", "serve", "--policy", cmp.Or(c.policy, "timeslice"), "--without-agent", cmp.Or(c.without, "open"), "--dir", run, "--state", filepath.Join(c.dir, "state", "s.json"), "--kernel-log", "none"}
	if len(c.gpus) == 0 {
		c.gpus = []string{"test"}
	}
	for _, g := range c.gpus {
		args = append(args, "--gpu", g+",memory=1GiB")
	}
	cmd := exec.Command(c.dxpu, args...)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.pid = cmd.Process.Pid
	c.served = &served{t: t, api: agent.NewClient(run)}
	c.until("the agent serves", func() bool { _, err := c.api.GPUs(t.Context()); return err == nil })
	return func(s os.Signal) {
		if s == syscall.SIGSTOP || s == syscall.SIGCONT {
			stopOrContinue(t, cmd.Process, s.(syscall.Signal))
			return
		}
		_ = cmd.Process.Signal(s)
		if err := cmd.Wait(); err != nil && s != os.Kill {
			t.Errorf("the agent ended: %v\n%s", err, log.String())
		}
	}
}
