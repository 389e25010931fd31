package capture

import (
	"encoding/binary"
	"errors"

	"github.com/dxpu-project/dxpu/frame"
	"github.com/dxpu-project/dxpu/internal/dataplane/capture/pcapng"
)

// HeaderSize is the size of the header of a record in bytes.
const HeaderSize = 24

// headerVersion is the version of the record.
const headerVersion = 1

// Header stands before the TLP in a record:
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
// R (bit 0) says that the TLP was received from the network. A path is not
// told: it belongs to datagrams, and a TLP may travel by several.
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

// ParseHeader reads the header of a record and returns its size. Bits that this
// version reserves are not looked at.
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

// local is the end of the binding that is in this proxy.
func (h *Header) local() frame.Endpoint {
	if h.Received {
		return h.Destination
	}
	return h.Source
}

func (h *Header) pcapng() pcapng.Direction {
	if h.Received {
		return pcapng.In
	}
	return pcapng.Out
}
