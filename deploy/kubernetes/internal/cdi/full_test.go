package cdi

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestFull: on a full file system a claim is not prepared, says why, and leaves nothing. The earlier specification
// of a claim stays whole.
func TestFull(t *testing.T) {
	dir := Dir(t.TempDir())
	switch err := syscall.Mount("tmpfs", string(dir), "tmpfs", 0, "size=16k"); {
	case errors.Is(err, syscall.EPERM):
		t.Skipf("only root, as in make kube-test, can mount a small file system: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(string(dir), 0); err != nil {
			t.Error(err)
		}
	})
	owner := Owner{"lab", "c", "u1"}
	small := []Device{{Name: "u1-b1-0", Edits: Edits{Env: []string{"A=1"}}}}
	if err := dir.Write(owner, small); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(dir.path("u1"))
	if err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(string(dir), "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the file system is not full: %v", err)
	}
	large := []Device{{Name: "u1-b1-0", Edits: Edits{Env: []string{"A=" + strings.Repeat("2", 8<<10)}}}}
	for _, claim := range []Owner{owner, {"lab", "d", "u2"}} {
		if err := dir.Write(claim, large); !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), claim.UID) {
			t.Errorf("claim %s: %v, want no space", claim, err)
		}
	}
	if after, err := os.ReadFile(dir.path("u1")); err != nil || string(after) != string(before) {
		t.Errorf("the earlier specification is %q, %v", after, err)
	}
	if found, err := dir.Claims(); err != nil || len(found) != 1 {
		t.Errorf("claims %v, %v", found, err)
	}
	if files, err := os.ReadDir(string(dir)); err != nil || len(files) != 2 {
		t.Errorf("files %v, %v; want the specification and the filler", files, err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if err := dir.Write(owner, large); err != nil {
		t.Errorf("with space again: %v", err)
	}
}
