package vm_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// fdStore is the file descriptor store of a service manager: it keeps what a
// process gives it, for the next one.
type fdStore struct {
	t    *testing.T
	path string

	mu    sync.Mutex // guards the fields below
	names []string
	files []*os.File
}

func newFDStore(t *testing.T, dir string) *fdStore {
	t.Helper()
	s := &fdStore{t: t, path: filepath.Join(dir, "notify")}
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: s.path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	var done sync.WaitGroup
	done.Go(func() {
		text, oob := make([]byte, 4096), make([]byte, 4096)
		for {
			n, k, _, _, err := conn.ReadMsgUnix(text, oob)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				t.Error(err)
				return
			}
			s.take(string(text[:n]), oob[:k])
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		done.Wait()
		_ = os.Remove(s.path)
		for _, f := range s.files {
			_ = f.Close()
		}
	})
	return s
}

// take carries out one message (sd_notify(3)).
func (s *fdStore) take(text string, oob []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, name, _ := strings.Cut(text, "FDNAME=")
	if strings.HasPrefix(text, "FDSTOREREMOVE=1") {
		for i := len(s.names) - 1; i >= 0; i-- {
			if s.names[i] == name {
				_ = s.files[i].Close()
				s.names, s.files = append(s.names[:i], s.names[i+1:]...), append(s.files[:i], s.files[i+1:]...)
			}
		}
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		s.t.Error(err)
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			s.t.Error(err)
		}
		for _, fd := range fds {
			s.names, s.files = append(s.names, name), append(s.files, os.NewFile(uintptr(fd), name))
		}
	}
}

// give makes a process inherit what the store has (sd_listen_fds(3)), as duplicates: the
// store may close its own files meanwhile. The ID of the process is known only when it
// runs.
func (s *fdStore) give(cmd *exec.Cmd) *exec.Cmd {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := exec.Command("sh", append([]string{"-c", `LISTEN_PID=$$ exec "$0" "$@"`}, cmd.Args...)...)
	sh.Env = append(cmd.Env, "NOTIFY_SOCKET="+s.path, "LISTEN_FDS="+strconv.Itoa(len(s.files)), "LISTEN_FDNAMES="+strings.Join(s.names, ":"))
	for _, f := range s.files {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			s.t.Error(err)
			continue
		}
		sh.ExtraFiles = append(sh.ExtraFiles, os.NewFile(uintptr(fd), f.Name()))
	}
	return sh
}
