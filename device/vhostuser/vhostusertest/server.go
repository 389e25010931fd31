// Package vhostusertest has small back ends of vhost-user, for tests: a disk whose rules a
// test can break, and a socket device.
package vhostusertest

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Requests of the protocol that tests look at.
const (
	GetFeatures = 1
	GetProtocol = 15
	GetQueueNum = 17
	SetKick     = 12
	GetConfig   = 24

	setMem  = 5
	setAddr = 9
	getBase = 11
	setCall = 13
)

const (
	// Base is the address of the front end's memory.
	base         = 1 << 30
	protocolBits = 1<<0 | 1<<9 // several virtqueues, configuration
	features     = 1<<30 | 1<<32 | 1<<9
	queueSize    = 256
)

// Server is a back end: without changes a disk of zeros that answers each request with
// success.
type Server struct {
	t      testing.TB
	listen net.Listener
	wg     sync.WaitGroup

	mu sync.Mutex // guards the fields below, and the virtqueues of the connections
	// Message handles a message before the server does. It returns an answer, or nil, and
	// whether that was all. It is called without the lock.
	Message func(c *Conn, request uint32, payload []byte) (reply []byte, handled bool)
	Work    func(q *Ring)  // handles a kick
	Gone    func(c *Conn)  // handles the end of a connection, before its memory is unmapped
	Queues  uint64         // virtqueues
	Config  []byte         // first bytes of the device configuration
	Count   int            // requests that Serve has seen, of all connections
	conns   map[*Conn]bool // open ones
	closed  bool           // Close was called
}

// Conn is a connection of a front end.
type Conn struct {
	*Server
	socket  *net.UnixConn
	memory  []byte
	rings   [16]*Ring
	call    int
	stopped chan struct{} // closed at the end
	wg      sync.WaitGroup
}

// NewServer makes a back end with a socket at path, until Close or the end of the test.
func NewServer(t testing.TB, path string) *Server {
	t.Helper()
	return newServer(t, path, func(*Server) {})
}

// newServer is NewServer with a change before the first connection.
func newServer(t testing.TB, path string, change func(s *Server)) *Server {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{
		t: t, listen: l, Queues: 1, Config: word(1 << 20), conns: map[*Conn]bool{},
		Work: func(q *Ring) { q.Serve() }, Gone: func(*Conn) {},
	}
	change(s)
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conn := &Conn{Server: s, socket: c.(*net.UnixConn), call: -1, stopped: make(chan struct{})}
			s.Set(func() {
				s.conns[conn] = true
				if s.closed {
					conn.Close()
				}
			})
			s.wg.Go(conn.run)
		}
	})
	t.Cleanup(s.Close)
	return s
}

// Path returns the path of the socket.
func (s *Server) Path() string { return s.listen.Addr().String() }

// Set changes the server while it runs.
func (s *Server) Set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// Close ends the server and its connections, as its death does. It can be called again.
func (s *Server) Close() {
	_ = s.listen.Close()
	s.Set(func() {
		s.closed = true
		for c := range s.conns {
			c.Close()
		}
	})
	s.wg.Wait()
}

// Close ends the connection.
func (c *Conn) Close() { _ = c.socket.Close() }

func (c *Conn) run() {
	defer c.end()
	for {
		head, oob := make([]byte, 12), make([]byte, 64)
		n, oobn, _, _, err := c.socket.ReadMsgUnix(head, oob)
		if err != nil || n != len(head) {
			return
		}
		payload := make([]byte, binary.NativeEndian.Uint32(head[8:]))
		if _, err := io.ReadFull(c.socket, payload); err != nil {
			return
		}
		request := binary.NativeEndian.Uint32(head)
		fd := descriptor(oob[:oobn])
		reply, handled := c.special(request, payload)
		if !handled {
			c.Set(func() { reply = c.answer(request, payload, fd) })
		}
		if reply != nil && !c.Reply(request, reply) {
			return
		}
	}
}

// end stops the virtqueues and gives the memory back.
func (c *Conn) end() {
	c.Close()
	close(c.stopped)
	c.wg.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.Gone(c)
	delete(c.conns, c)
	if c.memory != nil {
		_ = unix.Munmap(c.memory)
	}
	if c.call >= 0 {
		_ = unix.Close(c.call)
	}
}

func (c *Conn) special(request uint32, payload []byte) ([]byte, bool) {
	c.mu.Lock()
	f := c.Message
	c.mu.Unlock()
	if f == nil {
		return nil, false
	}
	return f(c, request, payload)
}

// Reply sends an answer, and reports whether the connection has taken it.
func (c *Conn) Reply(request uint32, payload []byte) bool {
	b := binary.NativeEndian.AppendUint32(nil, request)
	b = binary.NativeEndian.AppendUint32(b, 5)
	b = binary.NativeEndian.AppendUint32(b, uint32(len(payload)))
	_, err := c.socket.Write(append(b, payload...))
	return err == nil
}

func descriptor(oob []byte) int {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(messages) == 0 {
		return -1
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil || len(fds) == 0 {
		return -1
	}
	return fds[0]
}

func word(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }

// answer carries out a message with the lock held.
func (c *Conn) answer(request uint32, payload []byte, fd int) []byte {
	e := binary.NativeEndian
	switch request {
	case GetFeatures:
		return word(features)
	case GetProtocol:
		return word(protocolBits)
	case GetQueueNum:
		return word(c.Queues)
	case GetConfig:
		copy(payload[12:], c.Config)
		return payload
	case setMem:
		c.share(fd, int(e.Uint64(payload[16:])))
	case setAddr:
		at := func(i int) int { return int(e.Uint64(payload[i:]) - base) }
		c.rings[payload[0]] = &Ring{
			Conn: c, Index: int(payload[0]), desc: at(8), used: at(16), avail: at(24), kick: -1, stop: make(chan struct{}),
		}
	case setCall:
		c.call = fd
	case SetKick:
		q := c.rings[payload[0]]
		q.kick = fd
		c.wg.Go(q.run)
	case getBase:
		q := c.rings[payload[0]]
		close(q.stop)
		c.rings[payload[0]] = nil
		return payload[:8]
	}
	return nil
}

// share takes the memory of a session, which must not have a byte of an earlier one.
func (c *Conn) share(fd, size int) {
	memory, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		c.t.Errorf("mmap: %v", err)
	}
	_ = unix.Close(fd)
	if c.memory != nil {
		_ = unix.Munmap(c.memory)
	}
	c.memory = memory
	for at, b := range memory {
		if b != 0 {
			c.t.Errorf("the memory of a session has %#x of an earlier one at %#x", b, at)
			break
		}
	}
}
