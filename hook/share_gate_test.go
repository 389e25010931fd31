package hook

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// monotonic returns CLOCK_MONOTONIC in ns, for the page's heartbeat.
func monotonic(t testing.TB) uint64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return uint64(ts.Nano())
}

// A process has at most as many launches in flight as the window says, and more when
// the window grows.
func TestShareWindow(t *testing.T) {
	x := newSharing(t, 1000, "FAKE_GPU_CLOCK=step")
	a := x.agent
	a.set32(gpuGate, 1)
	a.set32(gpuWindow, 2)
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "launch cuLaunchKernel")
	p.do(success, "launch cuLaunchKernel")
	p.send("launch cuLaunchKernel")
	a.set32(gpuWindow, 3)
	if r, _, _ := p.answer(); r != success {
		t.Fatalf("result %d", r)
	}
	a.mu.Lock()
	early := a.count(done)
	a.mu.Unlock()
	if early != 0 {
		t.Error("DONE before the GPU's clock moved")
	}
	p.send("launch cuLaunchKernel")
	x.setClock(t, 100_000) // the first kernel ends, and makes room
	if r, _, _ := p.answer(); r != success {
		t.Fatalf("result %d", r)
	}
	a.await("DONE", func() bool { return a.count(done) == 1 })
	p.do(success, "sync")
	a.await("the other DONEs", func() bool { return a.count(done) == 4 })
	p.end()
}

// A launch into a stream of another context than the current one is done when its kernel
// is, not before.
func TestShareOtherContext(t *testing.T) {
	x := newSharing(t, 1000, "FAKE_GPU_CLOCK=step")
	a := x.agent
	a.set32(gpuGate, 1)
	a.set32(gpuWindow, 1)
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "other 0")
	p.do(success, "launch-other")
	p.send("launch cuLaunchKernel") // waits for room in the window
	a.await("the first LAUNCH", func() bool { return a.count(launchAsked) == 1 && a.count(done) == 0 })
	x.setClock(t, 100_000)
	if r, _, _ := p.answer(); r != success {
		t.Fatalf("result %d", r)
	}
	if a.last(done).arg[0] != 100_000 {
		t.Errorf("DONE %+v, want the 100 us of the kernel", a.last(done))
	}
	p.do(success, "sync")
	// The look for room in the window left the context of the second launch current.
	a.await("the second DONE", func() bool { return a.count(done) == 2 })
	if a.last(done).arg[0] != 100_000 {
		t.Errorf("DONE %+v, want the 100 us of the kernel", a.last(done))
	}
	p.end()
}

// A program that waits for one GPU and then for another one ends its bursts on both.
func TestShareIdleOfEachGPU(t *testing.T) {
	const second = 128 // from a word of the first GPU to that of the second one
	x := newSharing(t, 1000, "FAKE_GPU_DEVICES=2")
	a := x.agent
	a.set32(pageCount, 2)
	a.set32(gpuGate, 1)
	a.set32(gpuGate+second, 1)
	a.set32(gpuWindow+second, 16)
	a.set64(gpuLimit+second, 1000)
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "other 1")
	p.do(success, "launch cuLaunchKernel")
	p.do(success, "launch-other")
	p.do(success, "sync")
	p.do(success, "context 1")
	p.do(success, "sync")
	p.end()
	a.await("EXIT", func() bool { return a.count(exit) == 1 })
	var got []uint32
	for _, m := range a.messages() {
		if m.kind == idle {
			got = append(got, m.gpu)
		}
	}
	if !slices.Equal(got, []uint32{0, 1}) {
		t.Errorf("IDLE of the GPUs %v, want 0 and 1", got)
	}
}

// A process that ends does not wait for an answer, whatever its own handlers wait for.
func TestShareExitWhileAsking(t *testing.T) {
	x := newSharing(t, 1000)
	a := x.agent
	a.set32(gpuGate, 1)
	a.wait = true
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "last")
	a.await("LAUNCH", func() bool { return a.count(launchAsked) == 1 })
	hung := time.AfterFunc(time.Minute, func() { _ = p.cmd.Process.Kill() })
	defer hung.Stop()
	p.end()
}

