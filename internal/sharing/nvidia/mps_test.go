package nvidia

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/mps"
	"github.com/dxpu-project/dxpu/internal/sharing/nvidiatest"
	"github.com/dxpu-project/dxpu/share"
)

func TestMain(m *testing.M) {
	nvidiatest.Main()
	os.Exit(m.Run())
}

// service is a running service with fake programs.
type service struct {
	t        *testing.T
	bin      string
	warnings warnings
	*MPS
	cancel context.CancelFunc
	done   chan error

	mu      sync.Mutex
	cond    *sync.Cond
	notices []mps.Notice
	ends    int // notices End so far
}

func start(t *testing.T, dir string) *service {
	t.Helper()
	bin := nvidiatest.Install(t)
	s := &service{t: t, bin: bin, done: make(chan error, 1), warnings: make(warnings, 100)}
	s.cond = sync.NewCond(&s.mu)
	m, err := NewMPS(MPSConfig{
		UUID: "GPU-1", Dir: dir, Programs: Programs{Control: filepath.Join(bin, "nvidia-cuda-mps-control")},
		Logger: slog.New(slog.NewTextHandler(s.warnings, nil)),
		UID:    1000, Others: mps.Limits{Share: share.Whole / 10}, Memory: 40 << 30,
		Notify: func(n mps.Notice) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.notices = append(s.notices, n)
			if n.Kind == mps.End {
				s.ends++
			}
			s.cond.Broadcast()
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.MPS = m
	var ctx context.Context
	ctx, s.cancel = context.WithCancel(t.Context())
	go func() { s.done <- m.Run(ctx) }()
	return s
}

// warnings takes the lines of a log, as far as there is room.
type warnings chan string

// Write implements io.Writer.
func (w warnings) Write(p []byte) (int, error) {
	select {
	case w <- string(p):
	default:
	}
	return len(p), nil
}

// shortDir returns a folder whose path leaves room for a socket's name.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "mps")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	t.Cleanup(func() { _ = killByPipes(filepath.Join(dir, "pipe")) })
	return dir
}

// wait waits for a notice, without end: a test that waits for ever is killed with
// the stacks of its goroutines.
func (s *service) wait(what string, ok func(mps.Notice) bool) mps.Notice {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		for i, n := range s.notices {
			if ok(n) {
				s.notices = s.notices[i+1:]
				return n
			}
		}
		s.notices = nil
		s.t.Log("waiting for", what)
		s.cond.Wait()
	}
}

func (s *service) state(want mps.State) {
	s.t.Helper()
	s.wait(want.String(), func(n mps.Notice) bool { return n.Kind == mps.Changed && n.State == want })
}

func (s *service) told(kind mps.NoticeKind, id mps.ClientID) mps.Notice {
	s.t.Helper()
	return s.wait("the notice", func(n mps.Notice) bool { return n.Kind == kind && n.Client == id })
}

// connect admits a client and connects it.
func (s *service) connect(id mps.ClientID, l mps.Limits) (*nvidiatest.Client, string) {
	s.t.Helper()
	if err := s.Admit(mps.Client{ID: id, PID: 5000 + int(id), Offline: true, Limits: l}); err != nil {
		s.t.Fatal(err)
	}
	s.told(mps.Go, id)
	c, limits, err := nvidiatest.Connect(s.pipes(), 5000+int(id))
	if err != nil {
		s.t.Fatal(err)
	}
	s.told(mps.Joined, id)
	return c, limits
}

func (s *service) end() {
	s.t.Helper()
	s.Stop()
	if err := <-s.done; err != nil {
		s.t.Fatal(err)
	}
}

