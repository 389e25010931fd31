//go:build linux

package agent_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/share"
)

// A share cannot have the name of a file that the agent needs: its folder would take the
// place of the lock that keeps a second agent out.
func TestShareNamedAsTheLock(t *testing.T) {
	m := start(t, "", "gemini")
	if _, err := m.api.Create(t.Context(), agent.Part{ID: "lock", Memory: gib}); err == nil {
		t.Error("there is a share \"lock\"")
	}
	m.create(agent.Part{ID: "other", Memory: gib}) // after it the agent has removed what it removes
	info, err := os.Lstat(filepath.Join(m.dir, "run", "lock"))
	if err != nil || !info.Mode().IsRegular() || info.Mode().Perm() != 0o600 {
		t.Fatalf("the lock is %v, %v", info, err)
	}
	second, err := agent.New(agent.Config{
		Broker: broker.Config{Policy: "gemini", GPUs: []broker.GPU{{Name: "gpu0", Device: share.Device{SMs: 80, ThreadsPerSM: 2048, Memory: gib}}}},
		Dir:    filepath.Join(m.dir, "run"), Group: -1, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("used by another process, %d: a directory is for one agent", os.Getpid())) {
		t.Errorf("a second agent in the folder: %v", err)
	}
}

// A share whose socket cannot be opened leaves nothing: the next one of its name is served,
// and its memory is free when it ends.
func TestShareWithoutASocket(t *testing.T) {
	m := start(t, "", "gemini")
	folder := filepath.Join(m.dir, "run", "web")
	if err := errors.Join(os.Mkdir(folder, 0o700), os.WriteFile(filepath.Join(folder, "client"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := m.api.Create(t.Context(), agent.Part{ID: "web", Memory: gib}); err == nil {
		t.Fatal("a share is made in a folder with a file in the place of the socket's")
	}
	s := m.create(agent.Part{ID: "web", Memory: gib})
	if shares, err := m.api.Shares(t.Context()); err != nil || len(shares) != 1 {
		t.Errorf("shares %+v, %v, want %s", shares, err, s.ID)
	}
	if _, err := os.Stat(s.Socket); err != nil {
		t.Error(err)
	}
	if err := m.api.End(t.Context(), "web", 0); err != nil {
		t.Error(err)
	}
	if gpus, err := m.api.GPUs(t.Context()); err != nil || gpus[0].Free != gpus[0].Memory {
		t.Errorf("GPUs %+v, %v, want all memory free", gpus, err)
	}
}

// A share grows when the state file has its room: an agent that was killed would leave the
// next one with a smaller share than the programs know, and give their memory out again.
func TestGrowthIsWrittenFirst(t *testing.T) {
	var folder string
	m := start(t, "", "gemini", func(c *agent.Config) {
		folder = filepath.Join(filepath.Dir(c.State), "state")
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		c.State = filepath.Join(folder, "state.json")
	})
	m.create(agent.Part{ID: "web", Memory: 4 * gib})
	if err := os.Rename(folder, folder+".away"); err != nil {
		t.Fatal(err)
	}
	check := func(when string, want int64) {
		t.Helper()
		shares, err := m.api.Shares(t.Context())
		if err != nil || len(shares) != 1 || shares[0].Memory != want {
			t.Errorf("%s: shares %+v, %v, want one of %d bytes", when, shares, err, want)
		}
		if gpus, err := m.api.GPUs(t.Context()); err != nil || gpus[0].Free != gpus[0].Memory-want {
			t.Errorf("%s: GPUs %+v, %v, want all but %d bytes free", when, gpus, err, want)
		}
	}
	if _, err := m.api.Resize(t.Context(), "web", agent.Part{Memory: 8 * gib}); err == nil || !strings.Contains(err.Error(), "is not resized, because the state is not written") {
		t.Errorf("it grows without a state file: %v", err)
	}
	check("a growth that was not written", 4*gib)
	if err := os.Rename(folder+".away", folder); err != nil {
		t.Fatal(err)
	}
	if _, err := m.api.Resize(t.Context(), "web", agent.Part{Memory: 17 * gib}); err == nil {
		t.Error("it grows beyond its GPU")
	}
	check("a growth without room", 4*gib)
	if _, err := m.api.Resize(t.Context(), "web", agent.Part{Memory: 8 * gib}); err != nil {
		t.Error(err)
	}
	check("a growth", 8*gib)
	if _, err := m.api.Resize(t.Context(), "web", agent.Part{Memory: gib}); err != nil {
		t.Error(err)
	}
	check("less", gib)
}

// A share that is held stays held when another agent takes it over.
func TestHeldShareOfAFormerAgent(t *testing.T) {
	m := start(t, "", "gemini")
	m.create(agent.Part{ID: "held", Memory: gib})
	m.create(agent.Part{ID: "resumed", Memory: gib})
	for _, id := range []string{"held", "resumed"} {
		if err := m.api.Hold(t.Context(), id, true); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.api.Hold(t.Context(), "resumed", false); err != nil {
		t.Fatal(err)
	}
	m.stop()
	m = start(t, m.dir, "gemini")
	shares, err := m.api.Shares(t.Context())
	if err != nil || len(shares) != 2 || shares[0].State != "held" || shares[1].State != "ready" {
		t.Errorf("shares %+v, %v", shares, err)
	}
}

// lines counts the lines of a log that have a text.
type lines struct {
	text  string
	count atomic.Int64
}

func (l *lines) Write(p []byte) (int, error) {
	if strings.Contains(string(p), l.text) {
		l.count.Add(1)
	}
	return len(p), nil
}

// A state that could not be written is written as soon as that is possible: an agent that is killed
// later would bring a share back that has ended.
func TestStateIsWrittenLater(t *testing.T) {
	var folder string
	failures := lines{text: "is tried again"}
	m := start(t, "", "gemini", func(c *agent.Config) {
		folder = filepath.Join(filepath.Dir(c.State), "state")
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		c.Log = slog.New(slog.NewTextHandler(&failures, nil))
		c.State, c.Retry = filepath.Join(folder, "state.json"), time.Millisecond
	})
	m.create(agent.Part{ID: "web", Memory: gib})
	m.create(agent.Part{ID: "held", Memory: gib})
	if err := os.Rename(folder, folder+".away"); err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{m.api.End(t.Context(), "web", 0), m.api.Hold(t.Context(), "held", true)} {
		if err == nil || !strings.Contains(err.Error(), "the agent tries again") {
			t.Errorf("error %v", err)
		}
	}
	// The end, its removal and the hold ask for three attempts at most: a fourth is one that nothing asks for.
	m.until("the agent tries again", func() bool { return failures.count.Load() > 3 })
	if err := os.Rename(folder+".away", folder); err != nil {
		t.Fatal(err)
	}
	m.until("the state is written", func() bool {
		text, err := os.ReadFile(filepath.Join(folder, "state.json"))
		return err == nil && !strings.Contains(string(text), `"web"`) && strings.Contains(string(text), `"held": true`)
	})
}
