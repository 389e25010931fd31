package vfiouser

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/fd"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/internal/rawio/rights"
)

// socket sends and receives messages with descriptors on a stream socket
// without allocating: net.UnixConn.ReadMsgUnix allocates at each call. One
// goroutine at a time receives; senders hold a lock of the owner.
//
// The descriptor is a blocking one outside the Go runtime's poller: a receiver
// waits in the kernel, in a thread of its own. With the poller each message would
// cost an empty read and the wake-up of another thread.
type socket struct {
	fd *fd.FD
	// trash closes the descriptors that the peer sends and the owner does not keep.
	trash *Disposer
	// stall bounds the time that a send waits for the peer to read, all its parts
	// together; 0: no bound.
	stall time.Duration
	// poller waits for a receiver without a time limit.
	poller reader.Poller

	rx, tx  half
	into    []byte                 // the buffer of receive
	receive func(block bool) error // recvmsg, made once
	sent    atomic.Uint64          // bytes sent
	before  uint64                 // bytes sent when the last message arrived
	short   bool                   // the last message was short
}

// half is one direction. Its structures live here, so that a system call
// allocates nothing.
type half struct {
	msg   unix.Msghdr
	iov   [2]unix.Iovec
	oob   []byte
	block bool
	n     int
	err   error
}

// errWouldBlock reports that there is nothing to receive now.
var errWouldBlock = reader.ErrNothing

// receiveTimeout bounds the wait of a receiver, and with it the delay until a
// caller that waits for an answer on a socket notices other events.
const receiveTimeout = 50 * time.Millisecond

// newSocket takes the connection out of the poller, with a duplicate descriptor. trash
// closes the descriptors of its peer. newSocket closes c on success.
func newSocket(c *net.UnixConn, trash *Disposer) (*socket, error) {
	fd, err := fd.Adopt(c, receiveTimeout, trash.CloseSocket)
	if err != nil {
		return nil, err
	}
	s := &socket{fd: fd, trash: trash}
	if raw, ok := fd.Use(); ok {
		rights.Inline(int(raw))
		fd.Done()
	}
	s.receive = s.recvmsg
	s.rx.oob = make([]byte, rights.Space)
	return s, c.Close()
}

// close ends the connection and wakes its receivers and senders.
func (s *socket) close() { _ = s.fd.Shutdown() } // an error: it is closed already

// set describes a message of b and rest, which may be empty.
func (h *half) set(b, rest, oob []byte) {
	parts := 0
	for _, part := range [...][]byte{b, rest} {
		if len(part) > 0 {
			h.iov[parts].Base = unsafe.SliceData(part)
			h.iov[parts].SetLen(len(part))
			parts++
		}
	}
	h.msg = unix.Msghdr{Iov: &h.iov[0]}
	h.msg.SetIovlen(parts)
	if len(oob) > 0 {
		h.msg.Control = unsafe.SliceData(oob)
		h.msg.SetControllen(len(oob))
	}
}

// run repeats a system call while signals interrupt it. Only a call that may
// block tells the scheduler.
func (h *half) run(trap, fd, flags uintptr) {
	for {
		var n uintptr
		var errno unix.Errno
		if h.block {
			n, _, errno = unix.Syscall(trap, fd, uintptr(unsafe.Pointer(&h.msg)), flags)
		} else {
			n, _, errno = unix.RawSyscall(trap, fd, uintptr(unsafe.Pointer(&h.msg)), flags|unix.MSG_DONTWAIT)
		}
		switch errno {
		case 0:
			h.n, h.err = int(n), nil
			return
		case unix.EINTR:
		case unix.EAGAIN:
			h.n, h.err = 0, errWouldBlock
			return
		default:
			h.n, h.err = 0, errno
			return
		}
	}
}

// transmit sends the bytes for which the socket has room; it waits while there is
// none. began is when the send first waited, or zero.
func (s *socket) transmit(fd uintptr, began *time.Time) {
	for {
		s.tx.run(unix.SYS_SENDMSG, fd, unix.MSG_NOSIGNAL)
		if !errors.Is(s.tx.err, errWouldBlock) {
			return
		}
		now, wait := time.Now(), -1
		if began.IsZero() {
			*began = now
		}
		if s.stall > 0 {
			left := s.stall - now.Sub(*began)
			if left <= 0 {
				s.tx.err = os.ErrDeadlineExceeded
				return
			}
			wait = int(left/time.Millisecond) + 1
		}
		_, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, wait) // the next try returns the error
	}
}

