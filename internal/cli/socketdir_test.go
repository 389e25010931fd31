package cli

import (
	"strings"
	"testing"
)

// Two host proxies cannot have one directory, and the next one gets it when the
// first has ended.
func TestSocketDirHasOneProxy(t *testing.T) {
	dir := t.TempDir()
	lock, err := lockSocketDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	_, err = lockSocketDir(dir)
	var out strings.Builder
	printError(&out, err)
	if !strings.Contains(out.String(), "another host proxy uses --socket-dir "+dir) {
		t.Errorf("the second proxy: %q", out.String())
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if lock, err = lockSocketDir(dir); err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
}
