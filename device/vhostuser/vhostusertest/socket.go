package vhostusertest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// Socket is the back end of a socket device. It joins programs of the guest with those of
// this machine as vhost-device-vsock does: a connection of the guest to port N of the host
// goes to the UNIX socket PATH_N, and a program of this machine that connects to the UNIX
// socket PATH and sends "CONNECT N\n" reaches port N of the guest, and reads "OK N\n" first.
type Socket struct {
	*Server
	cid    uint64
	path   string
	listen net.Listener
	wg     sync.WaitGroup

	// Guarded by the lock of the server.
	moved   *sync.Cond // something has changed for a stream
	conn    *Conn      // of the front end; nil: none that has started
	streams map[ports]*stream
	queue   []packet // for the guest
	next    uint32   // port for a program of this machine
}

// ports identify a stream.
type ports struct{ host, guest uint32 }

// packet is one for the guest.
type packet struct {
	Packet
	data []byte
}

const (
	// room is the number of bytes that a stream holds for a program of this machine.
	room = 256 << 10
	// firstPort is the first port of programs of this machine that connect.
	firstPort = 1 << 30
	// longestLine bounds the line of a program that connects.
	longestLine = 32
	// lineTime bounds the time for that line.
	lineTime = 20 * time.Second
)

// NewSocket makes a back end at the path of a socket, for a guest with an address, and with
// the path of UNIX sockets for programs of this machine.
func NewSocket(t testing.TB, backend string, cid uint64, path string) *Socket {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &Socket{cid: cid, path: path, listen: l, streams: map[ports]*stream{}, next: firstPort}
	newServer(t, backend, func(v *Server) {
		s.Server = v
		s.moved = sync.NewCond(&v.mu)
		v.Queues, v.Config = 3, binary.LittleEndian.AppendUint64(nil, cid)
		v.Work, v.Gone = s.work, s.gone
	})
	s.wg.Go(s.accept)
	t.Cleanup(s.Close)
	return s
}

// Close ends the back end and all streams, as its death does.
func (s *Socket) Close() {
	_ = s.listen.Close()
	s.Server.Close()
	s.Set(s.endAll)
	s.wg.Wait()
}

// gone ends all streams with the connection of the front end.
func (s *Socket) gone(c *Conn) {
	if s.conn == c {
		s.conn, s.queue = nil, nil
		s.endAll()
	}
}

func (s *Socket) endAll() {
	for _, st := range s.streams {
		s.drop(st)
	}
}

// accept takes the programs of this machine that connect to the guest.
func (s *Socket) accept() {
	for {
		c, err := s.listen.Accept()
		if err != nil {
			return
		}
		s.wg.Go(func() {
			port, ok := readLine(c)
			if !ok {
				_ = c.Close()
				return
			}
			s.Set(func() {
				if s.conn == nil { // no guest
					_ = c.Close()
					return
				}
				st := s.add(ports{s.next, port}, c)
				s.next++
				s.send(st, OpRequest, nil)
			})
		})
	}
}

// readLine reads "CONNECT PORT\n", and no byte behind it.
func readLine(c net.Conn) (port uint32, ok bool) {
	if err := c.SetReadDeadline(time.Now().Add(lineTime)); err != nil {
		return 0, false
	}
	var line []byte
	for len(line) < longestLine {
		var b [1]byte
		if _, err := c.Read(b[:]); err != nil {
			return 0, false
		}
		if b[0] == '\n' {
			_, err := fmt.Sscanf(string(line), "CONNECT %d", &port)
			return port, err == nil && c.SetReadDeadline(time.Time{}) == nil
		}
		line = append(line, b[0])
	}
	return 0, false
}

// work handles a kick: packets of the guest, or buffers for those to it.
func (s *Socket) work(q *Ring) {
	s.conn = q.Conn
	for q.Index == 1 {
		head, out, _, ok := q.Next()
		if !ok {
			break
		}
		b := bytes.Join(out, nil)
		if p, ok := ParsePacket(b); ok && p.From == s.cid && p.To == HostCID {
			s.Count++
			s.receive(p, b[HeaderSize:][:p.Len])
		}
		q.End(head, 0)
	}
	s.flush()
}

// receive takes a packet of the guest.
func (s *Socket) receive(p Packet, data []byte) {
	id := ports{p.ToPort, p.FromPort}
	st := s.streams[id]
	if p.Op == OpRequest && st == nil {
		c, err := net.Dial("unix", fmt.Sprintf("%s_%d", s.path, p.ToPort))
		if err != nil {
			s.send(&stream{id: id}, OpReset, nil)
			return
		}
		st = s.add(id, c)
		st.room, st.taken = p.Room, p.Taken
		s.send(st, OpResponse, nil)
		s.join(st)
		return
	}
	if st == nil {
		if p.Op != OpReset {
			s.send(&stream{id: id}, OpReset, nil)
		}
		return
	}
	st.room, st.taken = p.Room, p.Taken
	switch p.Op {
	case OpResponse:
		if !st.joined {
			st.held = append(st.held, fmt.Sprintf("OK %d\n", id.guest)...)
			st.extra = len(st.held)
			s.join(st)
		}
	case OpReset:
		s.drop(st)
	case OpShutdown:
		st.flags |= p.Flags
	case OpData:
		st.held = append(st.held, data...)
	case OpCreditRequest:
		s.send(st, OpCreditUpdate, nil)
	}
	s.moved.Broadcast()
}

// send queues a packet of a stream for the guest.
func (s *Socket) send(st *stream, op uint16, data []byte) {
	p := Packet{
		From: HostCID, To: s.cid, FromPort: st.id.host, ToPort: st.id.guest, Type: TypeStream, Op: op,
		Len: uint32(len(data)), Room: room, Taken: st.given,
	}
	if op == OpShutdown {
		p.Flags = noReceive | noSend
	}
	s.queue = append(s.queue, packet{p, data})
	s.flush()
}

// flush writes packets into the buffers of the guest, of which there may be none. Data that is
// longer than a buffer becomes several packets.
func (s *Socket) flush() {
	if s.conn == nil || s.conn.rings[0] == nil {
		return
	}
	q := s.conn.rings[0]
	for len(s.queue) > 0 {
		head, _, in, ok := q.Next()
		if !ok {
			return
		}
		p := &s.queue[0]
		if len(in) != 1 || len(in[0]) <= HeaderSize {
			q.End(head, 0)
			continue
		}
		part := p.Packet
		part.Len = min(p.Len, uint32(len(in[0])-HeaderSize))
		n := copy(in[0], append(part.Append(nil), p.data[:part.Len]...))
		q.End(head, uint32(n))
		p.data, p.Len = p.data[part.Len:], p.Len-part.Len
		if p.Len == 0 {
			s.queue = slices.Delete(s.queue, 0, 1)
		}
	}
}

// EndUnwritten ends a buffer for a packet to the guest without writing to it, with the length
// that it says. It needs the lock of the server.
func (s *Socket) EndUnwritten() {
	if head, _, in, ok := s.conn.rings[0].Next(); ok {
		s.conn.rings[0].End(head, HeaderSize+binary.LittleEndian.Uint32(in[0][24:]))
	}
}
