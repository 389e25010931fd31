package vfiouser

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/eventfd"
)

// maxClosing bounds the descriptors of one peer whose close has not ended.
const maxClosing = 16

// maxClosers bounds the closes of all peers that wait at one time: each holds a thread of
// the system. Others wait for their turn.
const maxClosers = 64

var closers = make(chan struct{}, maxClosers)

// disposer closes descriptors that a peer has sent. The peer chooses what they
// are, and close(2) may wait for it: a socket may linger for hours, and a file of
// a FUSE file system is flushed by a process of the peer. The disposer closes
// such descriptors in goroutines, which cannot be interrupted; they are bounded.
type disposer struct{ closing atomic.Int32 }

// full reports whether the peer may send no more descriptors.
func (d *disposer) full() bool { return d.closing.Load() >= maxClosing }

// close closes the descriptors, those of memory and events before it returns.
func (d *disposer) close(fds []int) {
	for _, fd := range fds {
		switch {
		case fd < 0:
		case isMemory(fd) || eventfd.Is(fd):
			_ = unix.Close(fd)
		default:
			d.closing.Add(1)
			turns := closers
			go func() { // not waited for: nothing ends a close
				turns <- struct{}{}
				_ = unix.Close(fd)
				<-turns
				d.closing.Add(-1)
			}()
		}
	}
}

// isMemory reports whether fd is a file of tmpfs or hugetlbfs, such as a memfd:
// no other file has seals. Unlike fstat(2), the question reaches no file system
// of the peer.
func isMemory(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return err == nil
}
