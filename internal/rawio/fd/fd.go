// Package fd keeps a file descriptor open while goroutines use it. os.File does
// so too, through interfaces, function values and deferred calls, which add a
// tenth to the time of a system call that does not wait.
package fd

import (
	"errors"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// FD is a file descriptor that several goroutines use.
type FD struct {
	fd    int
	close func(fd int)
	// users counts the goroutines that use fd. Close adds closed.
	users atomic.Int64
}

// closed is greater than any number of goroutines.
const closed = 1 << 40

// New takes over a descriptor.
func New(fd int) *FD { return NewClosedBy(fd, nil) }

// NewClosedBy takes over a descriptor that a function closes after the last use. nil:
// close(2).
func NewClosedBy(fd int, close func(fd int)) *FD {
	if close == nil {
		close = func(fd int) { _ = unix.Close(fd) }
	}
	return &FD{fd: fd, close: close}
}

// Adopt duplicates the descriptor of a socket for use without the poller of the
// Go runtime: system calls on it wait in the kernel, and those that receive wait
// at most for the given time. close closes the duplicate, see
// NewClosedBy; the caller closes c.
func Adopt(c syscall.Conn, wait time.Duration, close func(fd int)) (*FD, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var failed error
	err = raw.Control(func(old uintptr) {
		if fd, failed = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0); failed != nil {
			return
		}
		limit := unix.NsecToTimeval(wait.Nanoseconds())
		failed = errors.Join(unix.SetNonblock(fd, false), unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit))
	})
	if err = errors.Join(err, failed); err != nil {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		return nil, err
	}
	return NewClosedBy(fd, close), nil
}

// Use returns the descriptor, which stays open until Done. After Close, ok is
// false and the caller must not call Done.
func (d *FD) Use() (fd uintptr, ok bool) {
	if d.users.Add(1) > closed {
		d.Done()
		return 0, false
	}
	return uintptr(d.fd), true
}

// Done ends a use. After Close, the last Done closes the descriptor.
func (d *FD) Done() {
	if d.users.Add(-1) == closed {
		d.end()
	}
}

// Close refuses further uses, and closes the descriptor when the last use ends.
// It does not end a system call that waits. A second call returns net.ErrClosed.
func (d *FD) Close() error {
	for {
		n := d.users.Load()
		if n >= closed {
			return net.ErrClosed
		}
		// Close counts as a user until its own Done, so that end runs once.
		if d.users.CompareAndSwap(n, n+1+closed) {
			d.Done()
			return nil
		}
	}
}

// Shutdown closes a socket like Close, and ends system calls that wait on it.
func (d *FD) Shutdown() error {
	if fd, ok := d.Use(); ok {
		_ = unix.Shutdown(int(fd), unix.SHUT_RDWR) // returns an error for an unconnected socket, and still ends its calls
		d.Done()
	}
	return d.Close()
}

// end closes the descriptor once. Calls of Use after Close raise the count and
// bring it back to closed, any number of times.
func (d *FD) end() {
	if d.users.CompareAndSwap(closed, 2*closed) {
		d.close(d.fd)
	}
}
