package rights

import (
	"errors"
	"io"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// Conn is a connection to a peer that is not trusted and sends no descriptors. It closes
// those that come nevertheless.
type Conn struct {
	*net.UnixConn
	trash *Disposer
	mu    sync.Mutex // guards oob
	oob   []byte
}

// NewConn takes over a connection. d closes what its peer sends.
func NewConn(c *net.UnixConn, d *Disposer) *Conn {
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { Inline(int(fd)) }) // an error: it is closed
	}
	return &Conn{UnixConn: c, trash: d, oob: make([]byte, Space)}
}

// Read implements net.Conn. It returns ErrFull while the closes of the peer's descriptors wait.
func (c *Conn) Read(p []byte) (int, error) {
	if c.trash.Full() {
		return 0, ErrFull
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	n, got, _, _, err := c.ReadMsgUnix(p, c.oob)
	c.trash.Discard(c.oob[:max(got, 0)])
	if errors.Is(err, io.EOF) {
		err = io.EOF // as Read of net.UnixConn has it
	}
	return max(n, 0), err // -1 after an error
}

// Close implements net.Conn. It does not wait.
func (c *Conn) Close() error { return c.trash.CloseConn(c.UnixConn) }

// CloseConn closes a connection without a wait.
func (d *Disposer) CloseConn(c *net.UnixConn) error {
	raw, err := c.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { // an error: it is closed
			if !d.empty(int(fd)) {
				d.keep(int(fd))
			}
		})
	}
	return c.Close()
}

// keep lets the last descriptor of a socket be one that is closed later.
func (d *Disposer) keep(fd int) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return // without a free descriptor the close waits
	}
	d.closeLater(dup)
}

// Listener accepts Conns.
type Listener struct {
	*net.UnixListener
	trash *Disposer
}

// NewListener takes over a listener. d closes what the peers of its connections send.
func NewListener(l *net.UnixListener, d *Disposer) *Listener { return &Listener{l, d} }

// Accept implements net.Listener. Its connections are *Conn.
func (l *Listener) Accept() (net.Conn, error) {
	c, err := l.AcceptUnix()
	if err != nil {
		return nil, err
	}
	return NewConn(c, l.trash), nil
}

// Close implements net.Listener. It refuses the connections that wait to be accepted.
func (l *Listener) Close() error { return l.trash.CloseListener(l.UnixListener) }

// CloseListener closes a listener without a wait.
func (d *Disposer) CloseListener(l *net.UnixListener) error {
	raw, err := l.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { // an error: it is closed
			if !d.refuseAll(int(fd)) {
				d.keep(int(fd))
			}
		})
	}
	return l.Close()
}
