//go:build linux

package hook

import (
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
)

// wordsOf returns the heartbeat and the memory in use in the page of a share.
func wordsOf(t *testing.T, path string) (heartbeat, used *uint64) {
	t.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Write(message{kind: hello, id: 1}.encode()); err != nil {
		t.Fatal(err)
	}
	b, rights := make([]byte, 64), make([]byte, 64)
	_, n, _, _, err := c.ReadMsgUnix(b, rights)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(rights[:n])
	if err != nil || len(messages) != 1 {
		t.Fatalf("%d control messages, %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	page, err := unix.Mmap(fds[0], 0, 4096, unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fds[0])
	t.Cleanup(func() { _ = unix.Munmap(page) })
	return (*uint64)(unsafe.Pointer(&page[pageHeartbeat])), (*uint64)(unsafe.Pointer(&page[gpuUsed]))
}

// The agent hangs, and one program takes memory alone. Then the agent goes on before it hears
// of that, and another program asks, which has not noticed anything. The limit holds.
func TestShareSilentAgent(t *testing.T) {
	const limit = 1000
	x := newSharing(t, 0)
	dir, err := os.MkdirTemp("", "dxs") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	c := &installed{dir: dir, dxpu: buildDXPU(t)}
	signal := c.serve(t)
	t.Cleanup(func() { signal(os.Interrupt) })
	s, err := c.api.Create(t.Context(), agent.Part{ID: "a", Memory: limit})
	if err != nil {
		t.Fatal(err)
	}
	x.env = []string{"DXPU_SHARE=" + s.Socket}
	heartbeat, used := wordsOf(t, s.Socket)
	early, late := x.start(t), x.start(t)
	early.do(success, "init")
	late.do(success, "init")
	late.do(success, "take cuMemAlloc_v2 100 0")
	c.until("the share has both programs", func() bool { s := c.share("a"); return len(s.Processes) == 2 && s.Used == 100 })
	signal(syscall.SIGSTOP)
	before := atomic.LoadUint64(heartbeat)
	t.Cleanup(func() { signal(syscall.SIGCONT) })
	stopOrContinue(t, late.cmd.Process, syscall.SIGSTOP)
	c.until("a program goes on alone, with half of what was left", func() bool { left, _ := early.do(success, "info"); return left == 450 })
	early.do(success, "take cuMemAlloc_v2 450 0") // of which the agent hears nothing
	early.do(outOfMemory, "take cuMemAlloc_v2 1 1")
	stopOrContinue(t, early.cmd.Process, syscall.SIGSTOP)
	signal(syscall.SIGCONT)
	c.until("the agent goes on", func() bool { return atomic.LoadUint64(heartbeat) > before })
	stopOrContinue(t, late.cmd.Process, syscall.SIGCONT)
	late.send("take cuMemAlloc_v2 %d 1", 1+limit-100-450)
	c.until("the agent keeps the memory for both programs, or grants it", func() bool { return atomic.LoadUint64(used) > 100 })
	stopOrContinue(t, early.cmd.Process, syscall.SIGCONT)
	if r, _, _ := late.answer(); r != outOfMemory {
		t.Errorf("result %d for a byte more than the share has left", r)
	}
	c.until("the account is that of the GPU", func() bool { return uint64(c.share("a").Used) == x.gpuWord(t, gpuInUse) })
	c.until("the rest of the share is granted", func() bool {
		late.send("take cuMemAlloc_v2 %d 1", limit-100-450)
		r, _, _ := late.answer()
		return r == success
	})
	if peak := x.gpuWord(t, gpuPeak); peak != limit {
		t.Errorf("%d bytes were in use at once, want the limit of %d", peak, limit)
	}
	late.end()
	early.end()
	c.until("nothing is left", func() bool { s := c.share("a"); return s.Used == 0 && len(s.Processes) == 0 })
}

// A program that is stopped with a kernel in flight, as by Ctrl-Z or as in a container that is
// paused, keeps the programs of other shares waiting for a moment only, and goes on later.
func TestServedStoppedProgram(t *testing.T) {
	t.Run("signal", func(t *testing.T) {
		testServedStoppedProgram(t, func(p *os.Process) func() {
			stopOrContinue(t, p, syscall.SIGSTOP)
			return func() { stopOrContinue(t, p, syscall.SIGCONT) }
		})
	})
	for _, f := range []freezer{
		{"/sys/fs/cgroup", "cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"},
		{"/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0", "cgroup.events", "frozen 1"},
		{"/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED", "freezer.state", "FROZEN"},
	} {
		t.Run(strings.ReplaceAll(f.root[5:], "/", "-"), func(t *testing.T) {
			dir := f.make(t)
			testServedStoppedProgram(t, func(p *os.Process) func() { return f.freeze(t, dir, p) })
		})
	}
}

// freezer is that of a cgroup, version 2 or 1.
type freezer struct{ root, file, on, off, state, frozen string }

// make makes a cgroup, and skips the test where there is none of this kind.
func (f freezer) make(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(f.root, "dxpu-test-")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	if _, err := os.Stat(filepath.Join(dir, f.file)); err != nil {
		t.Skip(err)
	}
	return dir
}

func (f freezer) freeze(t *testing.T, dir string, p *os.Process) (thaw func()) {
	t.Helper()
	write := func(dir, file, text string) {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
	thaw = sync.OnceFunc(func() {
		write(dir, f.file, f.off)
		write(f.root, "cgroup.procs", strconv.Itoa(p.Pid))
	})
	t.Cleanup(thaw) // a frozen process does not end
	write(dir, "cgroup.procs", strconv.Itoa(p.Pid))
	write(dir, f.file, f.on)
	for { // the kernel freezes one thread after the other
		text, err := os.ReadFile(filepath.Join(dir, f.state))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), f.frozen) {
			return thaw
		}
		runtime.Gosched()
	}
}

func testServedStoppedProgram(t *testing.T, stop func(*os.Process) (resume func())) {
	s := serveShares(t, "gemini")
	x := newSharing(t, 0)
	var all []*sharer
	for _, name := range []string{"a", "b"} {
		made, err := s.api.Create(t.Context(), agent.Part{ID: name, Memory: 1000})
		if err != nil {
			t.Fatal(err)
		}
		x.env = []string{"DXPU_SHARE=" + made.Socket, "FAKE_GPU_CLOCK=step"} // a kernel ends when its program waits for it
		p := x.start(t)
		p.do(success, "init")
		all = append(all, p)
	}
	for range 3 {
		all[0].do(success, "launch cuLaunchKernel")
	}
	resume := stop(all[0].cmd.Process)
	for range 3 {
		all[1].do(success, "launch cuLaunchKernel")
		all[1].do(success, "sync")
	}
	resume()
	all[0].do(success, "sync")
	all[0].do(success, "launch cuLaunchKernel")
	all[0].do(success, "sync")
	s.until("all launches are counted", func() bool { return s.share("a").Launches == 4 && s.share("b").Launches == 3 })
	if wrong := s.share("a").Processes[0].Wrong; wrong > 0 {
		t.Errorf("%d messages of the program were not expected", wrong)
	}
	for _, p := range all {
		p.end()
	}
}