// A held share neither launches nor copies; it goes on when the agent resumes it.
func TestShareHold(t *testing.T) {
	for _, command := range []string{"launch cuLaunchKernel", "copy", "memset"} {
		t.Run(command, func(t *testing.T) {
			x := newSharing(t, 1000)
			a := x.agent
			a.wait = true
			p := x.start(t)
			p.do(success, "init")
			p.do(success, "%s", command)
			a.set32(gpuGate, 2)
			p.send("%s", command)
			if strings.HasPrefix(command, "launch") {
				a.await("LAUNCH", func() bool { return a.count(launchAsked) == 1 })
				a.set32(gpuGate, 0)
				a.all(message{kind: permit, id: a.last(launchAsked).id})
			} else {
				a.set32(gpuGate, 0)
			}
			if r, _, _ := p.answer(); r != success {
				t.Fatalf("result %d", r)
			}
			p.end()
		})
	}
}

// Without its agent a share is open or closed, as the page says, and connects again. It
// then tells the new agent what it holds.
func TestShareAgentDies(t *testing.T) {
	for _, tc := range []struct {
		name   string
		closed bool
		hangs  bool // the heartbeat stops, the socket stays
	}{
		{"open", false, false},
		{"closed", true, false},
		{"open, hangs", false, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			x := newSharing(t, 1000)
			a := x.agent
			a.set32(gpuGate, 1)
			a.set32(pageProcesses, 2)
			if tc.closed {
				a.set32(pageFlags, 1)
			}
			p, other := x.start(t), x.start(t)
			for _, q := range []*sharer{p, other} {
				q.do(success, "init")
				q.do(success, "take cuMemAlloc_v2 300 0")
			}
			if tc.hangs {
				_ = a.listener.Close() // it does not accept either
				a.mu.Lock()
				a.dead = true
				a.mu.Unlock()
				a.set64(pageHeartbeat, monotonic(t)-2)
				a.set64(pageSilence, 1)
				a.await("the end of the connections", func() bool { return len(a.conns) == 0 })
			} else {
				a.stop()
			}
			p.do(outOfMemory, "take cuMemAlloc_v2 201 1")
			if tc.closed {
				p.do(outOfMemory, "take cuMemAlloc_v2 1 1")
				p.send("launch cuLaunchKernel")
			} else {
				p.do(success, "launch cuLaunchKernel")
				// Each has half of what the last page had left, so that both keep to the limit.
				for _, q := range []*sharer{p, other} {
					q.do(success, "take cuMemAlloc_v2 200 1")
					q.do(outOfMemory, "take cuMemAlloc_v2 1 2")
				}
				p.do(success, "drop 0")
			}
			a.set64(pageSilence, 0)
			if tc.hangs {
				a.stop()
			}
			a.listen()
			want := uint64(600)
			if !tc.closed {
				want = 700
			}
			// A process that tells what it holds may have memory to give back, and so it
			// can reach the sum before the other one connects.
			a.await("what both hold", func() bool {
				for _, held := range a.conns {
					if held == 0 {
						return false
					}
				}
				return len(a.conns) == 2 && a.used == want
			})
			if tc.closed {
				if r, _, _ := p.answer(); r != success {
					t.Fatalf("result %d", r)
				}
				a.await("LAUNCH", func() bool { return a.count(launchAsked) == 1 })
			}
			p.do(outOfMemory, "take cuMemAlloc_v2 401 2")
			p.do(success, "take cuMemAlloc_v2 100 2")
			a.awaitUsed(want + 100)
			p.end()
			other.end()
		})
	}
}

// Memory that a process frees and takes again without an agent is told to the next one as it
// is then: an account of what went on meanwhile could be above the limit.
func TestShareTakesAgainAlone(t *testing.T) {
	x := newSharing(t, 1000)
	a := x.agent
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "take cuMemAlloc_v2 600 0")
	a.stop()
	p.do(success, "take cuMemAlloc_v2 100 1") // it notices
	for range 3 {
		p.do(success, "drop 0")
		p.do(success, "take cuMemAlloc_v2 600 0")
	}
	a.listen()
	a.await("HOLDS", func() bool { return a.count(holds) == 2 })
	if m := a.last(holds); m.bytes != 700 {
		t.Errorf("the process tells %d bytes, it has 700", m.bytes)
	}
	p.end()
}