func TestMPSLifeCycle(t *testing.T) {
	t.Parallel()
	s := start(t, shortDir(t))
	s.state(mps.Active)
	a, limits := s.connect(1, mps.Limits{Share: 600_000, Memory: 8 << 30})
	if limits != "60.0 8192M" {
		t.Errorf("the client got %q", limits)
	}
	b, limits := s.connect(2, mps.Limits{Share: 255_000})
	if limits != "25.5 40960M" {
		t.Errorf("the client got %q", limits)
	}
	// A fatal fault: all clients leave, and the server takes new ones.
	if err := nvidiatest.Script(s.pipes(), "fault"); err != nil {
		t.Fatal(err)
	}
	s.told(mps.End, 2)
	if _, _, err := nvidiatest.Connect(s.pipes(), 1); err == nil || !strings.HasPrefix(err.Error(), "807") {
		t.Errorf("a server with a fault took a client: %v", err)
	}
	a.Close()
	b.Close()
	s.Leave(1)
	s.Leave(2)
	s.state(mps.Active)
	// An offline client restarts for a new share.
	c, _ := s.connect(3, mps.Limits{Share: 300_000})
	if err := s.Resize(3, mps.Limits{Share: 500_000}); err != nil {
		t.Fatal(err)
	}
	if n := s.told(mps.End, 3); n.Reason != mps.ReasonShare || n.PID != 5003 {
		t.Errorf("%+v", n)
	}
	c.Close()
	s.Leave(3)
	c, limits = s.connect(3, mps.Limits{Share: 500_000})
	if limits != "50.0 40960M" {
		t.Errorf("the client got %q after its restart", limits)
	}
	if st := s.Status(); st.State != mps.Active || len(st.Servers) != 1 || len(st.Servers[0].Clients) != 1 {
		t.Errorf("status %+v", st)
	}
	c.Close()
	s.Leave(3)
	s.end()
	if _, _, err := nvidiatest.Connect(s.pipes(), 1); err == nil {
		t.Error("the daemon still runs")
	}
}

// An agent that ends leaves the service to its successor, which knows its clients.
func TestMPSTakeOver(t *testing.T) {
	t.Parallel()
	dir := shortDir(t)
	s := start(t, dir)
	s.state(mps.Active)
	c, _ := s.connect(1, mps.Limits{Share: 600_000})
	before := s.Status().Servers[0].PID
	s.cancel()
	if err := <-s.done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	s = start(t, dir)
	if err := s.Admit(mps.Client{ID: 1, PID: 5001, Running: true, Limits: mps.Limits{Share: 600_000}}); err != nil {
		t.Fatal(err)
	}
	s.state(mps.Active)
	if st := s.Status(); st.Servers[0].PID != before || len(st.Servers[0].Clients) != 1 {
		t.Errorf("%+v", st)
	}
	c.Close()
	s.Leave(1)
	s.end()
}

// The server ends: its clients must leave, and there is a new one.
func TestMPSServerCrash(t *testing.T) {
	t.Parallel()
	s := start(t, shortDir(t))
	s.state(mps.Active)
	c, _ := s.connect(1, mps.Limits{Share: 600_000})
	if err := nvidiatest.Script(s.pipes(), "crash"); err != nil {
		t.Fatal(err)
	}
	c.Wait()
	if n := s.told(mps.End, 1); n.Reason != mps.ReasonServer {
		t.Errorf("%+v", n)
	}
	s.Leave(1)
	s.state(mps.Active)
	s.end()
}

// A control program that cannot be run for a while says nothing about the daemon: the clients go
// on. When the service is to stop then, it finds the daemon among the processes.
func TestMPSWithoutProgram(t *testing.T) {
	t.Parallel()
	s := start(t, shortDir(t))
	s.state(mps.Active)
	c, _ := s.connect(1, mps.Limits{Share: 600_000})
	before := s.Status().Servers[0].PID
	program := filepath.Join(s.bin, "nvidia-cuda-mps-control")
	if err := os.Rename(program, program+"-gone"); err != nil {
		t.Fatal(err)
	}
	for asked := false; !asked; { // and not for an action
		w := <-s.warnings
		asked = strings.Contains(w, "no such file") && !strings.Contains(w, " do=")
	}
	if got := s.found(); got.Daemon != mps.Unasked {
		t.Errorf("the daemon was not found: %+v", got)
	}
	if err := os.Rename(program+"-gone", program); err != nil {
		t.Fatal(err)
	}
	s.connect(2, mps.Limits{Share: 200_000})
	if st := s.Status(); st.State != mps.Active || st.Servers[0].PID != before || len(st.Servers[0].Clients) != 2 {
		t.Errorf("%+v", st)
	}
	s.mu.Lock()
	if s.ends > 0 {
		t.Errorf("%d clients were told to end", s.ends)
	}
	s.mu.Unlock()
	c.Close()
	s.end()
	if got := s.found(); got.Daemon != mps.Absent {
		t.Errorf("the daemon still runs: %+v", got)
	}
}

