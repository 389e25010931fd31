package rights

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/eventfd"
)

// MaxClosing bounds the descriptors of one peer whose close has not ended.
const MaxClosing = 16

// MaxClosers bounds the closes of one peer that wait at one time: each holds a thread of
// the system. The peer's other descriptors wait for their turn, those of other peers do not.
const MaxClosers = 4

// smallFile is the memory, in the blocks of stat(2), that the kernel frees within some
// microseconds. For a gigabyte it takes a tenth of a second.
const smallFile = 2 << 20 / 512

// Disposer closes descriptors that a peer has sent. The peer chooses what they
// are, and close(2) may wait for it, or free gigabytes of memory. The Disposer closes
// such descriptors in goroutines, which cannot be interrupted; they are bounded.
// A zero Disposer is ready for use. All connections of one peer share one.
type Disposer struct {
	mu      sync.Mutex // guards the fields below
	waiting []int      // descriptors whose close has not begun
	closing int        // goroutines, each in a close
}

// Full reports whether the peer may send no more descriptors.
func (d *Disposer) Full() bool { return d.Unclosed() >= MaxClosing }

// Unclosed returns the number of descriptors whose close has not ended.
func (d *Disposer) Unclosed() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.waiting) + d.closing
}

// Close closes the descriptors, those of events and of little memory before it returns.
func (d *Disposer) Close(fds []int) {
	for _, fd := range fds {
		switch {
		case fd < 0:
		case eventfd.Is(fd) || isSmall(fd):
			_ = unix.Close(fd)
		default:
			d.closeLater(fd)
		}
	}
}

// closeLater closes a descriptor in a goroutine, as soon as the peer has a turn.
func (d *Disposer) closeLater(fd int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = append(d.waiting, fd)
	if d.closing == MaxClosers {
		return
	}
	next := d.takeLocked()
	go func() { // not waited for: nothing ends a close
		for fd, ok := next, true; ok; fd, ok = d.closed() {
			_ = unix.Close(fd)
		}
	}()
}

// takeLocked returns the oldest descriptor that waits, for a further close.
func (d *Disposer) takeLocked() int {
	fd := d.waiting[0]
	d.waiting = d.waiting[1:]
	d.closing++
	return fd
}

// closed notes the end of a close and returns the next descriptor to close.
func (d *Disposer) closed() (fd int, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closing--
	if len(d.waiting) == 0 {
		d.waiting = nil
		return 0, false
	}
	return d.takeLocked(), true
}

// isSmall reports whether fd is a file of little memory.
func isSmall(fd int) bool {
	var st unix.Stat_t
	return IsMemory(fd) && unix.Fstat(fd, &st) == nil && st.Blocks <= smallFile
}

// IsMemory reports whether fd is a file of tmpfs or hugetlbfs, such as a memfd:
// no other file has seals. Unlike fstat(2), the question reaches no file system
// of the peer.
func IsMemory(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return err == nil
}
