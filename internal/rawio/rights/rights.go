// Package rights receives from UNIX sockets whose peers are not trusted.
//
// Every message may carry descriptors (SCM_RIGHTS, unix(7)). The thread that drops the last
// reference to a file closes it, and close(2) may wait for as long as the peer likes: a socket
// lingers for hours, and a file of a FUSE file system is flushed by a process of the peer. For
// the descriptors of a message this happens in the thread
//
//   - that closes them;
//   - that receives the message without room for them, in recv(2), or skips it (MSG_OOB);
//   - that closes the socket while the message has not been received, in close(2).
//
// So the receivers of this package always have room for all descriptors, a Disposer closes
// them, and sockets are emptied before they are closed.
package rights

import (
	"bytes"
	"errors"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Most is the largest number of descriptors that one message carries (SCM_MAX_FD).
const Most = 253

// Space is the room, in bytes, for all that comes beside the bytes of a message: descriptors and
// credentials, each behind a header and filled up to a word (CMSG_SPACE).
const Space = (unix.SizeofCmsghdr+Most*4+word)&^word + (unix.SizeofCmsghdr+unix.SizeofUcred+word)&^word

const word = 7 // the largest alignment, less one

// Parse returns the descriptors in the control messages of a message. The caller owns them.
func Parse(oob []byte) ([]int, error) {
	if len(oob) == 0 {
		return nil, nil
	}
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

// Discard closes the descriptors in the control messages of a message, and reports whether
// there were any.
func (d *Disposer) Discard(oob []byte) bool {
	fds, _ := Parse(oob) // the kernel writes no others
	d.Close(fds)
	return len(fds) > 0
}

// Inline makes urgent bytes (MSG_OOB) of a socket bytes like all others: a receiver would
// skip one, and drop the descriptors that came with it.
func Inline(fd int) { _ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_OOBINLINE, 1) }

// Receive is recv(2) for a socket whose peer sends no descriptors. It closes those that
// come nevertheless, and reports them. p is not empty. It does not allocate.
func (d *Disposer) Receive(fd int, p []byte, flags int) (n int, carried bool, err error) {
	var oob [Space]byte
	n, got, err := receive(fd, p, oob[:], flags)
	if err != nil || got == 0 {
		return n, false, err
	}
	return n, d.Discard(bytes.Clone(oob[:got])), nil // oob itself would be on the heap
}

// CloseSocket ends a connection and closes its socket, which has no other descriptor. It does not wait.
func (d *Disposer) CloseSocket(fd int) {
	if d.empty(fd) {
		_ = unix.Close(fd)
		return
	}
	d.closeLater(fd)
}

// refuseAll ends the connections that wait to be accepted, and lets no further one begin. It
// stops, and returns false, when the close of one has to wait.
func (d *Disposer) refuseAll(fd int) bool {
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	for {
		c, _, err := unix.Accept4(fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		switch err {
		case nil:
		case unix.EINTR, unix.ECONNABORTED:
			continue
		default:
			return err == unix.EAGAIN || err == unix.EINVAL // EINVAL: shut down
		}
		if !d.empty(c) {
			d.closeLater(c)
			return false
		}
		_ = unix.Close(c)
	}
}

// ErrFull means that the closes of a peer's descriptors wait, and that nothing more is received
// from it.
var ErrFull = errors.New("rights: descriptors of the peer cannot be closed")

// empty ends a connection and receives what its peer has sent, up to the first message with
// descriptors that are not closed at once: then it returns false. The peer can send nothing
// after the shutdown.
func (d *Disposer) empty(fd int) bool {
	// Credentials tell an empty packet from the end. A stream has no empty messages.
	kind, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if kind == unix.SOCK_SEQPACKET {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PASSCRED, 1)
	}
	Inline(fd)
	_ = unix.Shutdown(fd, unix.SHUT_RDWR)
	if d.Full() {
		return false
	}
	p, oob := make([]byte, 64<<10), make([]byte, Space)
	for {
		n, got, err := receive(fd, p, oob, unix.MSG_DONTWAIT)
		if err != nil || n == 0 && (got == 0 || kind != unix.SOCK_SEQPACKET) {
			return true
		}
		if d.Discard(oob[:got]) && d.Unclosed() > 0 {
			return false
		}
	}
}

// receive is recvmsg(2). That of package unix makes an address of the sender.
func receive(fd int, p, oob []byte, flags int) (n, got int, err error) {
	iov := unix.Iovec{Base: &p[0]}
	iov.SetLen(len(p))
	for {
		msg := unix.Msghdr{Iov: &iov, Control: &oob[0]}
		msg.SetIovlen(1)
		msg.SetControllen(len(oob))
		read, _, e := unix.Syscall(unix.SYS_RECVMSG, uintptr(fd), uintptr(unsafe.Pointer(&msg)), uintptr(flags|unix.MSG_CMSG_CLOEXEC))
		switch e {
		case 0:
			return int(read), int(msg.Controllen), nil
		case unix.EINTR:
		default:
			return 0, 0, e
		}
	}
}
