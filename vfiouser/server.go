package vfiouser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Server serves one device to one VMM at a time.
type Server struct {
	cfg   Config
	stats counters
	trash Disposer // of all connections
	asker asker    // likewise

	// mu guards the fields below.
	mu        sync.Mutex
	draining  bool // Shutdown was called
	closed    bool
	listeners map[*net.UnixListener]struct{}
	cur       *Conn
	refusing  map[*socket]struct{} // connections that are being refused
	wg        sync.WaitGroup       // Serve and ServeConn calls, and connections
}

// NewServer checks the configuration.
func NewServer(cfg Config) (*Server, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	return &Server{cfg: cfg, listeners: map[*net.UnixListener]struct{}{}, refusing: map[*socket]struct{}{}}, nil
}

// Listen makes the socket that a VMM connects to. It replaces a socket file
// without a listener; closing the listener removes the file. Call it only when
// the device can answer: QEMU crashes when the device fails while QEMU realizes
// it, and does not retry.
func Listen(path string) (*net.UnixListener, error) {
	addr := &net.UnixAddr{Name: path, Net: "unix"}
	if fi, err := os.Lstat(path); err == nil && fi.Mode()&os.ModeSocket != 0 {
		c, err := net.DialUnix("unix", nil, addr)
		if err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("vfiouser: listen %s: %w", path, unix.EADDRINUSE)
		}
		if errors.Is(err, unix.ECONNREFUSED) {
			_ = os.Remove(path)
		}
	}
	ln, err := net.ListenUnix("unix", addr)
	if err != nil {
		return nil, fmt.Errorf("vfiouser: %w", err)
	}
	ln.SetUnlinkOnClose(true)
	return ln, nil
}

// Serve accepts connections until ctx ends or the server is closed; it closes
// ln, ends the connection and waits for it. It refuses a second connection with
// EBUSY. The error is ctx's, ErrServerClosed, or
// that of a listener that failed or was closed.
func (s *Server) Serve(ctx context.Context, ln *net.UnixListener) error {
	defer s.trash.CloseListener(ln)
	s.mu.Lock()
	if s.draining || s.closed {
		s.mu.Unlock()
		return ErrServerClosed
	}
	s.listeners[ln] = struct{}{}
	s.wg.Add(1)
	s.mu.Unlock()
	defer s.wg.Done()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.listeners, ln)
	}()

	ctx, cancel := context.WithCancelCause(ctx)
	var conns sync.WaitGroup
	defer conns.Wait()
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { _ = s.trash.CloseListener(ln) })()
	for {
		c, err := ln.AcceptUnix()
		switch {
		case err == nil:
			s.admit(ctx, &conns, c)
			continue
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ECONNABORTED):
			s.cfg.Logger.Warn("vfio-user accept failed", "err", err)
			select { // until descriptors are free
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		s.mu.Lock()
		draining, closed := s.draining, s.closed
		s.mu.Unlock()
		switch {
		case draining:
			conns.Wait() // before cancel ends them
			return ErrServerClosed
		case closed:
			return ErrServerClosed
		}
		return err
	}
}

// ServeConn serves one connection and blocks until it ends. The server closes nc.
func (s *Server) ServeConn(ctx context.Context, nc *net.UnixConn) error {
	sock, err := newSocket(nc, &s.trash)
	if err != nil {
		return errors.Join(err, s.trash.CloseConn(nc))
	}
	c, err := s.open(ctx, sock)
	switch {
	case err == nil:
	case s.beginRefusal(sock, err):
		s.refuse(ctx, sock, err)
		return err
	default:
		sock.close()
		return err
	}
	defer s.wg.Done()
	return c.run(ctx)
}

