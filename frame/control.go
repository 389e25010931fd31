package frame

import (
	"encoding/binary"
	"math"
	"time"
)

const (
	ackFixed  = 28 // of an acknowledgement, before the further ranges
	rangeSize = 8
	pingFixed = 4 // kind, three zero bytes
	// closeFixed is the size of a close packet without its CRC: kind, zero, reason
	// (16 bits).
	closeFixed = 4
	// MaxAckRanges is the number of ranges of one acknowledgement.
	MaxAckRanges = 32
)

// Range is a run of datagram numbers, both ends included.
type Range struct{ First, Last uint64 }

// Ack acknowledges datagrams of one path and grants credit.
//
//	+---------------+---------------+---------------+---------------+
//	|  kind = 0x10  |    path ID    | further ranges|    marked     |  0
//	+---------------+---------------+---------------+---------------+
//	|                    delay in nanoseconds                       |  4
//	+---------------------------------------------------------------+
//	|                    largest number received                    |  8
//	|                                                               | 12
//	+---------------------------------------------------------------+
//	|                            limit                              | 16
//	|                                                               | 20
//	+---------------------------------------------------------------+
//	|          numbers in the first range (down from largest)       | 24
//	+---------------------------------------------------------------+
//	|  numbers missing below  |  then numbers received, per range   | 28 ...
//	+---------------------------------------------------------------+
//	|                          packet CRC                           |
//	+---------------------------------------------------------------+
type Ack struct {
	Path uint8
	// Marked is the number of datagrams of the path that arrived with the mark of a
	// congested network (CE, RFC 3168), modulo 256. It is 0 before version 5.
	Marked uint8
	// Delay is the time between the arrival of the largest number and the
	// sending of this packet; encoded up to 4.29 s.
	Delay time.Duration
	// Limit is the credit: the sum of payload length + TLPCost over all TLPs of
	// the direction since the first must not exceed it. It never decreases.
	Limit uint64
	// Ranges are the numbers received, highest first, with at least one missing
	// number between two ranges. Count is the number of ranges, at least 1.
	Ranges [MaxAckRanges]Range
	Count  int
}

// Size returns the number of bytes that Append appends.
func (a *Ack) Size(form Form) int { return AckSize(a.Count, form) }

// AckSize returns the size of an acknowledgement with n ranges.
func AckSize(n int, form Form) int { return ackFixed + (n-1)*rangeSize + form.crcSize() }

// Append appends the encoded packet to b. A run or gap longer than 2^32-1 numbers
// ends the list; the packet does not acknowledge the numbers below it.
func (a *Ack) Append(b []byte, form Form) []byte {
	start := len(b)
	b = append(b, byte(KindAck), a.Path, 0, a.Marked)
	b = binary.BigEndian.AppendUint32(b, uint32(min(max(a.Delay, 0), math.MaxUint32)))
	b = binary.BigEndian.AppendUint64(b, a.Ranges[0].Last)
	b = binary.BigEndian.AppendUint64(b, a.Limit)
	first := min(a.Ranges[0].Last-a.Ranges[0].First, math.MaxUint32-1)
	b = binary.BigEndian.AppendUint32(b, uint32(first+1))
	low, n := a.Ranges[0].Last-first, 0
	for _, r := range a.Ranges[1:a.Count] {
		gap, count := low-r.Last-1, r.Last-r.First
		if gap > math.MaxUint32 || count >= math.MaxUint32 {
			break
		}
		b = binary.BigEndian.AppendUint32(b, uint32(gap))
		b = binary.BigEndian.AppendUint32(b, uint32(count+1))
		low = r.First
		n++
	}
	b[start+2] = byte(n)
	return appendCRC(b, start, form)
}

