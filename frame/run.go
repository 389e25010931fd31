package frame

import "encoding/binary"

const (
	// MinRunPayload is the smallest payload of a TLP in a run that has payloads. With
	// smaller ones the header packets take less than the TLPs' own work.
	MinRunPayload = Unit
	// MaxRun is the largest number of TLPs in a run, in the largest datagram.
	MaxRun = MaxDatagram / MinRunPayload
)

// RunPacket carries a run: consecutive memory writes, completions or read requests of
// equal size, with the header of the first one. The others have the same header, except
// that a request begins where the one before ends, and that a completion or a read has
// the tag after that of the one before. Their payloads follow one another.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------+---------------+-------------------------------+
//	|  kind = 0x03  | TLP header DW |   payload length of each TLP  |  0
//	+---------------+---------------+-------------------------------+
//	|              TLP sequence number of the first TLP             |  4
//	|                                                               |  8
//	+---------------------------------------------------------------+
//	|        source node, slots, destination node, as above         | 12 ...
//	+---------------+---------------+-------------------------------+
//	|    path ID    |   reserved    |        number of TLPs         | 24
//	+---------------+---------------+-------------------------------+
//	|              header of the first TLP, 12 or 16 bytes          | 28 ...
//	+---------------------------------------------------------------+
//	|     CRC of each payload, in packets of the form Checked       |
//	+---------------------------------------------------------------+
//	|            packet CRC, in packets of the form Checked         |
//	+---------------------------------------------------------------+
//	|                         payloads ...                          |
//	+---------------------------------------------------------------+
//
// The packet CRC is CRC-32C over the TLP header and the CRCs, continued over bytes 0
// to 27.
type RunPacket struct {
	Source, Destination Endpoint
	Path                uint8
	// Seq is the number of the first TLP. The others have the next ones.
	Seq uint64
	// Count is the number of TLPs, 2 to MaxRun.
	Count int
	// PayloadLen is the payload of each TLP in bytes: 0, or a multiple of 4 from
	// MinRunPayload to MaxPayload.
	PayloadLen int
	// TLP is the header of the first TLP. It aliases the buffer given to Parse, as
	// CRCs and Payload do.
	TLP []byte
	// CRCs holds the CRC-32C of each payload, if there is one, big-endian, and HeaderCRC
	// is that of TLP.
	// Append needs them and Parse sets them, if the packet is Checked.
	CRCs      []byte
	HeaderCRC uint32
	// Payload holds all payloads. Only Parse sets it.
	Payload []byte
}

// RunPacketSize returns the size of a run packet of count TLPs with headers of n bytes
// and payloads of payload bytes.
func RunPacketSize(n, count, payload int, form Form) int {
	n += headerFixed + form.crcSize()
	if payload > 0 {
		n += count * (form.crcSize() + payload)
	}
	return n
}

// Append appends the packet without the payloads, which the caller appends.
func (p *RunPacket) Append(b []byte, form Form) []byte {
	start := len(b)
	b = append(b, byte(KindRun), byte(len(p.TLP)/4))
	b = binary.BigEndian.AppendUint16(b, uint16(p.PayloadLen))
	b = binary.BigEndian.AppendUint64(b, p.Seq)
	b = binary.BigEndian.AppendUint32(b, p.Source.Node)
	b = binary.BigEndian.AppendUint16(b, p.Source.Slot)
	b = binary.BigEndian.AppendUint16(b, p.Destination.Slot)
	b = binary.BigEndian.AppendUint32(b, p.Destination.Node)
	b = append(b, p.Path, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(p.Count))
	b = append(b, p.TLP...)
	if form == Bare {
		return b
	}
	b = append(b, p.CRCs...)
	return binary.BigEndian.AppendUint32(b, CRC(CRC(p.HeaderCRC, p.CRCs), b[start:start+headerFixed]))
}

// Parse reads the run packet at the start of b and returns its size. On error *p is
// the zero value. The caller checks that the TLP header is one that a run may have.
func (p *RunPacket) Parse(b []byte, form Form) (n int, err error) {
	*p = RunPacket{}
	if len(b) < headerFixed {
		return 0, ErrShort
	}
	hdr, count := int(b[1])*4, int(binary.BigEndian.Uint16(b[26:]))
	payload := int(binary.BigEndian.Uint16(b[2:]))
	if Kind(b[0]) != KindRun || hdr != minTLPHeader && hdr != minTLPHeader+4 ||
		payload != 0 && payload < MinRunPayload || payload > MaxPayload || payload%4 != 0 || count < 2 || count > MaxRun ||
		b[24] >= MaxPaths || b[25] != 0 {
		return 0, ErrField
	}
	n = RunPacketSize(hdr, count, payload, form)
	if len(b) < n {
		return 0, ErrShort
	}
	crcs := headerFixed + hdr
	data := b[n-count*payload : n : n]
	end := n - len(data) - form.crcSize()
	if form == Checked {
		headerCRC := CRC(0, b[headerFixed:crcs])
		if CRC(CRC(headerCRC, b[crcs:end]), b[:headerFixed]) != binary.BigEndian.Uint32(b[end:]) {
			return 0, ErrCRC
		}
		p.HeaderCRC = headerCRC
		for rest, want := data, b[crcs:end]; len(rest) > 0; rest, want = rest[payload:], want[CRCSize:] {
			if CRC(0, rest[:payload]) != binary.BigEndian.Uint32(want) {
				p.HeaderCRC = 0
				return 0, ErrCRC
			}
		}
	}
	p.Source = Endpoint{Node: binary.BigEndian.Uint32(b[12:]), Slot: binary.BigEndian.Uint16(b[16:])}
	p.Destination = Endpoint{Node: binary.BigEndian.Uint32(b[20:]), Slot: binary.BigEndian.Uint16(b[18:])}
	p.Path, p.Seq = b[24], binary.BigEndian.Uint64(b[4:])
	p.Count, p.PayloadLen = count, payload
	p.TLP, p.CRCs, p.Payload = b[headerFixed:crcs:crcs], b[crcs:end:end], data
	return n, nil
}
