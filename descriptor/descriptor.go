// Package descriptor keeps a file descriptor open for as long as somebody uses
// it. os.File does so too, by way of interfaces, function values and deferred
// calls: for a system call that does not wait that is a tenth of what it takes.
package descriptor

import (
	"net"
	"sync/atomic"

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

// end closes the descriptor once: latecomers in Use may bring the count back to
// closed again and again.
func (d *FD) end() {
	if d.users.CompareAndSwap(closed, 2*closed) {
		_ = unix.Close(d.fd)
	}
}
