package hook

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

// signal sends SIGTERM to the program and waits until a thread of it has taken it.
func (p *sharer) signal() {
	p.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	for pending := true; pending; {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
		if err != nil {
			p.t.Fatal(err)
		}
		pending = !strings.Contains(string(status), "ShdPnd:\t0000000000000000")
	}
}

// A signal while cuInit waits for the agent changes nothing.
func TestShareSignalAtStart(t *testing.T) {
	x := newSharing(t, 1000)
	a := x.agent
	a.late = true
	p := x.start(t)
	p.do(success, "catch")
	p.send("init")
	a.await("HELLO", func() bool { return a.count(hello) == 1 })
	p.signal()
	a.mu.Lock()
	for c := range a.conns {
		a.welcome(c)
	}
	a.mu.Unlock()
	if r, _, _ := p.answer(); r != success {
		t.Errorf("cuInit: result %d", r)
	}
	if caught, _ := p.do(success, "caught"); caught != 1 {
		t.Error("the handler has not run")
	}
	p.end()
}

// The handler of a signal may end the program while its thread looks for the end of a launch.
func TestShareExitInHandler(t *testing.T) {
	x := newSharing(t, 1000, "FAKE_GPU_RAISE=cuEventQuery")
	x.agent.set32(gpuGate, 1)
	x.agent.set32(gpuWindow, 1)
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "exits")
	// One of them waits for room, and looks itself. The program may end before it reads the last.
	_, _ = io.WriteString(p.in, strings.Repeat("launch cuLaunchKernel x 1\n", 50))
	p.exited()
}

// exited waits for the end of a program whose handler of SIGTERM is exit.
func (p *sharer) exited() {
	p.t.Helper()
	hung := time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() })
	defer hung.Stop()
	_ = p.cmd.Wait()
	if code := p.cmd.ProcessState.ExitCode(); code != int(syscall.SIGTERM) {
		p.t.Errorf("exit code %d, %v\n%s", code, p.cmd.ProcessState, p.errOut.String())
	}
}

// It may do so while its thread waits for a permit. Another thread that waits for one ends, so
// that a later handler of exit can join it, and the agent hears of the end.
func TestShareExitInHandlerWhileAsking(t *testing.T) {
	x := newSharing(t, 1000, "FAKE_GPU_CLOCK=step")
	a := x.agent
	a.set32(gpuGate, 1)
	a.wait = true
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "exits")
	p.send("launch cuLaunchKernel")
	a.await("the first LAUNCH", func() bool { return a.count(launchAsked) == 1 })
	a.all(message{kind: permit, id: a.last(launchAsked).id})
	if r, _, _ := p.answer(); r != success {
		t.Fatalf("result %d", r)
	}
	p.do(success, "last")
	a.await("the LAUNCH of the other thread", func() bool { return a.count(launchAsked) == 2 })
	p.send("launch cuLaunchKernel")
	a.await("all LAUNCHes", func() bool { return a.count(launchAsked) == 3 })
	x.setClock(t, 100_000)
	a.await("DONE", func() bool { return a.count(done) == 1 }) // so both threads have given the lock back
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.exited()
	a.await("EXIT", func() bool { return a.count(exit) == 1 })
}

// A thread that is cancelled while it waits for a permit ends after its call, as without the
// library, and the others go on.
func TestShareCancelledThread(t *testing.T) {
	x := newSharing(t, 1000)
	a := x.agent
	a.set32(gpuGate, 1)
	a.wait = true
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "last")
	a.await("LAUNCH", func() bool { return a.count(launchAsked) == 1 })
	p.do(success, "cancel")
	p.do(success, "take cuMemAlloc_v2 600 0")
	a.all(message{kind: permit, id: a.last(launchAsked).id})
	a.await("DONE", func() bool { return a.count(done) == 1 })
	p.end()
}
