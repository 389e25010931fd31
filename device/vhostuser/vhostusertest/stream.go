package vhostusertest

import "net"

// stream is a connection of a program of the guest with one of this machine. Its fields are
// guarded by the lock of the server.
type stream struct {
	id     ports
	c      net.Conn // to the program of this machine
	joined bool     // the guest has it, too
	ended  bool

	held        []byte // for the program
	extra       int    // bytes of held that are not the guest's
	given       uint32 // bytes of the guest that the program has
	flags       uint32 // OpShutdown of the guest
	room, taken uint32 // of the guest
	sent        uint32 // bytes to the guest
}

func (s *Socket) add(id ports, c net.Conn) *stream {
	st := &stream{id: id, c: c}
	s.streams[id] = st
	return st
}

// drop ends a stream.
func (s *Socket) drop(st *stream) {
	st.ended = true
	delete(s.streams, st.id)
	_ = st.c.Close()
	s.moved.Broadcast()
}

// join starts the copying of a stream.
func (s *Socket) join(st *stream) {
	st.joined = true
	s.wg.Go(func() { s.toProgram(st) })
	s.wg.Go(func() { s.toGuest(st) })
}

// toProgram copies the data of the guest to the program, until the guest ends the stream.
func (s *Socket) toProgram(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !st.ended {
		if len(st.held) == 0 {
			if st.flags&noSend != 0 {
				s.send(st, OpReset, nil)
				s.drop(st)
				return
			}
			s.moved.Wait()
			continue
		}
		data, extra := st.held, st.extra
		st.held, st.extra = nil, 0
		s.mu.Unlock()
		_, err := st.c.Write(data)
		s.mu.Lock()
		if st.ended {
			return
		}
		if err != nil {
			s.send(st, OpReset, nil)
			s.drop(st)
			return
		}
		st.given += uint32(len(data) - extra)
		s.send(st, OpCreditUpdate, nil)
	}
}

// toGuest copies the data of the program to the guest, as much as the guest has room for.
func (s *Socket) toGuest(st *stream) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !st.ended {
		free := int64(st.room) - int64(st.sent-st.taken)
		if free <= 0 {
			s.moved.Wait()
			continue
		}
		data := make([]byte, min(free, 16<<10))
		s.mu.Unlock()
		n, err := st.c.Read(data)
		s.mu.Lock()
		if st.ended {
			return
		}
		if err != nil {
			s.send(st, OpShutdown, nil)
			return
		}
		st.sent += uint32(n)
		s.send(st, OpData, data[:n])
	}
}
