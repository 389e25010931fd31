//go:build linux

package agent_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/rights/rightstest"
	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/nvidiatest"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
	"github.com/dxpu-project/dxpu/share"
)

const gib = 1 << 30

// TestMain is also the program of the tests: with $SHARE_TEST_SOCKET it is a process of a
// share, which takes its orders from standard input.
func TestMain(m *testing.M) {
	nvidiatest.Main()
	if path := os.Getenv("SHARE_TEST_SOCKET"); path != "" {
		program(path)
		return
	}
	if dir := os.Getenv("SHARE_TEST_AGENT"); dir != "" {
		serveUntilKilled(dir)
		return
	}
	if path := os.Getenv("SHARE_TEST_CALLER"); path != "" {
		callAndEnd(path)
		return
	}
	os.Exit(m.Run())
}

// program allocates what its input says, a number of bytes in each line, and prints the
// type of the answer.
func program(path string) {
	c, err := dial(path)
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(c.greet())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var bytes uint64
		if _, err := fmt.Sscan(lines.Text(), &bytes); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		if err := c.send(wire.Message{Type: wire.Allocate, Bytes: bytes}); err != nil {
			fmt.Println(err)
			continue
		}
		answer, err := c.receive()
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println(answer.Type)
	}
}

// machine is an agent with its folders.
type machine struct {
	t     testing.TB
	dir   string
	agent *agent.Agent
	api   *agent.Client
	stop  func()
}

// configOf returns the configuration of an agent with its files in a folder.
func configOf(dir, policy string) agent.Config {
	return agent.Config{
		Broker: broker.Config{Policy: policy, GPUs: []broker.GPU{{
			Name: "gpu0", UUID: [16]byte{1, 15: 2}, Device: share.Device{SMs: 80, ThreadsPerSM: 2048, Memory: 16 * gib},
		}}},
		Dir: filepath.Join(dir, "run"), State: filepath.Join(dir, "state.json"), Group: -1, Log: slog.New(slog.DiscardHandler),
	}
}

// start starts an agent. A folder that is not empty has the state of a former one.
func start(t testing.TB, dir, policy string, changes ...func(*agent.Config)) *machine {
	t.Helper()
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "share"); err != nil { // t.TempDir is too long for a socket
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
	}
	config := configOf(dir, policy)
	for _, change := range changes {
		change(&config)
	}
	a, err := agent.New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	m := &machine{t: t, dir: dir, agent: a, api: agent.NewClient(filepath.Join(dir, "run"))}
	stopped := false
	m.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			if err := <-done; err != nil {
				t.Errorf("the agent ended: %v", err)
			}
		}
	}
	t.Cleanup(m.stop)
	m.until("the agent serves", func() bool { _, err := m.api.GPUs(t.Context()); return err == nil })
	return m
}

// until waits for a state that another process makes.
func (m *machine) until(what string, ok func() bool) {
	m.t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			m.t.Fatalf("not within a minute: %s", what)
		}
	}
}

func (m *machine) create(p agent.Part) agent.Share {
	m.t.Helper()
	s, err := m.api.Create(m.t.Context(), p)
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

func (m *machine) shares() []agent.Share {
	m.t.Helper()
	s, err := m.api.Shares(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	return s
}

func (m *machine) used() int64 {
	m.t.Helper()
	var n int64
	for _, s := range m.shares() {
		n += s.Used
	}
	return n
}

// connect connects this process to a share.
func (m *machine) connect(s agent.Share) *client {
	m.t.Helper()
	c, err := dial(s.Socket)
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = c.socket.Close() })
	if got := c.greet(); got != "WELCOME" {
		m.t.Fatalf("answer to HELLO: %s", got)
	}
	return c
}

func (m *machine) ask(c *client, message wire.Message) wire.Message {
	m.t.Helper()
	if err := c.send(message); err != nil {
		m.t.Fatal(err)
	}
	answer, err := c.receive()
	if err != nil {
		m.t.Fatal(err)
	}
	return answer
}

