//go:build linux

package hook

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/share"
)

// served is the agent of this project with the fake GPU.
type served struct {
	t     testing.TB
	api   *agent.Client
	agent *agent.Agent
	stop  func()
}

// fakeGPUs are GPUs as the fake driver has them.
func fakeGPUs(n int) (out []broker.GPU) {
	for i := range n {
		g := broker.GPU{Name: fmt.Sprintf("fake%d", i), Device: share.Device{SMs: 80, ThreadsPerSM: 2048, Memory: 1 << 30}}
		for at := range g.UUID {
			g.UUID[at] = 0xa0 + byte(i)
		}
		out = append(out, g)
	}
	return out
}

func serveShares(t testing.TB, policy string) *served {
	return serveWith(t, agent.Config{
		Broker: broker.Config{Policy: policy, GPUs: []broker.GPU{{Name: "fake", Device: share.Device{SMs: 80, ThreadsPerSM: 2048, Memory: 1 << 30}}}},
	})
}

// serveWith serves until the test ends, or stop is called. A configuration with a folder has
// the state of a former agent.
func serveWith(t testing.TB, config agent.Config) *served {
	t.Helper()
	config.Group, config.Log = -1, slog.New(slog.DiscardHandler)
	if config.Dir == "" {
		config.Dir = shareDir(t)
	}
	a, err := agent.New(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	stop := sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the agent ended: %v", err)
		}
	})
	t.Cleanup(stop)
	s := &served{t: t, api: agent.NewClient(config.Dir), agent: a, stop: stop}
	s.until("the agent serves", func() bool { _, err := s.api.GPUs(t.Context()); return err == nil })
	return s
}

// shareDir returns a folder for the sockets of shares.
func shareDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "share") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func (s *served) until(what string, ok func() bool) {
	s.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(2 * time.Minute)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			s.t.Fatalf("not within two minutes: %s", what)
		}
	}
}

func (s *served) share(id string) agent.Share {
	s.t.Helper()
	list, err := s.api.Shares(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, x := range list {
		if x.ID == id {
			return x
		}
	}
	s.t.Fatalf("no share %s", id)
	return agent.Share{}
}

// The library and the agent of this project: processes of two shares take memory at
// once, up to their limits to the byte, launch in turns, and are killed. Nothing is left.
func TestServedShares(t *testing.T) {
	const limit, processes = 40_000, 3
	s := serveShares(t, "timeslice")
	x := newSharing(t, 0)
	var all []*sharer
	for i, name := range []string{"a", "b"} {
		made, err := s.api.Create(t.Context(), agent.Part{ID: name, Memory: limit, Compute: new(int64(300_000 + 200_000*i))})
		if err != nil {
			t.Fatal(err)
		}
		x.env = []string{"DXPU_SHARE=" + made.Socket}
		for range processes {
			p := x.start(t)
			p.do(success, "init")
			all = append(all, p)
		}
	}
	const takes, bytes = 30, 1000 // of each process: more than twice the limit together
	for _, p := range all {
		for slot := range takes {
			p.send("take cuMemAlloc_v2 %d %d", bytes, slot)
		}
	}
	granted, refused := 0, 0
	for _, p := range all {
		for range takes {
			switch r, _, _ := p.answer(); r {
			case success:
				granted++
			case outOfMemory:
				refused++
			default:
				t.Fatalf("take: result %d", r)
			}
		}
	}
	if used := x.gpuWord(t, gpuInUse); granted*bytes != 2*limit || used != 2*limit {
		t.Errorf("%d allocations were granted, %d bytes are in use, want the limits of %d exactly", granted, used, 2*limit)
	}
	if refused == 0 {
		t.Error("no allocation was refused: the test does not reach the limit")
	}
	if peak := x.gpuWord(t, gpuPeak); peak > 2*limit {
		t.Errorf("%d bytes were in use at once, above the limits of %d", peak, 2*limit)
	}
	for _, p := range all {
		for range 5 {
			p.do(success, "launch cuLaunchKernel")
		}
		p.do(success, "sync")
	}
	s.until("the launches are counted", func() bool { return s.share("a").Launches >= 5*processes && s.share("b").Launches >= 5*processes })
	if used := s.share("a").Used; used != limit {
		t.Errorf("%d bytes used, want %d", used, limit)
	}
	for _, p := range all {
		_ = p.cmd.Process.Kill()
		_ = p.cmd.Wait()
	}
	for _, name := range []string{"a", "b"} {
		s.until(fmt.Sprintf("nothing is left of share %s", name), func() bool {
			got := s.share(name)
			return got.Used == 0 && len(got.Processes) == 0
		})
	}
	if _, err := os.Stat(filepath.Dir(s.share("a").Socket)); err != nil {
		t.Error(err)
	}
}

// A share that is resized, held and ended takes its programs along.
func TestServedShareChanges(t *testing.T) {
	s := serveShares(t, "timeslice")
	x := newSharing(t, 0)
	made, err := s.api.Create(t.Context(), agent.Part{ID: "a", Memory: 1000, Compute: new(int64(500_000))})
	if err != nil {
		t.Fatal(err)
	}
	x.env = []string{"DXPU_SHARE=" + made.Socket}
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "take cuMemAlloc_v2 1000 0")
	p.do(outOfMemory, "take cuMemAlloc_v2 1 1")
	if _, err := s.api.Resize(t.Context(), "a", agent.Part{Memory: 2000}); err != nil {
		t.Fatal(err)
	}
	p.do(success, "take cuMemAlloc_v2 1000 1")
	if free, total := p.do(success, "info"); free != 0 || total != 2000 {
		t.Errorf("%d of %d bytes free", free, total)
	}
	if err := s.api.Hold(t.Context(), "a", true); err != nil {
		t.Fatal(err)
	}
	p.send("launch cuLaunchKernel")
	s.until("the launch waits", func() bool { return s.share("a").Processes[0].Waiting == 1 })
	if n := x.gpuWord(t, gpuLaunches); n != 0 {
		t.Errorf("%d launches of a held share", n)
	}
	if err := s.api.Hold(t.Context(), "a", false); err != nil {
		t.Fatal(err)
	}
	if r, _, _ := p.answer(); r != success {
		t.Errorf("launch: result %d", r)
	}
	p.do(success, "sync")
	if err := s.api.End(t.Context(), "a", 2*time.Second); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err == nil {
		t.Error("the program ended by itself")
	}
	s.until("the share has ended", func() bool {
		list, err := s.api.Shares(t.Context())
		return err == nil && len(list) == 0
	})
}