// Parse reads the acknowledgement at the start of b and returns its size. On
// error *a is not meaningful.
func (a *Ack) Parse(b []byte, form Form) (n int, err error) {
	a.Count = 0
	if len(b) < ackFixed {
		return 0, ErrShort
	}
	count := 1 + int(b[2])
	if Kind(b[0]) != KindAck || b[1] >= MaxPaths || count > MaxAckRanges {
		return 0, ErrField
	}
	n = AckSize(count, form)
	if err := checkCRC(b, n, form); err != nil {
		return 0, err
	}
	a.Path, a.Marked = b[1], b[3]
	a.Delay = time.Duration(binary.BigEndian.Uint32(b[4:]))
	last := binary.BigEndian.Uint64(b[8:])
	a.Limit = binary.BigEndian.Uint64(b[16:])
	have := uint64(binary.BigEndian.Uint32(b[24:]))
	for i := 0; ; i++ {
		if have == 0 || have-1 > last {
			return 0, ErrField
		}
		first := last - (have - 1)
		a.Ranges[i] = Range{First: first, Last: last}
		if i == count-1 {
			break
		}
		at := ackFixed + i*rangeSize
		gap := uint64(binary.BigEndian.Uint32(b[at:]))
		have = uint64(binary.BigEndian.Uint32(b[at+4:]))
		if gap == 0 || gap+1 > first {
			return 0, ErrField
		}
		last = first - gap - 1
	}
	a.Count = count
	return n, nil
}

// PingSize returns the size of a ping packet: kind, three zero bytes, packet CRC. A
// ping has no content; it asks for an acknowledgement.
func PingSize(form Form) int { return pingFixed + form.crcSize() }

// AppendPing appends a ping packet to b.
func AppendPing(b []byte, form Form) []byte {
	start := len(b)
	return appendCRC(append(b, byte(KindPing), 0, 0, 0), start, form)
}

// ParsePing reads the ping packet at the start of b and returns its size.
func ParsePing(b []byte, form Form) (n int, err error) {
	n = PingSize(form)
	if len(b) < n {
		return 0, ErrShort
	}
	if Kind(b[0]) != KindPing || b[1] != 0 || b[2] != 0 || b[3] != 0 {
		return 0, ErrField
	}
	if err := checkCRC(b, n, form); err != nil {
		return 0, err
	}
	return n, nil
}

// CloseSize returns the size of a close packet: kind, zero, reason (16 bits), packet
// CRC.
func CloseSize(form Form) int { return closeFixed + form.crcSize() }

// AppendClose appends a close packet to b. The caller defines the reasons.
func AppendClose(b []byte, reason uint16, form Form) []byte {
	start := len(b)
	return appendCRC(append(b, byte(KindClose), 0, byte(reason>>8), byte(reason)), start, form)
}

// ParseClose reads the close packet at the start of b and returns its size.
func ParseClose(b []byte, form Form) (reason uint16, n int, err error) {
	n = CloseSize(form)
	if len(b) < n {
		return 0, 0, ErrShort
	}
	if Kind(b[0]) != KindClose || b[1] != 0 {
		return 0, 0, ErrField
	}
	if err := checkCRC(b, n, form); err != nil {
		return 0, 0, err
	}
	return binary.BigEndian.Uint16(b[2:]), n, nil
}

// appendCRC appends the CRC of a packet that begins at start.
func appendCRC(b []byte, start int, form Form) []byte {
	if form == Bare {
		return b
	}
	return binary.BigEndian.AppendUint32(b, CRC(0, b[start:]))
}

// checkCRC checks the size of a packet of n bytes, and the CRC at its end.
func checkCRC(b []byte, n int, form Form) error {
	switch {
	case len(b) < n:
		return ErrShort
	case form == Checked && CRC(0, b[:n-CRCSize]) != binary.BigEndian.Uint32(b[n-CRCSize:]):
		return ErrCRC
	}
	return nil
}

// CheckPadding returns an error unless b, the rest of a datagram from a
// KindPadding byte on, is all zero.
func CheckPadding(b []byte) error {
	for _, c := range b {
		if c != 0 {
			return ErrField
		}
	}
	return nil
}
