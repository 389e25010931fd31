package vfiouser

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// maxRefusing bounds the connections that a server refuses at one time. It closes
// further ones without an answer.
const maxRefusing = 8

var errBusy = fmt.Errorf("vfiouser: another VMM is connected: %w", unix.EBUSY)

// beginRefusal reports whether a connection that open has not accepted gets an
// answer; the caller calls refuse then.
func (s *Server) beginRefusal(sock *socket, cause error) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.refusing) == maxRefusing || errors.Is(cause, ErrServerClosed) {
		return false
	}
	s.refusing[sock] = struct{}{}
	s.wg.Add(1)
	return true
}

// refuse ends a connection. It answers VERSION with the error and waits until the
// peer has disconnected or the server is closed: QEMU aborts when the socket closes
// while it waits for that answer.
func (s *Server) refuse(ctx context.Context, sock *socket, cause error) {
	defer func() {
		sock.close()
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.refusing, sock)
		s.wg.Done()
	}()
	defer context.AfterFunc(ctx, sock.close)()
	sock.stall = s.cfg.Deadline
	fr := newFramer(sock, HeaderSize+versionSize+maxVersionJSON+1)
	defer fr.close()
	for limit := time.Now().Add(s.cfg.Deadline); time.Now().Before(limit); {
		switch m, err := fr.try(true); {
		case errors.Is(err, errWouldBlock):
		case err != nil: // as a rule the peer has disconnected
			return
		case m.Command == CmdVersion && !m.IsReply() && !m.NoReply():
			if sock.send(appendErrorReply(nil, m.ID, m.Command, errnoOf(cause))) != nil {
				return
			}
		}
	}
}
