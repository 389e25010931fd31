//go:build linux

package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/hook"
)

// A program that never loads the driver library gets no figure.
func TestModelRunWithoutLibrary(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, hook.Library), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := newModelRunCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs([]string{"--compare", "--hook-dir", dir, "--", "true"})
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), "did not use the driver library") {
		t.Errorf("error %v\n%s", err, &out)
	}
}
