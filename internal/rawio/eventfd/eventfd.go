// Package eventfd signals and reads event descriptors (eventfd(2)) that another
// process shares. That process can make such a descriptor blocking and fill its
// counter at any time, so write(2) and read(2) on it may block for ever.
package eventfd

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Is reports whether fd is an event descriptor. Without /proc it reports false.
func Is(fd int) bool {
	name, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	return err == nil && name == "anon_inode:[eventfd]"
}

// Read returns the signals since the last call, or EAGAIN. It never blocks on
// Linux 5.8 or later; on an older kernel it blocks if the other process makes
// the descriptor blocking.
func Read(fd int) (uint64, error) {
	var n uint64
	iov := unix.Iovec{Base: (*byte)(unsafe.Pointer(&n))}
	iov.SetLen(int(unsafe.Sizeof(n)))
	const position = ^uintptr(0) // -1: there is none
	for {
		_, _, errno := unix.Syscall6(unix.SYS_PREADV2, uintptr(fd), uintptr(unsafe.Pointer(&iov)), 1, position, position, unix.RWF_NOWAIT)
		if errno == unix.EOPNOTSUPP {
			_, _, errno = unix.Syscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&n)), unsafe.Sizeof(n))
		}
		switch errno {
		case 0:
			return n, nil
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// Signal adds 1 to the counter of an event descriptor and never blocks. A counter
// at its maximum stays there: the reader has a signal already.
func Signal(fd int) error {
	s, err := shared()
	if err != nil {
		return err
	}
	return s.signal(fd)
}

// signaller signals by asynchronous I/O (io_submit(2)): the kernel signals the
// descriptor of IOCB_FLAG_RESFD when an operation has ended, as it signals those of
// its own interrupts, without regard to O_NONBLOCK. The operation is an empty
// write to /dev/null, which ends at once. One serves the whole process, because the
// kernel limits the sum of all queues (fs.aio-max-nr), and lasts as long.
type signaller struct {
	null *os.File // keeps its descriptor open
	fd   uint32

	mu    sync.Mutex // guards the fields below
	ctx   uintptr
	ended int // events in the queue
	// The arguments of system calls, which stay in place here.
	op     iocb
	ops    [1]*iocb
	events [queue]ioEvent
	now    unix.Timespec
}

const (
	queue = 64 // events; the kernel makes it larger

	iocbPwrite = 1 // IOCB_CMD_PWRITE
	iocbResFD  = 1 // IOCB_FLAG_RESFD
)

// iocb is struct iocb of linux/aio_abi.h, with names for the fields in use.
type iocb struct {
	_      [2]uint64 // data, key, rw_flags
	opcode uint16
	_      int16 // reqprio
	fd     uint32
	_      [4]uint64 // buf, nbytes, offset, reserved2
	flags  uint32
	resFD  uint32
}

// ioEvent is struct io_event, which the signaller does not read.
type ioEvent [4]uint64

var shared = sync.OnceValues(func() (*signaller, error) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	s := &signaller{null: null, fd: uint32(null.Fd())}
	s.ops[0] = &s.op
	if _, _, errno := unix.Syscall(unix.SYS_IO_SETUP, queue, uintptr(unsafe.Pointer(&s.ctx)), 0); errno != 0 {
		return nil, errors.Join(fmt.Errorf("eventfd: io_setup: %w (raise the sysctl fs.aio-max-nr, and allow the system calls of @aio)", errno), null.Close())
	}
	return s, nil
})

func (s *signaller) signal(fd int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended >= queue/2 {
		s.reap()
	}
	s.op = iocb{opcode: iocbPwrite, fd: s.fd, flags: iocbResFD, resFD: uint32(fd)}
	for {
		_, _, errno := unix.Syscall(unix.SYS_IO_SUBMIT, s.ctx, 1, uintptr(unsafe.Pointer(&s.ops)))
		switch errno {
		case 0:
			s.ended++
			return nil
		case unix.EINTR:
		case unix.EAGAIN: // the queue is full, which reap prevents
			if s.ended == 0 {
				return fmt.Errorf("eventfd: io_submit: %w", errno)
			}
			s.reap()
		default:
			return fmt.Errorf("eventfd: signal: %w", errno)
		}
	}
}

// reap takes the events out of the queue.
func (s *signaller) reap() {
	for s.ended > 0 {
		n, _, errno := unix.Syscall6(unix.SYS_IO_GETEVENTS, s.ctx, 0, queue, uintptr(unsafe.Pointer(&s.events)), uintptr(unsafe.Pointer(&s.now)), 0)
		switch {
		case errno == unix.EINTR:
		case errno != 0 || n == 0:
			s.ended = 0
		default:
			s.ended -= int(n)
		}
	}
}
