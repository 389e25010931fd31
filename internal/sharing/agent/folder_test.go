//go:build linux

package agent_test

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/share"
)

// The user of a share owns its folder, and may put anything there between two agents. The
// next one neither follows it nor lets the other shares suffer.
func TestFolderOfAHostileUser(t *testing.T) {
	for name, exchange := range map[string]func(t *testing.T, client, victim string){
		"a link": func(t *testing.T, client, victim string) {
			if err := os.Symlink(victim, client); err != nil {
				t.Fatal(err)
			}
		},
		"a folder of its own": func(t *testing.T, client, _ string) {
			if os.Geteuid() != 0 {
				t.Skip("only root can give a folder to another user")
			}
			if err := errors.Join(os.Mkdir(client, 0o755), os.Chown(client, 1, 1)); err != nil {
				t.Fatal(err)
			}
		},
		"a file": func(t *testing.T, client, _ string) {
			if err := os.WriteFile(client, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := start(t, "", "gemini")
			for _, id := range []string{"bad", "good"} {
				if _, err := m.api.Create(t.Context(), agent.Part{ID: id, Memory: gib}); err != nil {
					t.Fatal(err)
				}
			}
			m.stop()
			run, victim := filepath.Join(m.dir, "run"), filepath.Join(m.dir, "victim")
			client := filepath.Join(run, "bad", "client")
			if err := errors.Join(os.Mkdir(victim, 0o700), os.Rename(client, filepath.Join(run, "bad", "old"))); err != nil {
				t.Fatal(err)
			}
			exchange(t, client, victim)
			m = start(t, m.dir, "gemini")
			shares, err := m.api.Shares(t.Context())
			if err != nil || len(shares) != 1 || shares[0].ID != "good" {
				t.Errorf("shares %+v, %v", shares, err)
			}
			if info, err := os.Stat(victim); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("a folder that is not the agent's: %v, %v", info.Mode(), err)
			}
			if entries, err := os.ReadDir(victim); err != nil || len(entries) > 0 {
				t.Errorf("a folder that is not the agent's has %v, %v", entries, err)
			}
			// The name can be used again.
			if _, err := m.api.Create(t.Context(), agent.Part{ID: "bad", Memory: gib}); err != nil {
				t.Error(err)
			}
		})
	}
}

// An agent removes the folders of shares that have ended, and no others.
func TestFoldersOfOthers(t *testing.T) {
	m := start(t, "", "gemini")
	m.stop()
	run := filepath.Join(m.dir, "run")
	if err := errors.Join(os.MkdirAll(filepath.Join(run, "precious"), 0o700), os.MkdirAll(filepath.Join(run, "ended", "client"), 0o700)); err != nil {
		t.Fatal(err)
	}
	start(t, m.dir, "gemini")
	if _, err := os.Stat(filepath.Join(run, "precious")); err != nil {
		t.Error(err)
	}
	m.until("the folder of a share is removed", func() bool {
		_, err := os.Stat(filepath.Join(run, "ended"))
		return errors.Is(err, fs.ErrNotExist)
	})
}

// A share that the next agent would not know is not made.
func TestStateIsNotWritten(t *testing.T) {
	m := start(t, "", "gemini")
	state := filepath.Join(m.dir, "state.json")
	m.until("a directory is in the file's place", func() bool { // the agent may write the file meanwhile
		_ = os.Remove(state)
		return os.Mkdir(state, 0o700) == nil
	})
	_, err := m.api.Create(t.Context(), agent.Part{ID: "a", Memory: gib})
	if err == nil || !strings.Contains(err.Error(), "the share is not made") {
		t.Errorf("error %v", err)
	}
	if shares, err := m.api.Shares(t.Context()); err != nil || len(shares) != 0 {
		t.Errorf("shares %+v, %v", shares, err)
	}
	if err := os.Remove(state); err != nil {
		t.Fatal(err)
	}
	if _, err := m.api.Create(t.Context(), agent.Part{ID: "s-1", Memory: gib}); err != nil {
		t.Error(err)
	}
	s, err := m.api.Create(t.Context(), agent.Part{Memory: gib})
	if err != nil || s.ID == "s-1" {
		t.Errorf("share %+v, %v", s, err)
	}
}

// A folder that others may write to is refused: they could exchange the shares' folders.
func TestOpenFolder(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	a, err := agent.New(agent.Config{
		Broker: broker.Config{Policy: "gemini", GPUs: []broker.GPU{{Name: "gpu0", Device: share.Device{SMs: 80, ThreadsPerSM: 2048, Memory: gib}}}},
		Dir:    dir, Group: -1, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "other users may write") {
		t.Errorf("error %v", err)
	}
}
