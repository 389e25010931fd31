// Package fd keeps a file descriptor open for as long as somebody uses
// it. os.File does so too, by way of interfaces, function values and deferred
// calls: for a system call that does not wait that is a tenth of what it takes.
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
	fd int
	// users counts those who use it, and closed is added when no more may come.
	users atomic.Int64
}

// closed is more than there are goroutines.
const closed = 1 << 40

// New takes over a descriptor.
func New(fd int) *FD { return &FD{fd: fd} }

// Adopt returns a descriptor of its own for a socket, out of the reach of the Go
// runtime's poller: system calls on it wait in the kernel, those that receive for
// wait at most. The caller closes c.
func Adopt(c syscall.Conn, wait time.Duration) (*FD, error) {
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
	return New(fd), nil
}

// Use returns the descriptor, which stays open until Done; ok is false, and Done
// must not be called, after Close.
func (d *FD) Use() (fd uintptr, ok bool) {
	if d.users.Add(1) > closed {
		d.Done()
		return 0, false
	}
	return uintptr(d.fd), true
}

// Done ends a use. The last one closes what Close has been called for.
func (d *FD) Done() {
	if d.users.Add(-1) == closed {
		d.end()
	}
}

// Close lets nobody use the descriptor any more, and closes it when nobody does.
// It does not wake who waits in a system call. Only the first call counts; others
// return net.ErrClosed.
func (d *FD) Close() error {
	for {
		n := d.users.Load()
		if n >= closed {
			return net.ErrClosed
		}
		// One more user, so that the end comes once, and after this.
		if d.users.CompareAndSwap(n, n+1+closed) {
			d.Done()
			return nil
		}
	}
}

// Shutdown is Close for a socket that somebody may wait on: it wakes him.
func (d *FD) Shutdown() error {
	if fd, ok := d.Use(); ok {
		_ = unix.Shutdown(int(fd), unix.SHUT_RDWR) // one that is not connected complains, and wakes all the same
		d.Done()
	}
	return d.Close()
}

// end closes the descriptor once: latecomers in Use may bring the count back to
// closed again and again.
func (d *FD) end() {
	if d.users.CompareAndSwap(closed, 2*closed) {
		_ = unix.Close(d.fd)
	}
}
