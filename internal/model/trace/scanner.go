package trace

import (
	"bytes"
	"errors"
	"io"
)

// scanner is a window on a stream of JSON. fill discards the bytes before pos.
type scanner struct {
	r    io.Reader
	buf  []byte
	pos  int   // next byte to parse
	end  int   // buf[:end] holds data
	off  int64 // position in the stream of buf[0]
	eof  bool
	fail error // read error, nil at the end of the stream
}

const (
	firstWindow = 1 << 15 // enough for small files
	windowSize  = 1 << 20
	maxWindow   = 16 << 20 // an event larger than this counts as damaged
)

func newScanner(r io.Reader) *scanner { return &scanner{r: r, buf: make([]byte, firstWindow)} }

// where returns the stream position of the next byte.
func (s *scanner) where() int64 { return s.off + int64(s.pos) }

// rest returns the bytes that are in the window.
func (s *scanner) rest() []byte { return s.buf[s.pos:s.end] }

// fill adds at least one byte to rest. It returns false if the stream has ended
// or the window has reached maxWindow.
func (s *scanner) fill() bool {
	if s.eof {
		return false
	}
	if s.pos > 0 {
		copy(s.buf, s.buf[s.pos:s.end])
		s.off += int64(s.pos)
		s.end -= s.pos
		s.pos = 0
	}
	if s.end == len(s.buf) || s.off > 0 && len(s.buf) < windowSize {
		if len(s.buf) >= maxWindow {
			return false
		}
		s.buf = append(s.buf, make([]byte, max(len(s.buf), windowSize-len(s.buf)))...)
	}
	n, err := io.ReadAtLeast(s.r, s.buf[s.end:], len(s.buf)-s.end)
	s.end += n
	if err != nil {
		s.eof = true
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			s.fail = err
		}
	}
	return n > 0
}

// peek skips white space and returns the next byte; ok is false at the end.
func (s *scanner) peek() (c byte, ok bool) {
	for {
		for s.pos < s.end {
			if c = s.buf[s.pos]; !isSpace(c) {
				return c, true
			}
			s.pos++
		}
		if !s.fill() && s.pos == s.end {
			return 0, false
		}
	}
}

// eat consumes the next byte after white space if it is c.
func (s *scanner) eat(c byte) bool {
	if got, ok := s.peek(); !ok || got != c {
		return false
	}
	s.pos++
	return true
}

// status is the outcome of parsing a window.
type status uint8

const (
	done  status = iota
	short        // the window ends inside the value
	bad          // the input is not JSON
)

// parse calls f on a window that begins at the next byte, again with more data
// while f returns short, and consumes the bytes that f parsed.
func (s *scanner) parse(f func(b []byte) (int, status)) status {
	for {
		n, st := f(s.rest())
		if st == short && s.fill() {
			continue
		}
		if st == done {
			s.pos += n
		}
		return st
	}
}

// discard consumes one value of any size.
func (s *scanner) discard() status {
	c, ok := s.peek()
	if !ok {
		return short
	}
	if c != '{' && c != '[' && c != '"' {
		return s.parse(func(b []byte) (int, status) { return skipValue(b, 0) })
	}
	depth, inString, escaped := 0, false, false
	for {
		for s.pos < s.end {
			c := s.buf[s.pos]
			s.pos++
			switch {
			case escaped:
				escaped = false
			case inString:
				escaped = c == '\\'
				inString = c != '"'
			case c == '"':
				inString = true
			case c == '{' || c == '[':
				depth++
			case c == '}' || c == ']':
				depth--
			}
			if depth <= 0 && !inString {
				return done
			}
		}
		if !s.fill() {
			return short
		}
	}
}

func isSpace(c byte) bool { return c == ' ' || c == '\n' || c == '\t' || c == '\r' }

// skipSpace returns the index after the white space at i.
func skipSpace(b []byte, i int) int {
	for i < len(b) && isSpace(b[i]) {
		i++
	}
	return i
}

// skipString returns the index after the string that opens at b[i].
func skipString(b []byte, i int) (int, status) {
	from := i + 1
	for i = from; ; {
		q := bytes.IndexByte(b[i:], '"')
		if q < 0 {
			return 0, short
		}
		i += q + 1
		slashes := 0
		for j := i - 2; j >= from && b[j] == '\\'; j-- {
			slashes++
		}
		if slashes%2 == 0 {
			return i, done
		}
	}
}

// structural marks the bytes that skipContainer examines.
var structural = [256]bool{'"': true, '{': true, '}': true, '[': true, ']': true}

// maxDepth bounds the nesting of containers in an event.
const maxDepth = 128

// skipValue returns the index after the value that begins at b[i].
func skipValue(b []byte, i int) (int, status) {
	if i >= len(b) {
		return 0, short
	}
	switch b[i] {
	case '"':
		return skipString(b, i)
	case '{', '[':
		return skipContainer(b, i)
	}
	return skipLiteral(b, i)
}

func skipContainer(b []byte, i int) (int, status) {
	depth := 0
	for i < len(b) {
		c := b[i]
		if !structural[c] {
			i++
			continue
		}
		switch c {
		case '"':
			var st status
			if i, st = skipString(b, i); st != done {
				return 0, st
			}
			continue
		case '{', '[':
			if depth++; depth > maxDepth {
				return 0, bad
			}
		default:
			depth--
		}
		i++
		if depth == 0 {
			return i, done
		}
	}
	return 0, short
}

// skipLiteral skips a number, true, false, null, NaN or Infinity.
func skipLiteral(b []byte, i int) (int, status) {
	from := i
	for ; i < len(b); i++ {
		switch c := b[i]; {
		case c == ',' || c == '}' || c == ']' || isSpace(c):
			if i == from {
				return 0, bad
			}
			return i, done
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '-', c == '+', c == '.':
		default:
			return 0, bad
		}
		if i-from > 64 {
			return 0, bad
		}
	}
	return 0, short
}
