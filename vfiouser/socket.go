package vfiouser

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socket sends and receives messages with descriptors on a stream socket
// without allocating: net.UnixConn.ReadMsgUnix allocates at each call. One
// goroutine receives; senders hold a lock of the owner.
type socket struct {
	conn *net.UnixConn
	raw  syscall.RawConn
	// stall bounds how long a send waits for the peer to read; 0: it does not end.
	stall   time.Duration
	stalled bool // a write deadline is set

	rx, tx half
}

// half is one direction. Its structures live here, and its functions are bound
// once, so that a system call needs nothing from the heap.
type half struct {
	msg  unix.Msghdr
	iov  unix.Iovec
	oob  []byte
	n    int
	err  error
	call func(fd uintptr) bool
}

func newSocket(c *net.UnixConn) (*socket, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &socket{conn: c, raw: raw}
	s.rx.oob = make([]byte, unix.CmsgSpace(MaxFDs*4))
	s.rx.call = s.receive
	s.tx.call = s.transmit
	return s, nil
}

func (h *half) set(b, oob []byte) {
	h.iov.Base = unsafe.SliceData(b)
	h.iov.SetLen(len(b))
	h.msg = unix.Msghdr{Iov: &h.iov}
	h.msg.SetIovlen(1)
	if len(oob) > 0 {
		h.msg.Control = unsafe.SliceData(oob)
		h.msg.SetControllen(len(oob))
	}
}

// run makes the call until it is interrupted no more; false asks to wait for
// the descriptor to be ready.
func (h *half) run(trap, fd, flags uintptr) bool {
	for {
		n, _, errno := unix.Syscall(trap, fd, uintptr(unsafe.Pointer(&h.msg)), flags)
		switch errno {
		case 0:
			h.n, h.err = int(n), nil
			return true
		case unix.EINTR:
		case unix.EAGAIN:
			return false
		default:
			h.n, h.err = 0, errno
			return true
		}
	}
}

func (s *socket) receive(fd uintptr) bool {
	return s.rx.run(unix.SYS_RECVMSG, fd, unix.MSG_CMSG_CLOEXEC|unix.MSG_DONTWAIT)
}

func (s *socket) transmit(fd uintptr) bool {
	if s.tx.run(unix.SYS_SENDMSG, fd, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT) {
		return true
	}
	if s.stall > 0 && !s.stalled { // the deadline costs nothing until it is needed
		s.stalled = true
		_ = s.conn.SetWriteDeadline(time.Now().Add(s.stall))
	}
	return false
}

// recv reads at least one byte into b, with whatever descriptors came with the
// last part. The caller owns them. It returns io.EOF at the end of the stream.
func (s *socket) recv(b []byte) (int, []int, error) {
	s.rx.set(b, s.rx.oob)
	if err := s.raw.Read(s.rx.call); err != nil {
		return 0, nil, err
	}
	if s.rx.err != nil {
		return 0, nil, os.NewSyscallError("recvmsg", s.rx.err)
	}
	var fds []int
	if n := int(s.rx.msg.Controllen); n > 0 {
		var err error
		if fds, err = parseRights(s.rx.oob[:n]); err != nil {
			return 0, nil, err
		}
		if s.rx.msg.Flags&unix.MSG_CTRUNC != 0 { // the kernel has closed what did not fit
			closeFDs(fds)
			return 0, nil, &ProtocolError{"more descriptors than a message may carry"}
		}
	}
	if s.rx.n == 0 {
		closeFDs(fds)
		return 0, nil, io.EOF
	}
	return s.rx.n, fds, nil
}

// send writes all of b with one sendmsg, and with more only where the socket's
// buffer is too small for b. The descriptors go with the first byte.
func (s *socket) send(b []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for len(b) > 0 {
		s.tx.set(b, oob)
		if err := s.raw.Write(s.tx.call); err != nil {
			return err
		}
		if s.tx.err != nil {
			return os.NewSyscallError("sendmsg", s.tx.err)
		}
		b, oob = b[s.tx.n:], nil
	}
	if s.stalled {
		s.stalled = false
		_ = s.conn.SetWriteDeadline(time.Time{})
	}
	return nil
}

// fdOf returns the file's descriptor. File.Fd would make it blocking.
func fdOf(f *os.File) (int, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return -1, err
	}
	n := -1
	err = raw.Control(func(fd uintptr) { n = int(fd) })
	return n, err
}

// hungUp reports whether the peer has closed its side.
func (s *socket) hungUp() bool {
	gone := true
	err := s.raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(p, 0)
		gone = err == nil && n > 0 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
	})
	return err != nil || gone
}

func parseRights(oob []byte) ([]int, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, os.NewSyscallError("recvmsg", err)
	}
	var fds []int
	for i := range msgs {
		if got, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds, nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}
