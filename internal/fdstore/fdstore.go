// Package fdstore keeps file descriptors open across the end of this process, in
// the file descriptor store of the service manager (sd_pid_notify_with_fds(3),
// FDSTORE=1). The next process of the service inherits them.
package fdstore

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"golang.org/x/sys/unix"
)

// sendTimeout bounds the wait for a service manager that does not read.
const sendTimeout = time.Second

// Store is the store of this service.
type Store struct {
	socket  *os.File
	manager string // path of its socket
}

// Open returns the store of the service manager at $NOTIFY_SOCKET, or nil without
// one. A service manager whose FileDescriptorStoreMax= is 0 keeps nothing.
func Open() (*Store, error) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return nil, nil
	}
	// Not a net.UnixConn, which sends no descriptors when it is connected.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	s := &Store{socket: os.NewFile(uintptr(fd), "notify"), manager: name}
	limit := unix.NsecToTimeval(sendTimeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		return nil, errors.Join(os.NewSyscallError("setsockopt", err), s.socket.Close())
	}
	return s, nil
}

// Put adds duplicates of the files under a name. The caller keeps the files.
func (s *Store) Put(name string, files ...*os.File) error {
	fds := make([]int, len(files))
	for i, f := range files {
		raw, err := f.SyscallConn()
		if err != nil {
			return fmt.Errorf("fdstore: %w", err)
		}
		if err := raw.Control(func(fd uintptr) { fds[i] = int(fd) }); err != nil {
			return fmt.Errorf("fdstore: %w", err)
		}
	}
	return s.send("FDSTORE=1\nFDNAME="+name, unix.UnixRights(fds...))
}

// Remove removes all files of a name.
func (s *Store) Remove(name string) error { return s.send("FDSTOREREMOVE=1\nFDNAME="+name, nil) }

func (s *Store) send(message string, oob []byte) error {
	raw, err := s.socket.SyscallConn()
	if err != nil {
		return fmt.Errorf("fdstore: %w", err)
	}
	var failed error
	if err := raw.Control(func(fd uintptr) {
		failed = unix.Sendmsg(int(fd), []byte(message), oob, &unix.SockaddrUnix{Name: s.manager}, unix.MSG_NOSIGNAL)
	}); err != nil {
		return fmt.Errorf("fdstore: %w", err)
	}
	if failed != nil {
		return fmt.Errorf("fdstore: $NOTIFY_SOCKET %s: %w", s.manager, failed)
	}
	return nil
}

// Close ends the use of the store, which keeps its files.
func (s *Store) Close() error { return s.socket.Close() }

// Inherited returns the files that an earlier process of the service has stored, by
// name. It returns them once; the caller closes them.
func Inherited() map[string][]*os.File {
	out := map[string][]*os.File{}
	for _, f := range activation.Files(true) {
		out[f.Name()] = append(out[f.Name()], f)
	}
	return out
}
