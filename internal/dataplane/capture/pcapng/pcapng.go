// Package pcapng writes and reads capture files in the format of Wireshark
// (PCAP Next Generation, draft-ietf-opsawg-pcapng): sections, interfaces,
// packets and statistics, with nanoseconds.
//
// It is as much of the format as a capture of one program needs. Blocks are
// written little-endian; a reader of other byte orders is not here.
package pcapng

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Errors of the parsers.
var (
	ErrShort = errors.New("pcapng: truncated")
	ErrBlock = errors.New("pcapng: malformed block")
)

// BlockType is the first field of a block.
type BlockType uint32

// Types of block (section 10.1 of the draft).
const (
	BlockSection    BlockType = 0x0a0d0d0a
	BlockInterface  BlockType = 1
	BlockStatistics BlockType = 5
	BlockPacket     BlockType = 6
)

// LinkType says what the packets of an interface start with
// (https://www.tcpdump.org/linktypes.html).
type LinkType uint16

// Link types.
const (
	LinkRawIP LinkType = 101
	LinkUser0 LinkType = 147 // for private use: the reader is told what it is
)

// Sizes in bytes.
const (
	frameSize    = 12 // type and both lengths of a block
	packetFixed  = 20 // of a packet block, behind the frame's first 8 bytes
	maxOption    = math.MaxUint16
	nanoseconds  = 9 // if_tsresol: 10^-9 s
	byteOrder    = 0x1a2b3c4d
	optEnd       = 0
	optHardware  = 2 // of a section
	optOS        = 3
	optProgram   = 4
	optName      = 2 // of an interface
	optAbout     = 3
	optTimeUnit  = 9
	optFlags     = 2 // of a packet
	optDropped   = 4
	optReceived  = 4 // of statistics
	optIfDropped = 5
	// MaxBlock bounds a block that ReadBlock takes: far above what a capture
	// of TLPs has, far below what a hostile stream could make it allocate.
	MaxBlock = 1 << 20
)

// Direction of a packet, as bits 1:0 of its flags have it.
type Direction uint32

// Directions.
const (
	Unknown Direction = 0
	In      Direction = 1
	Out     Direction = 2
)

// Section describes the program that writes.
type Section struct{ Hardware, OS, Program string }

// Append appends a section header block, with which a file begins.
func (s *Section) Append(b []byte) []byte {
	start := len(b)
	b = begin(b, BlockSection)
	b = binary.LittleEndian.AppendUint32(b, byteOrder)
	b = append(b, 1, 0, 0, 0)                               // version 1.0
	b = binary.LittleEndian.AppendUint64(b, math.MaxUint64) // length of the section: not known
	b = appendText(b, optHardware, s.Hardware)
	b = appendText(b, optOS, s.OS)
	b = appendText(b, optProgram, s.Program)
	return end(appendOption(b, optEnd, nil), start)
}

// Interface describes where packets were captured. They name it by its place
// in the section, from 0.
type Interface struct {
	Link        LinkType
	SnapLen     uint32 // most bytes kept of a packet, 0: all
	Name, About string
}

// Append appends an interface description block.
func (i *Interface) Append(b []byte) []byte {
	start := len(b)
	b = begin(b, BlockInterface)
	b = binary.LittleEndian.AppendUint16(b, uint16(i.Link))
	b = append(b, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, i.SnapLen)
	b = appendText(b, optName, i.Name)
	b = appendText(b, optAbout, i.About)
	b = appendOption(b, optTimeUnit, []byte{nanoseconds})
	return end(appendOption(b, optEnd, nil), start)
}

// Packet is an enhanced packet block.
type Packet struct {
	Interface uint32
	Time      uint64 // nanoseconds since 1970
	Direction Direction
	// Dropped counts packets lost between the one before and this one.
	Dropped uint64
	// Length is that of the packet before it was cut to Data.
	Length int
	// Data is what was kept. Parse lets it alias the block.
	Data []byte
}

// Append appends the packet block.
func (p *Packet) Append(b []byte) []byte {
	start := len(b)
	return p.End(append(p.Begin(b), p.Data...), start)
}

// Begin appends the block up to its data, which the caller appends before End.
func (p *Packet) Begin(b []byte) []byte {
	b = begin(b, BlockPacket)
	b = binary.LittleEndian.AppendUint32(b, p.Interface)
	b = binary.LittleEndian.AppendUint32(b, uint32(p.Time>>32))
	b = binary.LittleEndian.AppendUint32(b, uint32(p.Time))
	return append(b, 0, 0, 0, 0, 0, 0, 0, 0) // lengths, by End
}

// End completes a block that Begin started at b[start:]. p.Length may have been
// set meanwhile; p.Data is not looked at.
func (p *Packet) End(b []byte, start int) []byte {
	const lengths = 8 + packetFixed - 8
	n := len(b) - start - 8 - packetFixed
	binary.LittleEndian.PutUint32(b[start+lengths:], uint32(n))
	binary.LittleEndian.PutUint32(b[start+lengths+4:], uint32(p.Length))
	b = pad(b, n)
	if p.Direction != Unknown {
		b = binary.LittleEndian.AppendUint32(appendOptionHead(b, optFlags, 4), uint32(p.Direction))
	}
	if p.Dropped > 0 {
		b = binary.LittleEndian.AppendUint64(appendOptionHead(b, optDropped, 8), p.Dropped)
	}
	if p.Direction != Unknown || p.Dropped > 0 {
		b = appendOptionHead(b, optEnd, 0)
	}
	return end(b, start)
}

