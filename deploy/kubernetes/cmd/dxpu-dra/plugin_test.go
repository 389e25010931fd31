package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
)

// TestPluginMetadata: the plugin starts with files of the attributes of its devices. A context that has ended
// ends it as soon as it is registered.
func TestPluginMetadata(t *testing.T) {
	dir := t.TempDir()
	access := filepath.Join(dir, "kubeconfig")
	const config = `{"kind": "Config", "apiVersion": "v1", "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
		"contexts": [{"name": "x", "context": {"cluster": "c"}}], "current-context": "x"}`
	if err := os.WriteFile(access, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	code := run(ctx, []string{
		"plugin", "--metadata", "--node-name", "n", "--kubeconfig", access, "--socket-dir", dir,
		"--plugins-dir", filepath.Join(dir, "p"), "--registry-dir", filepath.Join(dir, "r"), "--cdi-dir", filepath.Join(dir, "c"),
	}, &out, &errs)
	if code != 0 {
		t.Errorf("exit code %d: %s", code, &errs)
	}
}
