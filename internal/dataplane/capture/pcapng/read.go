package pcapng

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// ReadBlock reads the next block of a stream whole, frame included, into buf,
// which it grows where needed. At the end of the stream between two blocks the
// error is io.EOF, within one io.ErrUnexpectedEOF. Only little-endian sections
// are understood.
func ReadBlock(r io.Reader, buf []byte) (BlockType, []byte, error) {
	var head [8]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	typ, n := BlockType(binary.LittleEndian.Uint32(head[:])), binary.LittleEndian.Uint32(head[4:])
	if n < frameSize || n > MaxBlock || n%4 != 0 {
		return 0, nil, fmt.Errorf("%w: type %#x of %d bytes", ErrBlock, uint32(typ), n)
	}
	if cap(buf) < int(n) {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	copy(buf, head[:])
	if _, err := io.ReadFull(r, buf[len(head):]); err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return 0, nil, err
	}
	if _, err := checkBlock(buf); err != nil {
		return 0, nil, err
	}
	if typ == BlockSection && (n < frameSize+4 || binary.LittleEndian.Uint32(buf[8:]) != byteOrder) {
		return 0, nil, fmt.Errorf("%w: a section of another byte order", ErrBlock)
	}
	return typ, buf, nil
}