// A program that replaces itself by another one (execve) has a new account: the driver has
// freed its memory.
func TestServedExec(t *testing.T) {
	const limit = 1000
	s := serveShares(t, "timeslice")
	x := newSharing(t, 0)
	made, err := s.api.Create(t.Context(), agent.Part{ID: "a", Memory: limit})
	if err != nil {
		t.Fatal(err)
	}
	x.env = []string{"DXPU_SHARE=" + made.Socket}
	p := x.start(t)
	p.do(success, "init")
	p.do(success, "take cuMemAlloc_v2 900 0")
	p.do(success, "exec") // twice: by a shell, which answers
	p.do(success, "init")
	p.do(success, "take cuMemAlloc_v2 1000 0")
	p.do(outOfMemory, "take cuMemAlloc_v2 1 1")
	if got := s.share("a"); got.Used != limit || len(got.Processes) != 1 {
		t.Errorf("%d bytes used by %d processes, want %d by 1", got.Used, len(got.Processes), limit)
	}
	p.end()
	s.until("nothing is left", func() bool { return s.share("a").Used == 0 })
}

// Beside another share, launches by credit reach the account: their number and their time.
func TestServedCredit(t *testing.T) {
	s := serveShares(t, "reef")
	x := newSharing(t, 0)
	var all []*sharer
	for i, name := range []string{"online", "offline"} {
		made, err := s.api.Create(t.Context(), agent.Part{ID: name, Memory: 1000, Offline: i > 0})
		if err != nil {
			t.Fatal(err)
		}
		x.env = []string{"DXPU_SHARE=" + made.Socket}
		p := x.start(t)
		p.do(success, "init")
		all = append(all, p)
	}
	const launches = 50
	for range launches {
		for _, p := range all {
			p.do(success, "launch cuLaunchKernel 0 1") // of one millisecond
			p.do(success, "sync")
		}
	}
	for _, name := range []string{"online", "offline"} {
		s.until("the launches of the "+name+" share are counted", func() bool { return s.share(name).Launches == launches })
		// A launch that was told late may have waited in the account, and no time is made up.
		if got := s.share(name).GPUTime; got < 0.9*launches/1000 || got > 2*launches/1000.0 {
			t.Errorf("%s: %v s of the GPU, want %v s", name, got, launches/1000.0)
		}
		if p := s.share(name).Processes[0]; p.Wrong != 0 {
			t.Errorf("%s: %d messages did not fit", name, p.Wrong)
		}
	}
	for _, p := range all {
		p.end()
	}
}
