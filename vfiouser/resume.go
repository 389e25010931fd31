package vfiouser

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// JournalSize is the length of Config.Journal in bytes.
const JournalSize = HeaderSize + regionAccessSize

// journal records the access that waits for its answer, or will when the requests before
// it have been served, in memory that outlives the
// process: its ID and command, which are 0 while there is none, and the rest of the
// request. VMMs wait for one access at a time. The last write makes a record valid, and the first one of an answer makes
// it invalid: a second answer would end the connection. Conn.mu guards it.
type journal []byte

func (j journal) begin(id uint16, cmd Command, request []byte) {
	if len(j) == 0 {
		return
	}
	copy(j[HeaderSize:JournalSize], request)
	binary.LittleEndian.PutUint32(j, uint32(id)|uint32(cmd)<<16)
}

func (j journal) end(id uint16) {
	if len(j) > 0 && binary.LittleEndian.Uint16(j) == id {
		j.clear()
	}
}

// clear removes the record of a connection that has ended.
func (j journal) clear() {
	if len(j) > 0 {
		binary.LittleEndian.PutUint32(j, 0)
	}
}

// empty reports whether there is no record.
func (j journal) empty() bool { return len(j) == 0 || binary.LittleEndian.Uint32(j) == 0 }

// pending returns the recorded request, as a read of the same length where it is a
// write.
func (j journal) pending() (message, bool) {
	if j.empty() {
		return message{}, false
	}
	m := message{Header: Header{ID: binary.LittleEndian.Uint16(j), Command: Command(binary.LittleEndian.Uint16(j[2:]))}}
	m.body = append(m.body, j[HeaderSize:JournalSize]...)
	return m, true
}

// recordAhead records an access that has been read behind the present message: that message
// may wait, as a write does while the link is full.
func (c *Conn) recordAhead() {
	m, ok := c.fr.ahead()
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.journal.empty() {
		c.journal.begin(m.ID, m.Command, m.body)
	}
}

// File returns a duplicate of the connection's socket, for a process that keeps the
// connection when this one has died; see Server.Resume.
func (c *Conn) File() (*os.File, error) {
	fd, ok := c.sock.fd.Use()
	if !ok {
		return nil, ErrClosed
	}
	defer c.sock.fd.Done()
	dup, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("vfiouser: duplicate the socket: %w", err)
	}
	return os.NewFile(uintptr(dup), "vfio-user"), nil
}

// Resume serves a connection that a process has left which was killed, and
// blocks until it ends. The VMM has negotiated; its mappings and events are lost with
// the process. Resume answers the request in Config.Journal first. A connection of which
// the process had read a part of a message ends with a ProtocolError. The server
// closes nc.
func (s *Server) Resume(ctx context.Context, nc *net.UnixConn) error {
	sock, err := newSocket(nc, &s.trash)
	if err != nil {
		return errors.Join(err, s.trash.CloseConn(nc))
	}
	c, err := s.open(ctx, sock)
	if err != nil {
		sock.close()
		return err
	}
	defer s.wg.Done()
	c.negotiated, c.realized = true, true
	c.cfg.Handler.Connected(c)
	if m, ok := c.journal.pending(); ok {
		c.answerPending(&m)
	}
	return c.run(ctx)
}

// answerPending answers a request of the journal.
func (c *Conn) answerPending(m *message) {
	c.journal.end(m.ID)
	switch m.Command {
	case CmdRegionRead, CmdDeviceReset:
		if m.Command == CmdDeviceReset {
			m.body = nil
		}
		c.dispatch(m)
	case CmdRegionWrite:
		c.reply(m.Header, func(b []byte) []byte { return append(b, m.body...) })
	}
}