// A share from its creation to its end: limits, page, resize, account.
func TestShare(t *testing.T) {
	m := start(t, "", "gemini")
	s := m.create(agent.Part{Memory: gib})
	if s.ID != "s-1" || s.State != "ready" || len(s.UUIDs) != 1 || s.UUIDs[0] != "GPU-01000000-0000-0000-0000-000000000002" {
		t.Errorf("share %+v", s)
	}
	c := m.connect(s)
	if p := c.state(t); p.Closed || len(p.GPUs) != 1 || p.GPUs[0].Limit != gib || p.GPUs[0].Gate != wire.Open || p.Agent == 0 {
		t.Errorf("page %+v", p)
	}
	if a := m.ask(c, wire.Message{Type: wire.Allocate, Bytes: gib + 1}); a.Type != wire.Refused || a.Bytes != gib {
		t.Errorf("answer %+v", a)
	}
	if a := m.ask(c, wire.Message{Type: wire.Allocate, Bytes: gib}); a.Type != wire.Granted || c.state(t).GPUs[0].Used != gib {
		t.Errorf("answer %+v, page %+v", a, c.state(t))
	}
	if _, err := m.api.Resize(t.Context(), s.ID, agent.Part{Memory: 2 * gib, Compute: new(int64(500_000))}); err != nil {
		t.Fatal(err)
	}
	if g := c.state(t).GPUs[0]; g.Limit != 2*gib || g.Compute != 500_000 || g.Gate != wire.Asked {
		t.Errorf("page %+v after the resize", g)
	}
	for i := range uint64(10) {
		if a := m.ask(c, wire.Message{Type: wire.Launch, ID: i}); a.Type != wire.Permit || a.ID != i {
			t.Fatalf("answer %+v", a)
		}
		if err := c.send(wire.Message{Type: wire.Done, ID: i}); err != nil {
			t.Fatal(err)
		}
	}
	got := m.shares()[0]
	if len(got.Processes) != 1 || got.Processes[0].PID != os.Getpid() || got.Processes[0].Memory != gib || got.Launches != 10 {
		t.Errorf("share %+v", got)
	}
	if err := m.api.End(t.Context(), s.ID, time.Hour); err != nil {
		t.Fatal(err)
	}
	if a, err := c.receive(); err != nil || a.Type != wire.End || !c.state(t).End {
		t.Errorf("message %+v, %v, page %+v", a, err, c.state(t))
	}
}

// The memory of a process comes back when it ends, whatever way, and not when it only
// closes its connection.
func TestProcesses(t *testing.T) {
	m := start(t, "", "gemini")
	s := m.create(agent.Part{Memory: gib})
	a, b := m.child(s), m.child(s)
	if got := a.allocate(gib / 2); got != "GRANTED" {
		t.Fatal(got)
	}
	if got := b.allocate(gib/2 + 1); got != "REFUSED" {
		t.Fatal(got)
	}
	if got := b.allocate(gib / 2); got != "GRANTED" {
		t.Fatal(got)
	}
	a.kill()
	m.until("the memory of a killed process is free", func() bool { return m.used() == gib/2 })
	c := m.connect(s)
	if x := m.ask(c, wire.Message{Type: wire.Allocate, Bytes: 100}); x.Type != wire.Granted {
		t.Fatalf("answer %+v", x)
	}
	_ = c.socket.Close()
	m.until("the connection is closed", func() bool {
		p := m.shares()[0].Processes
		return len(p) == 2 && !p[1].Connected
	})
	if got := m.used(); got != gib/2+100 {
		t.Errorf("%d bytes used after a connection was closed", got)
	}
	c = m.connect(s)
	if got := m.used(); got != gib/2+100 {
		t.Errorf("%d bytes used after a new connection", got)
	}
	if err := c.send(wire.Message{Type: wire.Free, Bytes: 100}); err != nil {
		t.Fatal(err)
	}
	m.until("the memory is freed", func() bool { return m.used() == gib/2 })
	// b does not end by itself.
	_ = c.socket.Close()
	if err := m.api.End(t.Context(), s.ID, 0); err != nil {
		t.Fatal(err)
	}
	m.until("the share has ended", func() bool { return len(m.shares()) == 0 })
	if err := b.cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the process ended with %v", err)
	}
	if _, err := os.Stat(filepath.Dir(filepath.Dir(s.Socket))); !os.IsNotExist(err) {
		t.Errorf("the folder of the share is left: %v", err)
	}
}