// An answer that was lost with the connection is asked for again, and counts once.
func TestShareLostAnswer(t *testing.T) {
	x := newSharing(t, 1000)
	a := x.agent
	a.mute = true
	p := x.start(t)
	p.do(success, "init")
	p.send("take cuMemAlloc_v2 300 0")
	a.await("the connection", func() bool { return len(a.conns) == 1 })
	a.stop()
	a.mute = false
	a.listen()
	// Between the connections the page's limit decides.
	if r, _, _ := p.answer(); r != success {
		t.Fatalf("result %d", r)
	}
	a.awaitUsed(300)
	p.end()
}

// Without an agent there is no GPU.
func TestShareNoAgent(t *testing.T) {
	x := newSharing(t, 1000)
	x.agent.stop()
	p := x.start(t)
	p.do(systemNotReady, "init")
	_ = p.in.Close()
	if err := p.cmd.Wait(); err != nil || !strings.Contains(p.errOut.String(), "without its agent") {
		t.Errorf("%v, standard error %q", err, p.errOut.String())
	}
}

// END: the process ends by SIGTERM when no kernel runs, or its handler has time, and
// then launches nothing any more.
func TestShareEnd(t *testing.T) {
	const hour = 3600e9
	t.Run("default", func(t *testing.T) {
		x := newSharing(t, 1000)
		p := x.start(t)
		p.do(success, "init")
		p.do(success, "launch cuLaunchKernel 0 1")
		x.agent.all(message{kind: end, arg: [5]uint64{hour}})
		err := p.cmd.Wait()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
			t.Fatalf("%v, want the end by SIGTERM", err)
		}
		if at := x.gpuWord(t, gpuFreeAt); at > monotonic(t) {
			t.Errorf("the process ended %d ns before its kernel", at-monotonic(t))
		}
	})
	t.Run("handler", func(t *testing.T) {
		x := newSharing(t, 1000)
		p := x.start(t)
		p.do(success, "init")
		p.do(success, "catch")
		x.agent.all(message{kind: end, arg: [5]uint64{hour}})
		for caught := uint64(0); caught == 0; {
			caught, _ = p.do(success, "caught")
		}
		p.do(success, "launch cuLaunchKernel") // it saves its state
		p.end()
	})
	t.Run("last", func(t *testing.T) {
		x := newSharing(t, 1000)
		p := x.start(t)
		p.do(success, "init")
		p.do(success, "catch")
		x.agent.all(message{kind: end, arg: [5]uint64{1}})
		x.agent.await("EXIT", func() bool { return x.agent.count(exit) == 1 })
		p.send("launch cuLaunchKernel")
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
		if n := x.gpuWord(t, gpuLaunches); n != 0 {
			t.Errorf("%d launches after EXIT", n)
		}
	})
}

// A child has no part of its parent's connection, and the agent sees the parent's end.
func TestShareFork(t *testing.T) {
	x := newSharing(t, 1000)
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "take cuMemAlloc_v2 100 0")
	p.do(success, "fork")
	x.agent.awaitUsed(100)
	p.do(success, "take cuMemAlloc_v2 100 1")
	p.end()
	x.agent.awaitUsed(0)
}

// An error of the GPU is told, and ends the launches in flight.
func TestShareFailure(t *testing.T) {
	x := newSharing(t, 1000, "FAKE_GPU_ERRORS=cuEventQuery@1=700")
	x.agent.set32(gpuGate, 1)
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "launch cuLaunchKernel")
	x.agent.await("FAILED and DONE", func() bool { return x.agent.count(failed) == 1 && x.agent.count(done) == 1 })
	if m := x.agent.last(failed); m.arg[0] != 700 {
		t.Errorf("FAILED %+v", m)
	}
	p.end()
}

