package vfiouser

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// firstBuffer holds the messages of one ordinary read: most are 32 to 40
// bytes, and a posted-write flood brings hundreds at once.
const firstBuffer = 64 << 10

// message is one message of the peer. body aliases the framer's buffer and is
// valid until the next call. The code that takes over fds sets it to nil; the
// framer closes the others.
type message struct {
	Header
	body []byte
	fds  []int
}

// framer cuts the stream into messages. It reads all available bytes, which
// saves a system call for each message, and assigns descriptors to messages. The
// kernel ends a read behind the part that carries descriptors, and a sender
// attaches them to the first byte of a message, so they belong to the last
// message that begins in the read.
type framer struct {
	sock *socket
	max  int // of a message in bytes
	buf  []byte
	r, w int    // unread part of buf
	pos  uint64 // of buf[r] in the stream
	got  []received
	last []int // descriptors of the message returned last
	// fresh says that ahead has not yet looked at what fill has read.
	fresh bool
}

// received are descriptors that came with a read that ended at stream position end.
type received struct {
	end uint64
	fds []int
}

func newFramer(s *socket, maxMessage int) *framer {
	return &framer{sock: s, max: maxMessage, buf: make([]byte, min(firstBuffer, maxMessage))}
}

// next waits for the next message. io.EOF is the end of the stream between two
// messages, io.ErrUnexpectedEOF inside one. An invalid header is a
// ProtocolError: the start of the next message is unknown.
func (f *framer) next() (message, error) { return f.read(waitLong) }

// try is next with a limited wait, or without a wait if block is false. It
// returns errWouldBlock when no message arrived. A peer that sends a message in small parts
// cannot hold the caller: without a wait, try reads the socket once, and otherwise
// for no longer than a wait for the first part.
func (f *framer) try(block bool) (message, error) {
	if block {
		return f.read(waitShort)
	}
	return f.read(waitNot)
}

func (f *framer) read(p howLong) (message, error) {
	f.sock.trash.Close(f.last)
	f.last = nil
	var began time.Time // of the wait for the second part
	for filled := false; ; filled = true {
		need := HeaderSize
		if f.w-f.r >= HeaderSize {
			h, _, err := ParseHeader(f.buf[f.r:f.w])
			if err != nil {
				return message{}, &ProtocolError{err.Error()}
			}
			if uint64(h.Size) > uint64(f.max) {
				return message{}, &ProtocolError{fmt.Sprintf("%v of %d bytes, at most %d", h.Command, h.Size, f.max)}
			}
			need = int(h.Size)
			if f.w-f.r >= need {
				return f.take(h), nil
			}
		}
		switch {
		case !filled || p == waitLong:
		case p == waitNot:
			return message{}, errWouldBlock
		case began.IsZero():
			began = time.Now()
		case time.Since(began) > receiveTimeout:
			return message{}, errWouldBlock
		}
		if err := f.fill(need, p); err != nil {
			return message{}, err
		}
	}
}

// take cuts the message off the buffer.
func (f *framer) take(h Header) message {
	m := message{Header: h, body: f.buf[f.r+HeaderSize : f.r+int(h.Size)]}
	f.r += int(h.Size)
	f.pos += uint64(h.Size)
	for len(f.got) > 0 && f.got[0].end <= f.pos {
		m.fds = append(m.fds, f.got[0].fds...)
		f.got = slices.Delete(f.got, 0, 1)
	}
	f.last = m.fds
	return m
}

// more reports whether another whole message has been read.
func (f *framer) more() bool {
	if f.w-f.r < HeaderSize {
		return false
	}
	h, _, err := ParseHeader(f.buf[f.r:f.w])
	return err == nil && uint64(h.Size) <= uint64(f.w-f.r)
}

// ahead returns the last access that has been read and not yet returned and that its sender
// waits for. It looks once at what a read has brought.
func (f *framer) ahead() (last message, ok bool) {
	if !f.fresh {
		return message{}, false
	}
	f.fresh = false
	for at := f.r; f.w-at >= HeaderSize; {
		h, _, err := ParseHeader(f.buf[at:f.w])
		if err != nil || uint64(h.Size) > uint64(f.w-at) {
			break
		}
		body := f.buf[at+HeaderSize : at+int(h.Size)]
		if !h.IsReply() && !h.NoReply() && h.isAccess(len(body)) {
			last, ok = message{Header: h, body: body}, true
		}
		at += int(h.Size)
	}
	return last, ok
}

// isAccess reports whether a message with a body of n bytes is what the journal records.
func (h Header) isAccess(n int) bool {
	switch h.Command {
	case CmdDeviceReset:
		return true
	case CmdRegionRead, CmdRegionWrite:
		return n >= regionAccessSize
	}
	return false
}

// replace continues with a new buffer: another goroutine uses the body of the last
// message for longer.
func (f *framer) replace() {
	b := make([]byte, len(f.buf))
	f.w = copy(b, f.buf[f.r:f.w])
	f.buf, f.r = b, 0
}

// keep passes the descriptors of the last message to the caller.
func (f *framer) keep() { f.last = nil }

// fill reads more, with room for a message of need bytes.
func (f *framer) fill(need int, p howLong) error {
	if f.r == f.w {
		f.r, f.w = 0, 0
	}
	if f.r+need > len(f.buf) {
		b := f.buf
		if need > len(b) {
			b = make([]byte, need)
		}
		f.w = copy(b, f.buf[f.r:f.w])
		f.buf, f.r = b, 0
	}
	n, fds, err := f.sock.recv(f.buf[f.w:], p)
	if err != nil {
		if errors.Is(err, io.EOF) && f.w > f.r {
			err = io.ErrUnexpectedEOF
		}
		return err
	}
	f.w += n
	f.fresh = true
	if len(fds) > 0 {
		if f.sock.trash.Full() {
			f.sock.trash.Close(fds)
			return &ProtocolError{"descriptors that cannot be closed"}
		}
		f.got = append(f.got, received{f.pos + uint64(f.w-f.r), fds})
		held := 0
		for _, g := range f.got {
			held += len(g.fds)
		}
		if held > 2*MaxFDs {
			return &ProtocolError{"more descriptors than a message may carry"}
		}
	}
	return nil
}

// close closes the descriptors that no message has taken.
func (f *framer) close() {
	f.sock.trash.Close(f.last)
	for _, g := range f.got {
		f.sock.trash.Close(g.fds)
	}
	f.last, f.got = nil, nil
}
