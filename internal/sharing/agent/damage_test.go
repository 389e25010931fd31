//go:build linux

package agent

import (
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/offer"
	"github.com/dxpu-project/dxpu/share"
)

// damaged is an agent with a state file of two shares, in a folder of its own.
func damaged(t *testing.T, root string) (Config, []byte) {
	t.Helper()
	c := Config{
		Dir: filepath.Join(root, "dir"), State: filepath.Join(root, "state.json"), Group: -1, Log: slog.New(slog.DiscardHandler),
		Broker: broker.Config{Policy: "gemini", GPUs: []broker.GPU{
			{Name: "one", Device: share.Device{Memory: 1000, SMs: 10, ThreadsPerSM: 2048}},
			{Name: "two", Device: share.Device{Memory: 1000, SMs: 10, ThreadsPerSM: 2048}},
		}},
	}
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(c.Dir, 0o711); err != nil {
		t.Fatal(err)
	}
	lease := &offer.Lease{Binding: offer.Binding{Pool: "p", ID: "b", Epoch: 3}, Lease: "l", BoxSlot: 16, HostSlot: 1}
	for _, r := range []Record{
		{ID: "web", Parts: []RecordPart{{GPU: "one", Compute: 400_000, Limit: 500_000, Memory: 600}}, UID: os.Getuid(), GID: os.Getgid(), Held: true},
		{ID: "pair", Offline: true, Parts: []RecordPart{{GPU: "two", Compute: 300_000, Limit: 300_000, Memory: 300, Lease: lease}, {GPU: "one", Compute: 100_000, Memory: 300, Limit: 100_000, Lease: lease}}, UID: os.Getuid(), GID: os.Getgid()},
	} {
		a.mu.Lock()
		err := a.openLocked(&r, false)
		a.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := a.store(); err != nil {
		t.Fatal(err)
	}
	a.close()
	text, err := os.ReadFile(c.State)
	if err != nil {
		t.Fatal(err)
	}
	return c, text
}

// tree lists the files below a folder.
func tree(t *testing.T, root string) string {
	t.Helper()
	var out []string
	if err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		out = append(out, strings.TrimPrefix(path, root))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return strings.Join(out, "\n")
}

// A state file that is damaged at a byte, or cut there, is refused, or gives shares within
// what the GPUs have, in the agent's folder.
func TestDamagedState(t *testing.T) {
	root, err := os.MkdirTemp("", "dxs") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	c, whole := damaged(t, root)
	outside := strings.Split(tree(t, root), "\n/dir")[0]
	for at := 0; at <= len(whole); at += 5 {
		for _, with := range []string{"", "cut", "9", "/", "\""} {
			text := string(whole[:at])
			switch {
			case with == "" && at < len(whole):
				text += string(whole[at+1:])
			case with != "" && with != "cut" && at < len(whole):
				text += with + string(whole[at+1:])
			}
			if err := os.WriteFile(c.State, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			testDamage(t, c, text)
			if got := strings.Split(tree(t, root), "\n/dir")[0]; got != outside || t.Failed() {
				t.Fatalf("byte %d, %q: files %q\n%s", at, with, got, text)
			}
		}
	}
}

func testDamage(t *testing.T, c Config, text string) {
	t.Helper()
	a, err := New(c)
	if err == nil {
		err = a.restore()
		defer a.close()
	}
	if err != nil {
		if !strings.Contains(err.Error(), c.State) {
			t.Errorf("%v", err)
		}
		return
	}
	for i, g := range c.Broker.GPUs {
		var memory int64
		for _, s := range a.Shares() {
			for _, p := range s.Parts {
				if p.GPU == g.Name {
					memory += p.Memory
				}
			}
		}
		if left, compute := a.broker.Left(i); memory+left > g.Device.Memory || left < 0 || compute < 0 {
			t.Errorf("GPU %d has %d bytes given out, %d left, %d ppm: %s", i, memory, left, compute, text)
		}
	}
	a.clean()
}
