package agent_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/dirlock"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
)

// output is what a log has written.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(b)
}

func (o *output) count(text string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Count(o.text.String(), text)
}

// A state directory has one process. The next one gets it when the first has ended.
func TestStateDirectoryHasOneProcess(t *testing.T) {
	cfg := agent.Config{Manager: "http://127.0.0.1:1", Kind: dxpuv1.NodeKind_NODE_KIND_BOX, Name: "b1", StateDir: t.TempDir(), JoinToken: token}
	for range 2 {
		a, err := agent.New(cfg, &proxy{})
		if err != nil {
			t.Fatal(err)
		}
		var held *dirlock.HeldError
		if _, err := agent.New(cfg, &proxy{}); !errors.As(err, &held) || held.PID != os.Getpid() {
			t.Errorf("the second process: %v", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := a.Run(ctx); err != nil {
			t.Error(err)
		}
	}
}

// A manager that keeps its data in the same directory does not keep the node out.
func TestStateDirectoryOfAManager(t *testing.T) {
	dir := t.TempDir()
	data, err := dirlock.Lock(dir, "lock")
	if err != nil {
		t.Fatal(err)
	}
	a, err := agent.New(agent.Config{Manager: "http://127.0.0.1:1", Kind: dxpuv1.NodeKind_NODE_KIND_BOX, Name: "b1", StateDir: dir, JoinToken: token}, &proxy{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := errors.Join(a.Run(ctx), data.Close()); err != nil {
		t.Error(err)
	}
}

// A box that cannot write its state directory, as on a full disk, goes on with the GPUs that
// it has. A change of the manager waits until it can.
func TestStateDirectoryFull(t *testing.T) {
	p := newPool(t)
	p.start("h1", t.TempDir(), &proxy{})
	dir := t.TempDir()
	box, log := &proxy{box: true}, &output{}
	a, err := agent.New(agent.Config{
		Manager: p.url, JoinToken: token, Kind: dxpuv1.NodeKind_NODE_KIND_BOX, Name: "b1", StateDir: dir,
		Log: slog.New(slog.NewTextHandler(log, nil)),
	}, box)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	running := func() {
		select {
		case err := <-ended:
			t.Fatalf("Run: %v", errors.Join(err, errors.New("it ended")))
		default:
		}
	}
	p.arrive(&manager.MemoryStore{})
	eventually(t, "the box is connected", func() bool { running(); return a.Connected() })

	// A full directory in the file's place cannot be replaced, by root neither.
	desired := filepath.Join(dir, "desired.pb")
	if err := os.RemoveAll(desired); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(desired, "x"), 0o700); err != nil {
		t.Fatal(err)
	}
	id := p.create(t)
	const cannot = "the state directory cannot be written"
	eventually(t, "the log says so", func() bool { running(); return log.count(cannot) == 1 })
	if n := box.bindings(); n != 0 {
		t.Errorf("%d bindings that are not on disk", n)
	}
	if err := os.RemoveAll(desired); err != nil {
		t.Fatal(err)
	}
	p.active(t, id)
	running()
	if n, m := log.count(cannot), log.count("can be written again"); n != 1 || m != 1 {
		t.Errorf("the log says %d times that the directory cannot be written, %d times that it can, want 1 each", n, m)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A node that cannot save its new identity has a connection to the manager, and does not say
// that it has none.
func TestStateDirectoryFullAtEnrolment(t *testing.T) {
	p := newPool(t)
	dir, log := t.TempDir(), &output{}
	a, err := agent.New(agent.Config{
		Manager: p.url, JoinToken: token, Kind: dxpuv1.NodeKind_NODE_KIND_BOX, Name: "b1", StateDir: dir,
		Log: slog.New(slog.NewTextHandler(log, nil)),
	}, &proxy{box: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	p.arrive(&manager.MemoryStore{})
	eventually(t, "the box is connected", a.Connected)
	p.leave()

	// A full directory in the file's place cannot be replaced, by root neither.
	identity := filepath.Join(dir, "node.json")
	if err := errors.Join(os.Remove(identity), os.MkdirAll(filepath.Join(identity, "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	tries := p.enrols.Load() + 3
	p.arrive(&manager.MemoryStore{}) // it does not know the box
	eventually(t, "the box tries again and again", func() bool { return p.enrols.Load() >= tries })
	if n := log.count("the state directory cannot be written"); n != 1 {
		t.Errorf("the log says %d times that the directory cannot be written, want 1", n)
	}
	if n := log.count(`"no connection to the manager" err="agent: --state-dir`); n > 0 {
		t.Errorf("the log says %d times that there is no connection", n)
	}
	if err := os.RemoveAll(identity); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the box is connected again", a.Connected)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