// admit starts the connection, or refuses it.
func (s *Server) admit(ctx context.Context, conns *sync.WaitGroup, nc *net.UnixConn) {
	sock, err := newSocket(nc, &s.trash)
	if err != nil {
		s.cfg.Logger.Warn("vfio-user connection lost", "err", errors.Join(err, s.trash.CloseConn(nc)))
		return
	}
	c, err := s.open(ctx, sock)
	switch {
	case err == nil:
		conns.Go(func() {
			defer s.wg.Done()
			err := c.run(ctx)
			s.cfg.Logger.Debug("vfio-user connection ended", "err", err)
		})
		return
	case s.beginRefusal(sock, err):
		conns.Go(func() { s.refuse(ctx, sock, err) })
	default:
		sock.close()
	}
	s.cfg.Logger.Warn("vfio-user connection refused", "err", err)
}

// open makes the connection the current one. A VMM that unplugs a device and
// plugs it in again may connect before the server sees the end of the first
// connection, so open waits for that end.
func (s *Server) open(ctx context.Context, sock *socket) (*Conn, error) {
	if old := s.Conn(); old != nil && old.sock.hungUp() {
		select {
		case <-old.ended:
		case <-ctx.Done():
		case <-time.After(s.cfg.Deadline):
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.draining, s.closed:
		return nil, ErrServerClosed
	case s.cur != nil:
		return nil, errBusy
	case s.trash.Full():
		return nil, fmt.Errorf("vfiouser: descriptors of an earlier connection cannot be closed: %w", unix.EBUSY)
	}
	s.cur = newConn(s, sock)
	s.wg.Add(1)
	return s.cur, nil
}

// Conn returns the open connection, or nil.
func (s *Server) Conn() *Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur
}

// Drain closes the listeners and refuses further connections. The present one
// goes on.
func (s *Server) Drain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.draining = true
	s.closeListenersLocked()
}

// Shutdown drains the server, waits until the VMM has disconnected or ctx has
// ended, and closes it. Handlers may not call it.
func (s *Server) Shutdown(ctx context.Context) error {
	s.Drain()
	if cur := s.Conn(); cur != nil {
		select {
		case <-cur.ended:
		case <-ctx.Done():
		}
	}
	return s.Close()
}

func (s *Server) closeListenersLocked() {
	for ln := range s.listeners {
		_ = s.trash.CloseListener(ln)
	}
}

// Close closes the listeners and all connections and returns when Serve and
// ServeConn have returned. Handlers may not call it.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	s.closeListenersLocked()
	for sock := range s.refusing {
		sock.close()
	}
	cur := s.cur
	s.mu.Unlock()
	if cur != nil {
		cur.shut(ErrServerClosed)
	}
	s.wg.Wait()
	return nil
}

// Stats are counts since NewServer.
type Stats struct {
	Reads, Writes, Posted uint64 // region accesses by kind; Posted are writes without a reply
	Failed                uint64 // accesses that the handler failed or that are outside the regions
	Expired               uint64 // accesses answered at the deadline
	Late                  uint64 // answers that came after it and were dropped
	Errors                uint64 // other requests answered with an error
	Unsolicited           uint64 // replies that answer nothing
	DMAMessages           uint64 // DMA messages sent
	DMAErrors             uint64 // of those, answered with an error
	Connections, Refused  uint64 // connections served, DMA accesses refused by the table
}

type counters struct {
	reads, writes, posted, failed, expired, late, errors, unsolicited atomic.Uint64
	dmaMessages, dmaErrors, connections, refused                      atomic.Uint64
}

// Stats returns the counters. They are advisory: each is read separately.
func (s *Server) Stats() Stats {
	c := &s.stats
	st := Stats{
		Reads: c.reads.Load(), Writes: c.writes.Load(), Posted: c.posted.Load(), Failed: c.failed.Load(),
		Expired: c.expired.Load(), Late: c.late.Load(), Errors: c.errors.Load(), Unsolicited: c.unsolicited.Load(),
		DMAMessages: c.dmaMessages.Load(), DMAErrors: c.dmaErrors.Load(), Connections: c.connections.Load(),
		Refused: c.refused.Load(),
	}
	if cur := s.Conn(); cur != nil {
		st.Refused += cur.mem.Refused()
	}
	return st
}