// MaxPacketOverhead is the most that Append adds to the data of a packet.
const MaxPacketOverhead = frameSize + packetFixed + 3 + 8 + 12 + 4

// Parse reads a packet block, as ReadBlock returns it.
func (p *Packet) Parse(block []byte) error {
	*p = Packet{}
	if typ, err := checkBlock(block); err != nil {
		return err
	} else if typ != BlockPacket || len(block) < frameSize+packetFixed {
		return ErrBlock
	}
	body := block[8 : len(block)-4]
	n := int64(binary.LittleEndian.Uint32(body[12:]))
	padded := (n + 3) &^ 3
	if padded > int64(len(body)-packetFixed) {
		return ErrBlock
	}
	out := Packet{
		Interface: binary.LittleEndian.Uint32(body),
		Time:      uint64(binary.LittleEndian.Uint32(body[4:]))<<32 | uint64(binary.LittleEndian.Uint32(body[8:])),
		Length:    int(binary.LittleEndian.Uint32(body[16:])),
		Data:      body[packetFixed : packetFixed+n : packetFixed+n],
	}
	err := eachOption(body[packetFixed+padded:], func(code uint16, value []byte) {
		switch {
		case code == optFlags && len(value) == 4:
			out.Direction = Direction(binary.LittleEndian.Uint32(value) & 3)
		case code == optDropped && len(value) == 8:
			out.Dropped = binary.LittleEndian.Uint64(value)
		}
	})
	if err == nil {
		*p = out
	}
	return err
}

// Statistics tells how many packets an interface saw and how many of them are
// not in the file.
type Statistics struct {
	Interface         uint32
	Time              uint64 // nanoseconds since 1970
	Received, Dropped uint64
}

// Append appends an interface statistics block.
func (s *Statistics) Append(b []byte) []byte {
	start := len(b)
	b = begin(b, BlockStatistics)
	b = binary.LittleEndian.AppendUint32(b, s.Interface)
	b = binary.LittleEndian.AppendUint32(b, uint32(s.Time>>32))
	b = binary.LittleEndian.AppendUint32(b, uint32(s.Time))
	b = binary.LittleEndian.AppendUint64(appendOptionHead(b, optReceived, 8), s.Received)
	b = binary.LittleEndian.AppendUint64(appendOptionHead(b, optIfDropped, 8), s.Dropped)
	return end(appendOption(b, optEnd, nil), start)
}

func begin(b []byte, t BlockType) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(t))
	return append(b, 0, 0, 0, 0)
}

// end writes the length of the block that starts at b[start:] into its two places.
func end(b []byte, start int) []byte {
	n := uint32(len(b) - start + 4)
	binary.LittleEndian.PutUint32(b[start+4:], n)
	return binary.LittleEndian.AppendUint32(b, n)
}

func appendOptionHead(b []byte, code, n uint16) []byte {
	b = binary.LittleEndian.AppendUint16(b, code)
	return binary.LittleEndian.AppendUint16(b, n)
}

func appendOption(b []byte, code uint16, value []byte) []byte {
	b = appendOptionHead(b, code, uint16(len(value)))
	return pad(append(b, value...), len(value))
}

// appendText appends an option unless it is empty; what does not fit is cut off.
func appendText(b []byte, code uint16, s string) []byte {
	if s == "" {
		return b
	}
	return appendOption(b, code, []byte(s[:min(len(s), maxOption)]))
}

// pad appends the zeros behind n bytes that make them a multiple of four.
func pad(b []byte, n int) []byte {
	for ; n%4 != 0; n++ {
		b = append(b, 0)
	}
	return b
}

func eachOption(b []byte, f func(code uint16, value []byte)) error {
	for len(b) > 0 {
		if len(b) < 4 {
			return ErrBlock
		}
		code, n := binary.LittleEndian.Uint16(b), int(binary.LittleEndian.Uint16(b[2:]))
		if code == optEnd {
			return nil
		}
		padded := (n + 3) &^ 3
		if padded > len(b)-4 {
			return ErrBlock
		}
		f(code, b[4:4+n])
		b = b[4+padded:]
	}
	return nil
}

// checkBlock checks the frame of a block that stands alone in b.
func checkBlock(b []byte) (BlockType, error) {
	if len(b) < frameSize {
		return 0, ErrShort
	}
	n := binary.LittleEndian.Uint32(b[4:])
	if n%4 != 0 || uint64(n) != uint64(len(b)) || binary.LittleEndian.Uint32(b[len(b)-4:]) != n {
		return 0, fmt.Errorf("%w: its two lengths and its size differ", ErrBlock)
	}
	return BlockType(binary.LittleEndian.Uint32(b)), nil
}
