//go:build linux

package agent

import (
	"os"
	"path/filepath"
	"testing"
)

// The freezers of both versions of cgroups are seen, wherever version 2 is mounted.
func TestFrozen(t *testing.T) {
	for _, tt := range []struct {
		name, cgroups, file, text string
		want                      bool
	}{
		{"version 2", "0::/a/b\n", "a/b/cgroup.events", "populated 1\nfrozen 1\n", true},
		{"version 2, runs", "0::/a/b\n", "a/b/cgroup.events", "populated 1\nfrozen 0\n", false},
		{"version 2, the first word", "0::/a\n", "a/cgroup.events", "frozen 1\npopulated 1\n", true},
		{"version 2 beside 1", "6:freezer:/\n0::/a\n", "unified/a/cgroup.events", "populated 1\nfrozen 1\n", true},
		{"version 1", "7:pids:/x\n6:freezer:/a:b\n0::/\n", "freezer/a:b/freezer.state", "FROZEN\n", true},
		{"version 1, runs", "6:freezer:/a\n", "freezer/a/freezer.state", "THAWED\n", false},
		{"version 1, not yet", "6:freezer:/a\n", "freezer/a/freezer.state", "FREEZING\n", false},
		{"another controller", "6:pids:/a\n", "freezer/a/freezer.state", "FROZEN\n", false},
		{"another namespace", "0::/../a\n", "a/cgroup.events", "frozen 1\n", false},
		{"no such cgroup", "0::/a (deleted)\n", "a/cgroup.events", "frozen 1\n", false},
		{"no cgroups", "garbage\n\n:\n", "cgroup.events", "frozen 1\n", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			for path, text := range map[string]string{"proc/7/cgroup": tt.cgroups, "sys/fs/cgroup/" + tt.file: tt.text} {
				path = filepath.Join(root, path)
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if got := isFrozen(root, 7); got != tt.want {
				t.Errorf("frozen: %v, want %v", got, tt.want)
			}
		})
	}
	if isFrozen(t.TempDir(), 7) {
		t.Error("a process that has ended is frozen")
	}
}
