// Package rightstest makes the descriptors of hostile peers.
package rightstest

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Patience is how long a test waits for what takes microseconds. A Lingering descriptor
// lasts longer.
const Patience = 20 * time.Second

// Lingering returns a TCP socket whose last close waits for a minute, or for the end of the
// test: it has sent more than its peer, which does not read, has room for.
func Lingering(t *testing.T) int {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ln, err := (&net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4<<10) })
	}}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(err)
	t.Cleanup(func() { _ = ln.Close() })
	c, err := net.Dial("tcp", ln.Addr().String())
	must(err)
	peer, err := ln.Accept()
	must(err)
	t.Cleanup(func() { _ = peer.(*net.TCPConn).SetLinger(0); _ = peer.Close() }) // ends the wait
	tcp := c.(*net.TCPConn)
	must(errors.Join(tcp.SetLinger(60), tcp.SetWriteBuffer(256<<10), tcp.SetWriteDeadline(time.Now().Add(Patience))))
	_, err = tcp.Write(make([]byte, 128<<10)) // fits the send buffer
	must(err)
	file, err := tcp.File()
	must(err)
	raw, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	must(err)
	must(errors.Join(file.Close(), c.Close()))
	return raw
}

// Send sends a message with n lingering sockets, and closes them.
func Send(t *testing.T, socket int, message []byte, n int) {
	t.Helper()
	SendFlags(t, socket, message, n, 0)
}

// SendFlags is Send with flags of send(2).
func SendFlags(t *testing.T, socket int, message []byte, n, flags int) {
	t.Helper()
	fds := make([]int, n)
	for i := range fds {
		fds[i] = Lingering(t)
	}
	if err := unix.Sendmsg(socket, message, unix.UnixRights(fds...), nil, flags); err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		go unix.Close(fd) // waits if the receiver was faster
	}
}

// AtOnce fails the test if f waits.
func AtOnce(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { // not waited for if it waits itself
		defer close(done)
		f()
	}()
	timeout := time.NewTimer(Patience)
	defer timeout.Stop()
	select {
	case <-done:
	case <-timeout.C:
		t.Fatalf("%s waits for a descriptor of the peer", what)
	}
}
