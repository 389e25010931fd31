//go:build linux

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// inShortDir returns a folder whose name leaves room for the path of a socket.
func inShortDir(t *testing.T) string {
	t.Helper()
	root, err := os.MkdirTemp("", "dxs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	return root
}

// The agent refuses what is no state file at once, names it and the remedy, and leaves it alone.
func TestStateFileThatIsNone(t *testing.T) {
	root := inShortDir(t)
	c, _ := damaged(t, root)
	for name, part := range map[string]struct {
		make   func() error
		remedy string
	}{
		"empty":          {func() error { return os.WriteFile(c.State, nil, 0o600) }, "move it away"},
		"other text":     {func() error { return os.WriteFile(c.State, []byte("null"), 0o600) }, "move it away"},
		"too long":       {func() error { return os.WriteFile(c.State, bytes.Repeat([]byte(" "), maxFile+1), 0o600) }, "move it away"},
		"later version":  {func() error { return os.WriteFile(c.State, []byte(`{"version":1000}`), 0o600) }, "move it away"},
		"folder":         {func() error { return os.Mkdir(c.State, 0o700) }, "name another one with --state"},
		"pipe":           {func() error { return unix.Mkfifo(c.State, 0o600) }, "name another one with --state"},
		"link to itself": {func() error { return os.Symlink(c.State, c.State) }, "too many levels"},
		"lost disk":      {func() error { return os.Symlink(filepath.Join(root, "disk", "state.json"), c.State) }, "bring back that folder, or remove the link"},
	} {
		if err := errors.Join(os.RemoveAll(c.State), part.make()); err != nil {
			t.Fatal(err)
		}
		before, err := os.Lstat(c.State)
		if err != nil {
			t.Fatal(err)
		}
		failed := make(chan error, 1)
		go func() {
			_, err := New(c)
			failed <- err
		}()
		select {
		case err := <-failed:
			if err == nil || !strings.Contains(err.Error(), c.State) || !strings.Contains(err.Error(), part.remedy) {
				t.Errorf("%s: %v, want %s and %q", name, err, c.State, part.remedy)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s: the agent waits", name)
		}
		if after, err := os.Lstat(c.State); err != nil || after.Mode() != before.Mode() || after.Size() != before.Size() {
			t.Errorf("%s: the file is %+v, %v, was %+v", name, after, err, before)
		}
	}
}

// The state stays where a symbolic link leads: with a link that gives way to a file, an operator who
// puts it back would start the agent with former shares.
func TestStateFileByALink(t *testing.T) {
	root := inShortDir(t)
	c, whole := damaged(t, root)
	target := filepath.Join(root, "disk", "real.json")
	if err := errors.Join(os.Mkdir(filepath.Dir(target), 0o700), os.Rename(c.State, target), os.Symlink("disk/real.json", c.State)); err != nil {
		t.Fatal(err)
	}
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.restore(), os.WriteFile(target, nil, 0o600), a.store()); err != nil {
		t.Error(err)
	}
	a.close()
	if info, err := os.Lstat(c.State); err != nil || info.Mode()&os.ModeSymlink == 0 {
		t.Errorf("the link is %+v, %v", info, err)
	}
	if text, err := os.ReadFile(target); err != nil || !bytes.Equal(text, whole) {
		t.Errorf("the file has %q, %v, want %q", text, err, whole)
	}
	// A first start: the folder is there, and the file is not.
	if err := os.Remove(target); err != nil {
		t.Fatal(err)
	}
	if _, err = New(c); err != nil {
		t.Error(err)
	}
}

// limitFiles lets this process open a number of further files, until the end of the test or a call.
func limitFiles(t *testing.T, more int) (restore func()) {
	t.Helper()
	var old unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	var free []int
	for range more {
		fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		free = append(free, fd)
	}
	for _, fd := range free {
		_ = unix.Close(fd)
	}
	restore = func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &old) }
	t.Cleanup(restore)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(free[more-1] + 1), Max: old.Max}); err != nil {
		t.Fatal(err)
	}
	return restore
}

// An agent that lacks something at its start, such as descriptors, does not start without some of
// its shares: their programs run, and others would get their memory.
func TestStartWithoutRoom(t *testing.T) {
	c, whole := damaged(t, inShortDir(t))
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	restore := limitFiles(t, 3) // the socket and the page of one share, and one more
	err = a.restore()
	restore()
	a.close()
	if !errors.Is(err, unix.EMFILE) || !strings.Contains(err.Error(), fmt.Sprintf(`of %s cannot be opened`, c.State)) {
		t.Errorf("shares are restored: %v", err)
	}
	if text, err := os.ReadFile(c.State); err != nil || !bytes.Equal(text, whole) {
		t.Errorf("the file has %q, %v, want %q", text, err, whole)
	}
	if a, err = New(c); err == nil {
		err = a.restore()
	}
	if shares := a.Shares(); err != nil || len(shares) != 2 {
		t.Errorf("shares %+v, %v", shares, err)
	}
	a.close()
}