// A launch that the driver refuses gives its permit back; one into a capture needs none.
func TestShareRefusedLaunch(t *testing.T) {
	x := newSharing(t, 1000, "FAKE_GPU_ERRORS=cuLaunchKernel@1=719")
	x.agent.set32(gpuGate, 1)
	p := x.start(t)
	p.do(success, "init")
	p.do(719, "launch cuLaunchKernel")
	x.agent.await("DONE", func() bool { return x.agent.count(done) == 1 })
	p.do(success, "launch cuGraphLaunch") // three kernels in a capture, then one launch
	x.agent.await("LAUNCH", func() bool { return x.agent.count(launchAsked) == 2 })
	p.end()
}

// While the gate is open, the launches are counted.
func TestShareUsage(t *testing.T) {
	x := newSharing(t, 1000)
	p := x.start(t)
	p.do(success, "init")
	for range 5 {
		p.do(success, "launch cuLaunchKernel")
	}
	x.agent.await("USAGE", func() bool { return x.agent.counted == 5 })
	p.end()
}

// Threads of one process share its connection, at an open gate and at one that asks.
func TestShareThreads(t *testing.T) {
	x := newSharing(t, 100_000)
	x.threads(t, 100)
}

func (x *sharing) threads(t *testing.T, rounds int) {
	t.Helper()
	x.agent.set32(gpuGate, 1)
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "threads x %d", rounds)
	x.agent.await("all DONEs", func() bool { return x.agent.count(done) == 8*(rounds/10) })
	p.end()
	x.agent.awaitUsed(0)
}

// The sharing mode runs clean under the sanitizers.
func TestShareSanitizers(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the library twice more")
	}
	r := needBuilds(t)
	for _, tc := range []struct{ name, flags string }{
		{"address", "-fsanitize=address,undefined -fno-sanitize-recover=undefined"},
		{"thread", "-fsanitize=thread"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := r.has(t, tc.flags); err != nil {
				t.Skipf("the compiler has no such sanitizer: %v", err)
			}
			x := newSharing(t, 100_000, "ASAN_OPTIONS=detect_leaks=0", "TSAN_OPTIONS=halt_on_error=1")
			x.sanitize(t, tc.name, tc.flags)
			x.threads(t, 50)
			p := x.start(t)
			p.do(success, "init")
			x.creditThreads(t, p, 200)
			p.do(success, "stress x 1 300")
			p.do(success, "fork")
			x.agent.stop()
			p.do(success, "launch cuGraphLaunch")
			x.agent.listen()
			x.agent.await("the new connection", func() bool { return len(x.agent.conns) == 1 })
			p.do(success, "context 0")
			p.do(success, "take cuMemAlloc_v2 10 0")
			p.do(success, "destroy")
			p.do(success, "reset")
			p.end()
		})
	}
}

// sanitize builds the library, the program and the fake GPU with a sanitizer.
func (x *sharing) sanitize(t *testing.T, name, flags string) {
	t.Helper()
	r := needBuilds(t)
	dir := r.sanitizedHook(t, name, flags)
	x.hookDir, x.gpuDir, x.program = "hook-"+name, "gpu-"+name, "share-"+name
	if err := r.fakeGPU(filepath.Join(r.dir, x.gpuDir), flags); err != nil {
		t.Fatal(err)
	}
	if err := r.shareProgram(filepath.Join(r.dir, x.program), dir, flags, "testdata/share.c"); err != nil {
		t.Fatal(err)
	}
}

// sanitizedHook builds the library with a sanitizer, once, and returns its folder.
func (r builds) sanitizedHook(t *testing.T, name, flags string) string {
	t.Helper()
	dir := filepath.Join(r.dir, "hook-"+name)
	if _, err := os.Stat(filepath.Join(dir, Library)); err == nil {
		return dir
	}
	// A library with a sanitizer has undefined symbols.
	if err := command("..", "make", "-f", "hook/Makefile", "hook", "HOOKOUT="+dir, "CC="+r.cc, "CFLAGS="+flags, "LDFLAGS=-Wl,-z,undefs"); err != nil {
		t.Fatal(err)
	}
	return dir
}