// howLong selects the wait of a receiver.
type howLong uint8

const (
	waitNot   howLong = iota
	waitShort         // for receiveTimeout
	waitLong          // without a limit, as the poller does
)

// recv reads at least one byte into b, and the descriptors of the last part. The
// caller owns them. It returns io.EOF at the end of the stream, and errWouldBlock
// when nothing arrived within the wait.
func (s *socket) recv(b []byte, p howLong) (int, []int, error) {
	var err error
	s.into = b
	switch p {
	case waitNot:
		err = s.recvmsg(false)
	case waitShort:
		err = s.recvmsg(true)
	case waitLong:
		for err = errWouldBlock; errors.Is(err, errWouldBlock); {
			err = s.poller.Wait(s.exchange(), s.receive)
		}
	}
	s.into = nil
	if err != nil {
		return 0, nil, err
	}
	s.short, s.before = s.rx.n <= reader.Brief, s.sent.Load()
	fds, err := rights.Parse(s.rx.oob[:s.rx.msg.Controllen])
	switch {
	case err != nil:
		return 0, nil, err
	case s.rx.msg.Flags&unix.MSG_CTRUNC != 0: // there is room for all that a message can have
		why := rights.Lost()
		s.trash.Close(fds)
		return 0, nil, fmt.Errorf("the descriptors of a message are lost: %w", why)
	case len(fds) > MaxFDs:
		s.trash.Close(fds)
		return 0, nil, &ProtocolError{"more descriptors than a message may carry"}
	}
	if s.rx.n == 0 {
		s.trash.Close(fds)
		return 0, nil, io.EOF
	}
	return s.rx.n, fds, nil
}

// exchange reports whether the last message and the bytes sent since are as short
// as requests and answers.
func (s *socket) exchange() bool {
	since := s.sent.Load() - s.before
	return s.short && since > 0 && since <= reader.Brief
}

// recvmsg makes the system call.
func (s *socket) recvmsg(block bool) error {
	s.rx.block = block
	s.rx.set(s.into, nil, s.rx.oob)
	fd, ok := s.fd.Use()
	if !ok {
		return net.ErrClosed
	}
	s.rx.run(unix.SYS_RECVMSG, fd, unix.MSG_CMSG_CLOEXEC)
	s.fd.Done()
	if err := s.rx.err; err != nil && !errors.Is(err, errWouldBlock) {
		return os.NewSyscallError("recvmsg", err)
	}
	return s.rx.err
}

// send writes all of b with one sendmsg, and with more only where the socket's
// buffer is too small for b. The descriptors go with the first byte.
func (s *socket) send(b []byte, fds ...int) error { return s.sendParts(b, nil, fds...) }

// sendParts is send for a message that lies in two places.
func (s *socket) sendParts(b, rest []byte, fds ...int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	var began time.Time
	for len(b)+len(rest) > 0 {
		s.tx.set(b, rest, oob)
		fd, ok := s.fd.Use()
		if !ok {
			return net.ErrClosed
		}
		s.transmit(fd, &began)
		s.fd.Done()
		switch {
		case errors.Is(s.tx.err, os.ErrDeadlineExceeded):
			return s.tx.err
		case s.tx.err != nil:
			return os.NewSyscallError("sendmsg", s.tx.err)
		}
		s.sent.Add(uint64(s.tx.n))
		n := min(s.tx.n, len(b))
		b, rest, oob = b[n:], rest[s.tx.n-n:], nil
	}
	s.tx.iov = [2]unix.Iovec{} // the memory belongs to the callers
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

// peer returns the process ID of the peer, or 0.
func (s *socket) peer() int {
	fd, ok := s.fd.Use()
	if !ok {
		return 0
	}
	defer s.fd.Done()
	cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return 0
	}
	return int(cred.Pid)
}

// hungUp reports whether the peer has closed its side.
func (s *socket) hungUp() bool {
	fd, ok := s.fd.Use()
	if !ok {
		return true
	}
	defer s.fd.Done()
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
}
