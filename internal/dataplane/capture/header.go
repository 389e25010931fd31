package capture

import (
	"encoding/binary"
	"errors"

	"github.com/dxpu-project/dxpu/frame"
)

// HeaderSize is the size of a Header in bytes.
const HeaderSize = 24

// headerVersion is the version of the record format.
const headerVersion = 1

// Header precedes the TLP in a record:
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+---------------+-------------------------------+
//	|  version = 1  |   flags (R)   |           reserved            |  0
//	+---------------+---------------+-------------------------------+
//	|                          binding ID                           |  4
//	+---------------------------------------------------------------+
//	|                             epoch                             |  8
//	+---------------------------------------------------------------+
//	|                          source node                          | 12
//	+-------------------------------+-------------------------------+
//	|          source slot          |       destination slot        | 16
//	+-------------------------------+-------------------------------+
//	|                       destination node                        | 20
//	+---------------------------------------------------------------+
//
// R (bit 0) is set for a TLP that was received from the network. The record
// names no path: paths belong to datagrams, and a TLP may travel by several.
type Header struct {
	Received            bool
	Binding, Epoch      uint32
	Source, Destination frame.Endpoint
}

const flagReceived = 1 << 0

// Errors of ParseHeader.
var (
	ErrShort   = errors.New("capture: truncated")
	ErrVersion = errors.New("capture: unknown version of the record")
)

// Append appends the encoded header to b.
func (h *Header) Append(b []byte) []byte {
	var flags byte
	if h.Received {
		flags = flagReceived
	}
	b = append(b, headerVersion, flags, 0, 0)
	b = binary.BigEndian.AppendUint32(b, h.Binding)
	b = binary.BigEndian.AppendUint32(b, h.Epoch)
	b = binary.BigEndian.AppendUint32(b, h.Source.Node)
	b = binary.BigEndian.AppendUint16(b, h.Source.Slot)
	b = binary.BigEndian.AppendUint16(b, h.Destination.Slot)
	return binary.BigEndian.AppendUint32(b, h.Destination.Node)
}

// ParseHeader reads the header of a record and returns its size. It ignores
// reserved bits.
func ParseHeader(b []byte) (h Header, n int, err error) {
	if len(b) < HeaderSize {
		return Header{}, 0, ErrShort
	}
	if b[0] != headerVersion {
		return Header{}, 0, ErrVersion
	}
	return Header{
		Received:    b[1]&flagReceived != 0,
		Binding:     binary.BigEndian.Uint32(b[4:]),
		Epoch:       binary.BigEndian.Uint32(b[8:]),
		Source:      frame.Endpoint{Node: binary.BigEndian.Uint32(b[12:]), Slot: binary.BigEndian.Uint16(b[16:])},
		Destination: frame.Endpoint{Node: binary.BigEndian.Uint32(b[20:]), Slot: binary.BigEndian.Uint16(b[18:])},
	}, HeaderSize, nil
}

// local returns the end of the binding that is in this proxy.
func (h *Header) local() frame.Endpoint {
	if h.Received {
		return h.Destination
	}
	return h.Source
}
