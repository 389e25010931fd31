package atomicfile

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// contents returns a file with its mode and its owner.
func contents(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var s unix.Stat_t
	if err := unix.Stat(path, &s); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s %o %d", raw, s.Mode&0o777, s.Uid)
}

// A new file has the mode less the umask, and an old one keeps its mode and its owner.
func TestOutputKeepsModes(t *testing.T) {
	dir, me := t.TempDir(), os.Geteuid()
	umask := unix.Umask(0o027)
	defer unix.Umask(umask)
	path := filepath.Join(dir, "file")
	for i, want := range []string{fmt.Sprint("a 640 ", me), fmt.Sprint("b 604 ", me)} {
		if i == 1 {
			if err := os.Chmod(path, 0o604); err != nil {
				t.Fatal(err)
			}
		}
		if err := Output(path, []byte{'a' + byte(i)}, 0o666); err != nil || contents(t, path) != want {
			t.Errorf("%v, %s, want %s", err, contents(t, path), want)
		}
	}
	if me == 0 {
		if err := os.Chown(path, 4711, 4711); err != nil {
			t.Fatal(err)
		}
		if err := Output(path, []byte("c"), 0o666); err != nil || contents(t, path) != "c 604 4711" {
			t.Errorf("%v, %s", err, contents(t, path))
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("%d files are left, %v", len(entries), err)
	}
}

// Readers that have the old file open keep it: it is replaced, not written again.
func TestOutputReplaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := Output(path, []byte("old"), 0o666); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Output(path, []byte("newer"), 0o666); err != nil {
		t.Fatal(err)
	}
	if raw, err := io.ReadAll(f); err != nil || string(raw) != "old" {
		t.Errorf("the reader has %q, %v", raw, err)
	}
}

// A pipe and a link are written, and stay.
func TestOutputInPlace(t *testing.T) {
	dir := t.TempDir()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	pipe, link, file := filepath.Join(dir, "pipe"), filepath.Join(dir, "link"), filepath.Join(dir, "file")
	for name, to := range map[string]string{pipe: fmt.Sprint("/proc/self/fd/", w.Fd()), link: file} {
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
		if err := Output(name, []byte("x"), 0o600); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if is, err := os.Readlink(name); err != nil || is != to {
			t.Errorf("%s leads to %s, %v", name, is, err)
		}
	}
	_ = w.Close()
	if raw, err := io.ReadAll(r); err != nil || !bytes.Equal(raw, []byte("x")) {
		t.Errorf("the pipe has %q, %v", raw, err)
	}
	if raw, err := os.ReadFile(file); err != nil || string(raw) != "x" {
		t.Errorf("the file has %q, %v", raw, err)
	}
	if err := Output("/dev/null", []byte("x"), 0o600); err != nil {
		t.Error(err)
	}
}

// In a directory that the caller may not write, an old file is written in place, and one
// that is protected from writing stays.
func TestOutputInAFixedDirectory(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir) // another user has no way to it
	for name, mode := range map[string]fs.FileMode{"file": 0o600, "protected": 0o400} {
		if err := os.WriteFile(name, []byte("old"), mode); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			if err := os.Chown(name, 65534, 65534); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	errs := make(chan [3]error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		if os.Geteuid() == 0 {
			_, _ = unix.SetfsuidRetUid(65534)
		}
		errs <- [3]error{Output("file", []byte("new"), 0o600), Output("protected", []byte("new"), 0o600), Output("absent", []byte("new"), 0o600)}
	}()
	got := <-errs
	if err := os.Chmod(dir, 0o700); err != nil { // so that it can be removed
		t.Fatal(err)
	}
	if want := "[<nil> open protected: permission denied open absent: permission denied]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
	for name, want := range map[string]string{"file": "new", "protected": "old"} {
		if raw, err := os.ReadFile(name); err != nil || string(raw) != want {
			t.Errorf("%s has %q, %v", name, raw, err)
		}
	}
}

// An error of the writer keeps the old file, and leaves no other.
func TestReplaceKeepsTheOldFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := Write(path, []byte("old")); err != nil {
		t.Fatal(err)
	}
	failed := Replace(path, func(f *os.File) error {
		_, err := f.WriteString("ne")
		return fmt.Errorf("%w after %v", os.ErrDeadlineExceeded, err)
	})
	raw, err := os.ReadFile(path)
	if failed == nil || err != nil || string(raw) != "old" {
		t.Errorf("%v; the file has %q, %v", failed, raw, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("%d files are left, %v", len(entries), err)
	}
}
