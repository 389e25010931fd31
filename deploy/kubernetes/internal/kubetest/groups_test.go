package kubetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestRemoveStale: groups of processes that live, and those of others, stay.
func TestRemoveStale(t *testing.T) {
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	stale, live, other := groupName(ended.Process.Pid, "dk1-kubelet-1"), groupName(os.Getpid(), "dk2-kubelet-1"), "docker"
	for _, name := range []string{stale + "/pods/one", live + "/pods", other} {
		if err := os.MkdirAll(filepath.Join(root, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	removeStale(root)
	for name, want := range map[string]bool{stale: false, live: true, other: true} {
		if _, err := os.Stat(filepath.Join(root, name)); (err == nil) != want {
			t.Errorf("%s: %v, want it to stay: %v", name, err, want)
		}
	}
}
