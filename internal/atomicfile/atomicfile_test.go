package atomicfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestReplace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for _, text := range []string{"new", "newer"} {
		if err := Write(path, []byte(text)); err != nil {
			t.Fatal(err)
		}
		raw, err := os.ReadFile(path)
		if err != nil || string(raw) != text {
			t.Errorf("the file has %q, %v", raw, err)
		}
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("%d files are left, %v", len(entries), err)
	}
}

// Sweep removes the temporary files of killed processes, and nothing else.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s.json")
	if err := errors.Join(Write(path, nil), os.Mkdir(filepath.Join(dir, ".s.json-7"), 0o700)); err != nil {
		t.Fatal(err)
	}
	left := []string{".s.json-7", ".s.json-", ".s.json-old", ".t.json-1", "s.json"}
	for _, name := range append([]string{".s.json-1", ".s.json-4096"}, left[1:4]...) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(Sweep(path), Sweep(filepath.Join(dir, "absent", "s.json"))); err != nil {
		t.Error(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != len(left) {
		t.Errorf("%v are left, %v, want %v", entries, err, left)
	}
	for _, name := range left {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
}

// A directory and a pipe are not replaced.
func TestReplaceOnlyFiles(t *testing.T) {
	dir := t.TempDir()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	pipe := filepath.Join(dir, "pipe")
	if err := os.Symlink(fmt.Sprint("/proc/self/fd/", w.Fd()), pipe); err != nil {
		t.Fatal(err)
	}
	absent := filepath.Join(dir, "absent", "file")
	for path, want := range map[string]string{absent: "open " + absent + ": no such file or directory", dir: dir + ": is a directory", pipe: pipe + ": is not a regular file"} {
		if err := Write(path, []byte("x")); err == nil || err.Error() != want {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if info, err := os.Lstat(pipe); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is replaced: %v, %v", info, err)
	}
}

// A name may be as long as the system allows, though that of the temporary file is longer.
func TestLongNames(t *testing.T) {
	dir := t.TempDir()
	for i, name := range []string{strings.Repeat("n", 255), strings.Repeat("n", 99) + strings.Repeat("é", 78)} {
		path := filepath.Join(dir, name)
		for range 2 {
			if err := errors.Join(Output(path, []byte("x"), 0o600), Write(path, []byte("x"))); err != nil {
				t.Error(err)
			}
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != i+1 {
			t.Errorf("%d files are left, %v", len(entries), err)
		}
	}
}
