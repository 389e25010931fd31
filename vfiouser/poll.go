package vfiouser

import (
	"errors"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// A program that reads several sockets in one goroutine, such as a proxy between a
// network and a device server, starts a read with TryRead, polls for its answer
// with Poll, and sleeps until any of its sockets is readable with Hold.

// TryRead is StartRead for a caller that must not wait, not even for another
// goroutine that is sending. It returns false, and does not call done, when the
// request cannot leave at once. The caller polls for the answer.
func (c *Client) TryRead(region uint32, offset uint64, p []byte, done func(error)) bool {
	if !c.main.wmu.TryLock() {
		return false
	}
	defer c.main.wmu.Unlock()
	select {
	case c.sem <- struct{}{}:
	default:
		return false
	}
	cl := c.newCall(CmdRegionRead)
	cl.done, cl.buf = done, p
	c.mu.Lock()
	if c.err != nil || len(c.posts.buf) > 0 {
		c.mu.Unlock()
		c.withdraw(cl)
		return false
	}
	h := c.registerLocked(cl)
	c.mu.Unlock()
	out := h.Append(c.main.out[:0])
	out = RegionAccess{Offset: offset, Region: region, Count: uint32(len(p))}.Append(out)
	putSize(out)
	c.main.out = out
	err := c.main.sock.trySend(out)
	if err == nil {
		return true
	}
	c.mu.Lock()
	open := c.calls[h.ID] == cl // the fields of a call that was delivered are of another one
	if open {
		delete(c.calls, h.ID)
		c.order.remove(&cl.order)
	}
	c.mu.Unlock()
	if open {
		c.withdraw(cl)
	}
	if !errors.Is(err, errWouldBlock) {
		_ = c.sendFailed(err)
	}
	return !open // the end of the client has delivered the call
}

// withdraw takes back a call that nothing refers to.
func (c *Client) withdraw(cl *call) {
	<-c.sem
	c.recycle(cl)
}

// Poll handles one message of the server if one has arrived, and reports whether
// it did. It does not wait. While a program polls, the client's own goroutine
// leaves the socket alone.
func (c *Client) Poll() bool { return c.reader.Poll() }

// Hold returns the descriptor of the socket, for a program that sleeps until that or
// another one is readable and then calls Poll. Until it calls release, the descriptor
// stays open and the client's own goroutine leaves the socket alone. release is nil if
// that goroutine reads now, or if the client is closed.
func (c *Client) Hold() (fd uintptr, release func()) {
	if !c.reader.Hold() {
		return 0, nil
	}
	fd, ok := c.main.sock.fd.Use()
	if !ok {
		c.reader.Release()
		return 0, nil
	}
	return fd, c.release
}

// letGo ends a Hold.
func (c *Client) letGo() {
	c.main.sock.fd.Done()
	c.reader.Release()
}

// trySend sends all of a short message or nothing. It returns errWouldBlock when
// the socket has no room.
func (s *socket) trySend(b []byte) error {
	fd, ok := s.fd.Use()
	if !ok {
		return net.ErrClosed
	}
	s.tx.set(b, nil, nil)
	s.tx.run(unix.SYS_SENDMSG, fd, unix.MSG_NOSIGNAL)
	s.fd.Done()
	switch {
	case errors.Is(s.tx.err, errWouldBlock):
		return errWouldBlock
	case s.tx.err != nil:
		return os.NewSyscallError("sendmsg", s.tx.err)
	}
	s.sent.Add(uint64(s.tx.n))
	if s.tx.n < len(b) { // a UNIX socket takes a short message as a whole
		return s.send(b[s.tx.n:])
	}
	return nil
}
