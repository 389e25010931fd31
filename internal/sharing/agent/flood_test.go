//go:build linux

package agent_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// The connections of a share, and the calls of its user, leave the agent the descriptors that it needs
// to serve root and to write its files: root can end that share.
func TestSpareDescriptors(t *testing.T) {
	dir, err := os.MkdirTemp("", "share")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	served := exec.Command(os.Args[0])
	served.Env = append(os.Environ(), "SHARE_TEST_AGENT="+dir, "SHARE_TEST_POLICY=gemini")
	served.Stdout = os.Stderr
	if err := served.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = served.Process.Kill(), served.Wait() })
	m := &machine{t: t, dir: dir, api: agent.NewClient(filepath.Join(dir, "run"))}
	m.until("the agent serves", func() bool { _, err := m.api.GPUs(t.Context()); return err == nil })
	good := m.create(agent.Part{ID: "good", Memory: gib})
	c := m.connect(good)
	var bad []agent.Share
	for range 2 {
		bad = append(bad, m.create(agent.Part{Memory: gib}))
	}
	const most = 128 // with those of the agent itself, and 64 to spare
	if err := unix.Prlimit(served.Process.Pid, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: most, Max: most}, nil); err != nil {
		t.Fatal(err)
	}
	var flood []*client
	end := func() {
		for _, x := range flood {
			_ = x.socket.Close()
		}
	}
	defer end()
	for _, s := range bad {
		for range 64 {
			x, err := dial(s.Socket)
			if err != nil {
				t.Fatal(err)
			}
			flood = append(flood, x)
		}
		if _, err := flood[len(flood)-1].receive(); err == nil {
			t.Error("all connections are served")
		}
	}
	m.create(agent.Part{ID: "late", Memory: gib})
	if err := m.api.End(t.Context(), "late", 0); err != nil {
		t.Error(err)
	}
	if a := m.ask(c, wire.Message{Type: wire.Allocate, Bytes: 1}); a.Type != wire.Granted {
		t.Errorf("answer %+v", a)
	}
	if os.Getuid() == 0 {
		path := filepath.Join(dir, "run", agent.ControlName)
		if err := errors.Join(os.Chmod(dir, 0o755), os.Chmod(path, 0o666)); err != nil {
			t.Fatal(err)
		}
		conns, err := dialAs(65534, 1, path)
		if err != nil {
			t.Fatal(err)
		}
		defer conns[0].Close()
		answer := make([]byte, 12)
		if _, err := conns[0].Read(answer); err != nil || string(answer) != "HTTP/1.1 503" {
			t.Errorf("a call of another user: %q, %v", answer, err)
		}
	}
	for _, s := range bad {
		if err := m.api.End(t.Context(), s.ID, time.Hour); err != nil {
			t.Error(err)
		}
	}
	end()
	m.until("the share is served again", func() bool {
		x, err := dial(good.Socket)
		if err != nil {
			return false
		}
		defer x.socket.Close()
		return x.greet() == "WELCOME"
	})
	if got := m.shares(); slices.ContainsFunc(got, func(s agent.Share) bool { return s.ID != "good" }) {
		t.Errorf("shares %+v", got)
	}
}

// A call waits for a place in a queue that others fill.
func TestCallInAFullQueue(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, agent.ControlName)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	var waiting []net.Conn
	defer func() {
		for _, c := range waiting {
			_ = c.Close()
		}
	}()
	for {
		c, err := net.Dial("unix", path)
		if errors.Is(err, unix.EAGAIN) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		waiting = append(waiting, c)
	}
	api := agent.NewClient(dir)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := api.GPUs(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a call in a full queue: %v", err)
	}
	l, err := net.FileListener(file)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("[]")) })}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	if _, err := api.GPUs(t.Context()); err != nil {
		t.Error(err)
	}
	_ = srv.Close()
	<-served
}