// A share with an owner ends with it.
func TestOwner(t *testing.T) {
	m := start(t, "", "gemini")
	s := m.create(agent.Part{Memory: gib, Owned: true})
	if s.Owner != os.Getpid() {
		t.Errorf("owner %d", s.Owner)
	}
	m.stop()
	next := start(t, m.dir, "gemini")
	if got := next.shares(); len(got) != 1 || got[0].Owner != os.Getpid() {
		t.Errorf("shares %+v", got)
	}
}

// A later agent takes the shares over: processes connect again and tell what they have.
func TestRestart(t *testing.T) {
	m := start(t, "", "gemini")
	s := m.create(agent.Part{ID: "web", Memory: gib, Compute: new(int64(300_000)), Offline: true})
	c := m.connect(s)
	if a := m.ask(c, wire.Message{Type: wire.Allocate, Bytes: gib}); a.Type != wire.Granted {
		t.Fatalf("answer %+v", a)
	}
	first := c.state(t).Agent
	if _, err := m.api.Resize(t.Context(), "web", agent.Part{Memory: gib / 2}); err != nil {
		t.Fatal(err)
	}
	m.stop()
	if _, err := c.receive(); err == nil {
		t.Error("the connection outlived the agent")
	}
	next := start(t, m.dir, "gemini")
	got := next.shares()
	if len(got) != 1 || got[0].ID != "web" || got[0].Class != "offline" || got[0].Compute != 300_000 || got[0].Memory != gib/2 {
		t.Fatalf("shares %+v", got)
	}
	c = next.connect(got[0])
	if c.state(t).Agent == first {
		t.Error("the number of the agent's start did not change")
	}
	if err := c.send(wire.Message{Type: wire.Holds, Bytes: gib}); err != nil {
		t.Fatal(err)
	}
	if a := next.ask(c, wire.Message{Type: wire.Allocate, Bytes: 1}); a.Type != wire.Refused {
		t.Errorf("answer %+v", a)
	}
	if used := next.used(); used != gib {
		t.Errorf("%d bytes used, want those from before the shrink", used)
	}
}

// An agent that ends while its processes are at work ends in order.
func TestEndUnderLoad(t *testing.T) {
	for range 20 {
		m := start(t, "", "gemini")
		s := m.create(agent.Part{Memory: gib, Compute: new(int64(500_000))})
		var clients sync.WaitGroup
		for range 8 {
			c := m.connect(s)
			clients.Go(func() {
				for {
					if c.send(wire.Message{Type: wire.Allocate, Bytes: 1}) != nil {
						return
					}
					if _, err := c.receive(); err != nil {
						return
					}
				}
			})
		}
		m.until("the processes are at work", func() bool { return m.used() > 100 })
		m.stop()
		clients.Wait()
	}
}

// A process in one share that breaks every rule disturbs no other.
func TestHostile(t *testing.T) {
	m := start(t, "", "gemini")
	bad, good := m.create(agent.Part{Memory: gib}), m.create(agent.Part{Memory: gib})
	c := m.connect(good)
	attack := func(name string, messages func(c *client)) {
		x := m.connect(bad)
		messages(x)
		if a := m.ask(c, wire.Message{Type: wire.Allocate, Bytes: 1}); a.Type != wire.Granted {
			t.Errorf("%s: answer %+v to another process", name, a)
		}
		// The agent closes it, if the attack did not.
		m.until(name+": the connection is closed", func() bool {
			return len(m.shares()[0].Processes) == 0
		})
	}
	attack("garbage", func(x *client) { _, _ = x.socket.Write([]byte("GET / HTTP/1.1\r\n\r\n")) })
	attack("long message", func(x *client) { _, _ = x.socket.Write(make([]byte, 4096)) })
	attack("launches without waiting", func(x *client) {
		for i := range uint64(10_000) {
			if x.send(wire.Message{Type: wire.Launch, ID: i}) != nil {
				break
			}
		}
	})
	attack("no reads", func(x *client) {
		for x.send(wire.Message{Type: wire.Allocate, Bytes: wire.MaxBytes}) == nil {
		}
	})
	attack("frees", func(x *client) {
		for range 1000 {
			_ = x.send(wire.Message{Type: wire.Free, Bytes: 1 << 40})
		}
		_ = x.socket.Close()
	})
	for range 1000 { // HELLO floods
		x, err := dial(bad.Socket)
		if err != nil {
			t.Fatal(err)
		}
		_ = x.send(wire.Message{Type: wire.Hello, ID: wire.Version})
		_ = x.send(wire.Message{Type: wire.Hello, ID: wire.Version})
		_ = x.socket.Close()
	}
	m.until("all connections are closed", func() bool { return len(m.shares()[0].Processes) == 0 })
	if got := m.shares(); got[0].Used != 0 || len(got[1].Processes) != 1 {
		t.Errorf("shares %+v", got)
	}
}

