//go:build linux

package agent_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// callAndEnd is the program of TestOwnerWithAFormerID: it connects, and gives its connection away.
func callAndEnd(path string) {
	c, err := net.Dial("unix", path)
	if err == nil {
		var f *os.File
		if f, err = c.(*net.UnixConn).File(); err == nil {
			err = unix.Sendmsg(3, []byte{0}, unix.UnixRights(int(f.Fd())), nil, 0)
		}
	}
	fmt.Fprintln(os.Stderr, err)
}

// deadCaller returns a connection of a process that has ended, and the process's ID.
func deadCaller(t *testing.T, path string) (*os.File, int) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	given := os.NewFile(uintptr(pair[1]), "given")
	defer given.Close()
	defer unix.Close(pair[0])
	cmd := exec.Command(os.Args[0])
	cmd.Env, cmd.ExtraFiles = append(os.Environ(), "SHARE_TEST_CALLER="+path), []*os.File{given}
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "<nil>\n" {
		t.Fatalf("%v: %s", err, out)
	}
	oob := make([]byte, 64)
	_, n, _, _, err := unix.Recvmsg(pair[0], make([]byte, 1), oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil || len(messages) != 1 {
		t.Fatalf("%d messages, %v", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fds[0]), "call"), cmd.Process.Pid
}

// withID starts a process with an ID that is free, until the end of the test.
func withID(t *testing.T, pid int) *exec.Cmd {
	t.Helper()
	for range 1000 {
		if err := os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(fmt.Sprint(pid-1)), 0); err != nil {
			t.Skipf("this user cannot choose the ID of a process: %v", err)
		}
		cmd := exec.Command("sleep", "3600")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if cmd.Process.Pid == pid {
			t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
			return cmd
		}
		_, _ = cmd.Process.Kill(), cmd.Wait()
	}
	t.Skipf("other processes take the ID %d", pid)
	return nil
}

// A process asks for a share that it owns, and has ended when the agent looks: another process that
// has its ID does not own the share, which would stay as long as that one.
func TestOwnerWithAFormerID(t *testing.T) {
	m := start(t, "", "gemini")
	call, pid := deadCaller(t, filepath.Join(m.dir, "run", agent.ControlName))
	defer call.Close()
	withID(t, pid)
	body := `{"memory_bytes":1,"owned":true}`
	if _, err := fmt.Fprintf(call, "POST /v1/shares HTTP/1.1\r\nHost: agent\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(call)
	if err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 400 ") {
		t.Errorf("answer %q, %v", answer, err)
	}
	if got := m.shares(); len(got) != 0 {
		t.Errorf("shares %+v, and process %d is another one", got, pid)
	}
}

// An agent that does not see the processes of a share could neither end them nor know when their memory
// is free, so it serves none.
func TestUnseenProcess(t *testing.T) {
	dir, err := os.MkdirTemp("", "share")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	served := exec.Command(os.Args[0])
	served.Env = append(os.Environ(), "SHARE_TEST_AGENT="+dir, "SHARE_TEST_POLICY=gemini")
	served.Stdout = os.Stderr
	served.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if err := served.Start(); errors.Is(err, syscall.EPERM) {
		t.Skip("this user cannot make a PID namespace")
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = served.Process.Kill(), served.Wait() })
	m := &machine{t: t, dir: dir, api: agent.NewClient(filepath.Join(dir, "run"))}
	m.until("the agent serves", func() bool { _, err := m.api.GPUs(t.Context()); return err == nil })
	if _, err := m.api.Create(t.Context(), agent.Part{Memory: gib, Owned: true}); err == nil || !strings.Contains(err.Error(), "--pid=host") {
		t.Errorf("a share of a process that is not seen: %v", err)
	}
	c, err := dial(m.create(agent.Part{Memory: gib}).Socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.socket.Close()
	if got := c.greet(); got == wire.Welcome.String() {
		t.Error("a process that is not seen is served")
	}
}
