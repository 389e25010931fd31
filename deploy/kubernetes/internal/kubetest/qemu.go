package kubetest

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// NeedQEMU returns the QEMU of scripts/install-qemu.sh, or skips the test where it is not installed.
func NeedQEMU(t testing.TB) string {
	t.Helper()
	if named := os.Getenv("DXPU_QEMU"); named != "" {
		return named
	}
	cache := os.Getenv("DXPU_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			t.Skip(err)
		}
		cache = filepath.Join(dir, "dxpu")
	}
	path := filepath.Join(cache, "qemu", "bin", "qemu-system-x86_64")
	if _, err := exec.LookPath(path); err != nil {
		t.Skipf("%v; remedy: scripts/install-qemu.sh", err)
	}
	return path
}