// A process sends descriptors whose close waits, and ends its connection before the agent has
// received them. The agent does not wait: it serves other shares, and ends.
func TestDescriptors(t *testing.T) {
	m := start(t, "", "gemini")
	bad, good := m.create(agent.Part{Memory: gib}), m.create(agent.Part{Memory: gib})
	c := m.connect(good)
	for _, messages := range [][]wire.Message{
		{{Type: wire.Free, Bytes: 1}, {Type: wire.Free, Bytes: 1}},
		{{}, {Type: wire.Free, Bytes: 1}}, // an empty packet is the end
	} {
		raw, err := m.connect(bad).socket.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		lingering := []int{rightstest.Lingering(t), rightstest.Lingering(t)}
		err = raw.Control(func(fd uintptr) {
			for i, message := range messages {
				if message.Type == 0 {
					_ = unix.Send(int(fd), nil, 0)
					continue
				}
				_ = unix.Sendmsg(int(fd), message.Append(nil), unix.UnixRights(lingering[i]), nil, unix.MSG_NOSIGNAL)
			}
		})
		for _, fd := range lingering {
			go unix.Close(fd) // may be the last reference, if the agent was faster
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	rightstest.AtOnce(t, "the agent", func() {
		if a := m.ask(c, wire.Message{Type: wire.Allocate, Bytes: 1}); a.Type != wire.Granted {
			t.Errorf("answer %+v to another process", a)
		}
		m.stop()
	})
}

// Requests that do not fit are refused with a reason.
func TestControl(t *testing.T) {
	m := start(t, "", "gemini")
	for _, p := range []agent.Part{{}, {Memory: 17 * gib}, {Memory: 1, GPUs: []string{"none"}}, {Memory: 1, ID: "../x"}, {Memory: 1, Compute: new(int64(2_000_000))}} {
		if _, err := m.api.Create(t.Context(), p); err == nil {
			t.Errorf("created %+v", p)
		}
	}
	if err := m.api.End(t.Context(), "none", 0); err == nil || !strings.Contains(err.Error(), `no share "none"`) {
		t.Errorf("error %v", err)
	}
	if _, err := m.api.Resize(t.Context(), "none", agent.Part{}); err == nil {
		t.Error("resized a share that is not there")
	}
	s := m.create(agent.Part{Memory: gib, ID: "a"})
	if _, err := m.api.Create(t.Context(), agent.Part{Memory: gib, ID: "a"}); err == nil {
		t.Error("created a share twice")
	}
	if err := m.api.Hold(t.Context(), "a", true); err != nil || m.shares()[0].State != "held" {
		t.Errorf("hold: %v, %v", err, m.shares()[0].State)
	}
	if err := m.api.Hold(t.Context(), "a", false); err != nil || m.shares()[0].State != "ready" {
		t.Errorf("resume: %v, %v", err, m.shares()[0].State)
	}
	g, err := m.api.GPUs(t.Context())
	if err != nil || len(g) != 1 || g[0].Free != 15*gib {
		t.Errorf("GPUs %+v, %v", g, err)
	}
	if i, err := os.Stat(filepath.Dir(filepath.Dir(s.Socket))); err != nil || i.Mode().Perm() != 0o700 {
		t.Errorf("folder of the share: %v, %v", i, err)
	}
	if i, err := os.Stat(filepath.Join(m.dir, "run", agent.ControlName)); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("control socket: %v, %v", i, err)
	}
	if _, err := agent.NewClient(m.dir).Shares(t.Context()); err == nil || !strings.Contains(err.Error(), "no sharing agent") {
		t.Errorf("error %v", err)
	}
}
