package dirlock

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLock(t *testing.T) {
	dir := t.TempDir()
	first, err := Lock(dir, "lock")
	if err != nil {
		t.Fatal(err)
	}
	var held *HeldError
	if _, err := Lock(dir, "lock"); !errors.As(err, &held) || *held != (HeldError{dir, os.Getpid()}) {
		t.Fatalf("the second lock: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "lock"), []byte("\x1b[2J"+strings.Repeat("9", 99)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir, "lock"); !errors.As(err, &held) || held.PID != 0 || held.Error() != dir+" is used by another process" {
		t.Errorf("a file of another program: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Lock(dir, "lock")
	if err != nil {
		t.Fatal(err)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	if _, err := Lock(filepath.Join(dir, "none"), "lock"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that does not exist: %v", err)
	}
}
