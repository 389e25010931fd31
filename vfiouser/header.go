package vfiouser

import (
	"encoding/binary"
	"fmt"
	"strconv"
)

// HeaderSize is the length of the header of each message in bytes.
const HeaderSize = 16

// Command is the command field of a message.
type Command uint16

// Commands of the protocol. C to S: sent by the VMM; S to C: by the device.
const (
	CmdVersion          Command = 1
	CmdDMAMap           Command = 2
	CmdDMAUnmap         Command = 3
	CmdDeviceGetInfo    Command = 4
	CmdGetRegionInfo    Command = 5
	CmdGetRegionIOFDs   Command = 6
	CmdGetIRQInfo       Command = 7
	CmdSetIRQs          Command = 8
	CmdRegionRead       Command = 9
	CmdRegionWrite      Command = 10
	CmdDMARead          Command = 11 // S to C
	CmdDMAWrite         Command = 12 // S to C
	CmdDeviceReset      Command = 13
	CmdRegionWriteMulti Command = 15 // 14 was DIRTY_PAGES
	CmdDeviceFeature    Command = 16
	CmdMigDataRead      Command = 17
	CmdMigDataWrite     Command = 18
)

var commandNames = [...]string{
	CmdVersion: "VERSION", CmdDMAMap: "DMA_MAP", CmdDMAUnmap: "DMA_UNMAP",
	CmdDeviceGetInfo: "DEVICE_GET_INFO", CmdGetRegionInfo: "DEVICE_GET_REGION_INFO",
	CmdGetRegionIOFDs: "DEVICE_GET_REGION_IO_FDS", CmdGetIRQInfo: "DEVICE_GET_IRQ_INFO",
	CmdSetIRQs: "DEVICE_SET_IRQS", CmdRegionRead: "REGION_READ", CmdRegionWrite: "REGION_WRITE",
	CmdDMARead: "DMA_READ", CmdDMAWrite: "DMA_WRITE", CmdDeviceReset: "DEVICE_RESET",
	CmdRegionWriteMulti: "REGION_WRITE_MULTI", CmdDeviceFeature: "DEVICE_FEATURE",
	CmdMigDataRead: "MIG_DATA_READ", CmdMigDataWrite: "MIG_DATA_WRITE",
}

// String returns the name in the specification without its VFIO_USER_ prefix.
func (c Command) String() string {
	if int(c) < len(commandNames) && commandNames[c] != "" {
		return commandNames[c]
	}
	return "COMMAND_" + strconv.Itoa(int(c))
}

// Flags is the flags field of a header.
type Flags uint32

// Flags of a header. Bits 3:0 are the type: 0 is a request.
const (
	FlagReply   Flags = 1
	FlagNoReply Flags = 1 << 4
	FlagError   Flags = 1 << 5

	flagTypeMask Flags = 0xf
)

// Header starts each message:
//
//	 0      2      4           8           12          16
//	+------+------+-----------+-----------+-----------+
//	|  ID  | cmd  |   size    |   flags   |   errno   |
//	+------+------+-----------+-----------+-----------+
//
// All fields of the protocol are little endian.
type Header struct {
	ID      uint16 // of the request, and of its reply; the requester chooses it
	Command Command
	Size    uint32 // of the whole message in bytes, this header included
	Flags   Flags
	Errno   uint32 // Linux error number; has a meaning with FlagError only
}

// IsReply reports whether the message answers a request.
func (h Header) IsReply() bool { return h.Flags&flagTypeMask == FlagReply }

// NoReply reports whether a request forbids an answer.
func (h Header) NoReply() bool { return h.Flags&FlagNoReply != 0 }

// ParseHeader reads a header from the start of b. It fails when b is shorter
// than HeaderSize, when the size field is smaller than the header itself, or
// when the type is neither request nor reply. The caller checks the upper bound
// of the size.
func ParseHeader(b []byte) (Header, int, error) {
	if len(b) < HeaderSize {
		return Header{}, 0, shortError("header", len(b), HeaderSize)
	}
	h := Header{
		ID:      binary.LittleEndian.Uint16(b),
		Command: Command(binary.LittleEndian.Uint16(b[2:])),
		Size:    binary.LittleEndian.Uint32(b[4:]),
		Flags:   Flags(binary.LittleEndian.Uint32(b[8:])),
		Errno:   binary.LittleEndian.Uint32(b[12:]),
	}
	if h.Size < HeaderSize {
		return Header{}, 0, fmt.Errorf("vfiouser: header: size %d is below %d", h.Size, HeaderSize)
	}
	if t := h.Flags & flagTypeMask; t > FlagReply {
		return Header{}, 0, fmt.Errorf("vfiouser: header: type %d is neither request nor reply", t)
	}
	return h, HeaderSize, nil
}

// Append appends the header's 16 bytes to b.
func (h Header) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, h.ID)
	b = binary.LittleEndian.AppendUint16(b, uint16(h.Command))
	b = binary.LittleEndian.AppendUint32(b, h.Size)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.Flags))
	return binary.LittleEndian.AppendUint32(b, h.Errno)
}

// readArgs reads the 32-bit fields at the start of a structure; the first is argsz.
// It fails when b or argsz is shorter than the structure's size.
func readArgs(what string, b []byte, size int, fields ...*uint32) error {
	if len(b) < size {
		return shortError(what, len(b), size)
	}
	for i, f := range fields {
		*f = binary.LittleEndian.Uint32(b[4*i:])
	}
	if n := int(*fields[0]); n < size {
		return shortError(what+": argsz", n, size)
	}
	return nil
}

// append32 appends 32-bit fields.
func append32(b []byte, fields ...uint32) []byte {
	for _, f := range fields {
		b = binary.LittleEndian.AppendUint32(b, f)
	}
	return b
}

// shortError means that a structure is longer than the available bytes.
func shortError(what string, have, want int) error {
	return fmt.Errorf("vfiouser: %s: %d bytes, want %d", what, have, want)
}

// putSize writes the length of b, a whole message, into its header.
func putSize(b []byte) { binary.LittleEndian.PutUint32(b[4:], uint32(len(b))) }
