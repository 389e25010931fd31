package vfiouser

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Conn is one connection of a VMM to a Server.
type Conn struct {
	srv   *Server
	cfg   *Config
	sock  *socket
	fr    *framer
	mem   *Memory
	irqs  interrupts
	start time.Time
	ended chan struct{} // closed when the connection is gone

	// These belong to the reading goroutine.
	negotiated bool
	msg        message // a field, because the calls by way of handlers would move a variable to the heap
	realized   bool    // the first read of the whole configuration space was seen
	moreWrites bool    // more writes follow in the same message
	mapRefused bool    // a DMA_MAP was refused
	out        []byte

	// wmu is held while a message is sent, and is taken before mu.
	wmu     sync.Mutex
	scratch []byte // answers at the deadline
	dmaOut  []byte // DMA messages

	// mu guards the fields below.
	mu      sync.Mutex
	closed  bool
	cause   error // why the server closed it
	caps    Capabilities
	open    list[Access] // not answered, oldest first
	free    freeList[Access]
	inUse   int        // accesses that the handler holds and that have not expired
	held    int        // bytes of the accesses that the handler holds, also of those that have expired
	room    *sync.Cond // inUse or held has shrunk
	timer   *time.Timer
	timerOn bool
	dma     dmaQueue
	journal journal
}

func newConn(s *Server, sock *socket) *Conn {
	c := &Conn{
		srv: s, cfg: &s.cfg, sock: sock,
		fr:    newFramer(sock, maxMessage(s.cfg.MaxData)),
		mem:   newMemory(s.cfg.MaxMaps, s.cfg.MaxMemory),
		start: time.Now(), journal: s.cfg.Journal,
		ended: make(chan struct{}),
	}
	peer := sock.peer()
	c.mem.shared = func(id fileID) error {
		return s.asker.ask(s.cfg.Deadline, func() error { return checkShared(peer, id) })
	}
	sock.stall, sock.poller.Polling = s.cfg.Deadline, s.cfg.Polling
	c.irqs.init(s.cfg.IRQs, sock.trash)
	c.room = sync.NewCond(&c.mu)
	c.timer = time.AfterFunc(time.Hour, c.expire)
	c.timer.Stop()
	return c
}

// Memory returns the table of the VMM's mappings.
func (c *Conn) Memory() *Memory { return c.mem }

// Capabilities returns the VMM's capabilities.
func (c *Conn) Capabilities() Capabilities {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.caps
}

// Close ends the connection, which QEMU shows to the guest as a device that
// answers all-ones until it is unplugged. It does not wait; Disconnected is
// called when the connection has ended.
func (c *Conn) Close() error {
	c.shut(ErrClosed)
	return nil
}

// Done is closed when the connection has ended.
func (c *Conn) Done() <-chan struct{} { return c.ended }

// shut wakes all goroutines that wait for the socket. The first cause counts.
func (c *Conn) shut(cause error) {
	c.mu.Lock()
	if c.cause == nil {
		c.cause = cause
	}
	c.closed = true
	c.room.Broadcast()
	c.mu.Unlock()
	c.sock.close()
}

// run reads messages until the connection ends, and then releases its resources.
func (c *Conn) run(ctx context.Context) error {
	c.srv.stats.connections.Add(1)
	stop := context.AfterFunc(ctx, func() { c.shut(context.Cause(ctx)) })
	err := c.readAll()
	stop()
	c.shut(err)
	c.clear()
	c.mu.Lock()
	err = c.cause
	c.mu.Unlock()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if c.negotiated {
		c.cfg.Handler.Disconnected(c, err)
	}
	if err != nil {
		c.cfg.Logger.Info("vfio-user connection broke", "err", err)
	}
	c.srv.mu.Lock()
	c.srv.cur = nil
	c.srv.stats.refused.Add(c.mem.Refused())
	c.srv.mu.Unlock()
	close(c.ended)
	return err
}

func (c *Conn) readAll() (err error) {
	if err := c.negotiate(); err != nil {
		return err
	}
	for {
		if c.msg, err = c.fr.next(); err != nil {
			return err
		}
		if len(c.journal) > 0 {
			c.recordAhead()
		}
		c.dispatch(&c.msg)
	}
}

// negotiate waits for VERSION, but no longer than the deadline: a peer that never speaks would
// keep the device from VMMs. It looks at the socket once more after that, because this process may
// have stood still.
func (c *Conn) negotiate() error {
	for over := false; !c.negotiated; {
		var err error
		switch c.msg, err = c.fr.try(true); {
		case err == nil:
			c.dispatch(&c.msg)
		case !errors.Is(err, errWouldBlock):
			return err
		}
		if over && !c.negotiated {
			return fmt.Errorf("vfiouser: the peer has not sent VERSION within %v: %w", c.cfg.Deadline, ErrTimeout)
		}
		over = time.Since(c.start) >= c.cfg.Deadline
	}
	return nil
}

// clear releases the resources of the connection.
func (c *Conn) clear() {
	c.timer.Stop()
	c.fr.close()
	c.irqs.close()
	c.failDMA(ErrClosed)
	_, _ = c.mem.remove(DMAUnmap{Flags: DMAUnmapAll})
	c.mu.Lock()
	c.journal.clear()
	c.journal = nil // the next connection has it now, or it is unmapped: late answers leave it alone
	c.mu.Unlock()
}

// sendLocked writes one message; an error ends the connection. The write lock is held.
func (c *Conn) sendLocked(b []byte, fds ...int) {
	switch err := c.sock.send(b, fds...); {
	case err == nil, errors.Is(err, net.ErrClosed):
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.shut(fmt.Errorf("vfiouser: the VMM does not read: %w", ErrTimeout))
	default:
		c.shut(err)
	}
}

// reply answers a request with the payload that appendPayload appends, unless the
// request forbids a reply. Only the reading goroutine calls it.
func (c *Conn) reply(h Header, appendPayload func(b []byte) []byte, fds ...int) {
	if h.NoReply() {
		return
	}
	c.out = Header{ID: h.ID, Command: h.Command, Flags: FlagReply}.Append(c.out[:0])
	if appendPayload != nil {
		c.out = appendPayload(c.out)
	}
	putSize(c.out)
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.sendLocked(c.out, fds...)
}

// refuse answers a request with an error.
func (c *Conn) refuse(h Header, err error) {
	c.srv.stats.errors.Add(1)
	c.cfg.Logger.Debug("vfio-user request refused", "command", h.Command.String(), "err", err)
	if h.NoReply() {
		return
	}
	c.out = appendErrorReply(c.out[:0], h.ID, h.Command, errnoOf(err))
	c.mu.Lock()
	c.journal.end(h.ID) // recordAhead does not know what will be refused
	c.mu.Unlock()
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.sendLocked(c.out)
}

func appendErrorReply(b []byte, id uint16, cmd Command, errno unix.Errno) []byte {
	return Header{ID: id, Command: cmd, Size: HeaderSize, Flags: FlagReply | FlagError, Errno: uint32(errno)}.Append(b)
}
