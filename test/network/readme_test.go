package network

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/test/namespace"
)

// TestReadme runs the commands of README.md that make a pool by hand, as they stand. They
// use the manager's default port, so they get a network of their own.
func TestReadme(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the program")
	}
	document, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	block := regexp.MustCompile("(?s)## A pool by hand.*?```bash\n(.*?)```").FindSubmatch(document)
	if block == nil {
		t.Fatal("README.md has no commands under \"A pool by hand\"")
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	home, err := os.MkdirTemp("", "readme") // short: the path of a socket has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(home) })
	script := exec.CommandContext(t.Context(), "bash", "-euo", "pipefail", "-c", "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"+string(block[1]))
	script.Dir = root
	script.Env = append(os.Environ(), "HOME="+home, "GOCACHE="+goEnv(t, "GOCACHE"), "GOMODCACHE="+goEnv(t, "GOMODCACHE"),
		"GOPATH="+goEnv(t, "GOPATH"), "GOPROXY=off", "DXPU_CONFIG="+filepath.Join(home, "contexts"))
	var out bytes.Buffer
	script.Stdout, script.Stderr = &out, &out
	script.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	script.Cancel = func() error { return syscall.Kill(-script.Process.Pid, syscall.SIGKILL) }
	if err := namespace.New(t).Do(script.Start); err != nil {
		t.Fatal(err)
	}
	script.WaitDelay = time.Minute // for the daemons, which hold the pipe
	err = script.Wait()
	_ = syscall.Kill(-script.Process.Pid, syscall.SIGKILL) // any that are left
	if err != nil {
		t.Errorf("README.md: %v\n%s", err, out.String())
	}
	for _, want := range []string{"l-1 is active after", "checks passed in", "l-1 is released"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the commands do not print %q:\n%s", want, out.String())
		}
	}
}

func goEnv(t *testing.T, name string) string {
	t.Helper()
	value, err := exec.CommandContext(t.Context(), "go", "env", name).Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(value))
}