// While the control program cannot be run, a client with new limits is told to end, and the end of the
// daemon is seen.
func TestMPSEndsWithoutProgram(t *testing.T) {
	t.Parallel()
	s := start(t, shortDir(t))
	s.state(mps.Active)
	a, _ := s.connect(1, mps.Limits{Share: 600_000})
	b, _ := s.connect(2, mps.Limits{Share: 200_000})
	program := filepath.Join(s.bin, "nvidia-cuda-mps-control")
	if err := os.Rename(program, program+"-gone"); err != nil {
		t.Fatal(err)
	}
	if err := s.Resize(1, mps.Limits{Share: 100_000}); err != nil {
		t.Fatal(err)
	}
	if n := s.told(mps.End, 1); n.Reason != mps.ReasonShare {
		t.Errorf("%+v", n)
	}
	if st := s.Status(); st.State != mps.Active || len(st.Servers) != 1 {
		t.Errorf("%+v", st)
	}
	if err := killByPipes(s.pipes()); err != nil {
		t.Fatal(err)
	}
	if n := s.told(mps.End, 2); n.Reason != mps.ReasonServer {
		t.Errorf("%+v", n)
	}
	s.state(mps.Starting)
	a.Close()
	b.Close()
	if err := os.Rename(program+"-gone", program); err != nil {
		t.Fatal(err)
	}
	s.end()
}

// A daemon with garbage for answers is not trusted, and is not killed at once.
func TestMPSGarbage(t *testing.T) {
	t.Parallel()
	s := start(t, shortDir(t))
	s.state(mps.Active)
	for _, order := range []string{"garbage", ""} {
		if err := nvidiatest.Script(s.pipes(), order); err != nil {
			t.Fatal(err)
		}
		if order == "" {
			s.state(mps.Active)
		} else {
			s.state(mps.Silent)
		}
	}
	s.end()
}

func TestKillByPipes(t *testing.T) {
	dir := shortDir(t)
	s := start(t, dir)
	s.state(mps.Active)
	s.cancel()
	<-s.done
	if err := killByPipes(filepath.Join(t.TempDir(), "pipe")); err != nil {
		t.Fatal(err)
	}
	c, _, err := nvidiatest.Connect(s.pipes(), 1)
	if err != nil {
		t.Fatalf("the daemon of other pipes was killed: %v", err)
	}
	if err := killByPipes(s.pipes()); err != nil {
		t.Fatal(err)
	}
	c.Wait()
	if _, _, err := nvidiatest.Connect(s.pipes(), 1); err == nil {
		t.Error("the daemon still answers")
	}
}

func TestNewMPSPath(t *testing.T) {
	if _, err := NewMPS(MPSConfig{Dir: "/tmp/" + strings.Repeat("x", 100)}); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("%v", err)
	}
}

func TestRun(t *testing.T) {
	sh := func(script string, limit time.Duration) (string, error) {
		return command{name: "sh", args: []string{"-c", script}, limit: limit}.run(t.Context())
	}
	if out, err := sh("echo a; echo b >&2", time.Minute); out != "a\nb\n" || err != nil {
		t.Errorf("%q, %v", out, err)
	}
	var exit *ExitError
	if out, err := sh("echo no; exit 6", time.Minute); out != "no\n" || !errors.As(err, &exit) || exit.Code != 6 {
		t.Errorf("%q, %v", out, err)
	}
	if _, err := sh("sleep 1000 & sleep 1000", time.Millisecond); !errors.Is(err, ErrTimeout) {
		t.Errorf("a program that hangs: %v", err)
	}
	if _, err := sh("cat /dev/zero", time.Minute); err == nil || !strings.Contains(err.Error(), "bytes of output") {
		t.Errorf("endless output: %v", err)
	}
	if _, err := (command{name: "/nonexistent/nvidia-smi", limit: time.Minute}).run(t.Context()); err == nil || !strings.Contains(err.Error(), "driver") {
		t.Errorf("no program: %v", err)
	}
}
