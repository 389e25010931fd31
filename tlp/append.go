package tlp

import "encoding/binary"

// Append appends the packet in its wire format: prefixes, header, payload and, if
// HasDigest is set, the digest. The packet must be valid ([Packet.Validate]);
// Append truncates fields that are too wide.
func (p *Packet) Append(b []byte) []byte {
	b = p.AppendHeader(b)
	if p.Type.HasData() {
		b = append(b, p.Data...)
	}
	return p.AppendDigest(b)
}

// AppendHeader appends prefixes and header without payload and digest: 12 or 16
// bytes without prefixes, at most [MaxHeader].
func (p *Packet) AppendHeader(b []byte) []byte {
	if len(p.Prefix) > 0 {
		b = append(b, p.Prefix...)
	}
	info := &types[p.Type&31]
	w0, w1, w2, w3 := p.common(info), uint32(p.Requester)<<16|uint32(p.Tag&0xff)<<8, uint32(0), uint32(0)
	switch {
	case info.class&completion != 0:
		w1 = uint32(p.Completer)<<16 | uint32(p.Status&7)<<13 | bit(p.BCM, 1<<12) | uint32(p.ByteCount)&byteCntMask
		w2 = uint32(p.Requester)<<16 | uint32(p.Tag&0xff)<<8 | uint32(p.Reserved&0x80) | uint32(p.LowerAddr&0x7f)
	case info.class&message != 0:
		w1 |= uint32(p.Code)
		w2, w3 = p.messageWords()
	case info.class&config != 0:
		w1 |= uint32(p.LastBE&0xf)<<4 | uint32(p.FirstBE&0xf)
		w2 = uint32(p.Target)<<16 | uint32(p.Reserved&0xf0)<<8 | uint32(p.Register&0xffc) | uint32(p.Reserved&3)
	default:
		w1 = p.requestWord(w1, info.class)
		low := uint32(p.Addr)&^addrLow | uint32(p.PH&addrLow)
		if w0>>24&fmt4DW != 0 {
			w2, w3 = uint32(p.Addr>>32), low
		} else {
			w2 = low
		}
	}
	b = binary.BigEndian.AppendUint64(b, uint64(w0)<<32|uint64(w1))
	if w0>>24&fmt4DW != 0 {
		return binary.BigEndian.AppendUint64(b, uint64(w2)<<32|uint64(w3))
	}
	return binary.BigEndian.AppendUint32(b, w2)
}

// common builds the first double word.
func (p *Packet) common(info *typeInfo) uint32 {
	byte0 := info.byte0
	switch {
	case info.class&message != 0:
		byte0 |= fmt4DW | uint8(p.Routing)&routingMask
	case info.class&memory != 0 && p.DW4:
		byte0 |= fmt4DW
	}
	w := uint32(byte0)<<24 | uint32(p.TC&7)<<shiftTC |
		uint32(p.Attr&3)<<shiftAttr | uint32(p.Attr&IDOrdering)<<16 |
		uint32(p.AT&3)<<shiftAT | uint32(p.Length)&lengthMask |
		uint32(p.Tag)<<14&bitT9 | uint32(p.Tag)<<11&bitT8
	return w | bit(p.LN, bitLN) | bit(p.TH, bitTH) | bit(p.HasDigest, bitTD) | bit(p.EP, bitEP)
}

// requestWord completes the second double word of a memory, I/O or atomic
// request: byte enables and steering tag.
func (p *Packet) requestWord(w uint32, class class) uint32 {
	be := uint32(p.LastBE&0xf)<<4 | uint32(p.FirstBE&0xf)
	switch {
	case !p.TH || class&memory == 0:
		return w | be
	case p.Type == MWr:
		return w&^0xff00 | uint32(p.ST)<<8 | be
	}
	return w | uint32(p.ST)
}

// messageWords builds bytes 8 to 15 of a message.
func (p *Packet) messageWords() (w2, w3 uint32) {
	if p.Routing == RouteByAddress {
		return uint32(p.Addr >> 32), uint32(p.Addr)&^addrLow | uint32(p.PH&addrLow)
	}
	w2 = binary.BigEndian.Uint32(p.MsgHeader[:])
	if p.Routing == RouteByID {
		w2 = uint32(p.Target)<<16 | w2&0xffff
	}
	return w2, binary.BigEndian.Uint32(p.MsgHeader[4:])
}

func bit(set bool, mask uint32) uint32 {
	if set {
		return mask
	}
	return 0
}
