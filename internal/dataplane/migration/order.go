// Package migration is what a host and the boxes say to each other in the links while a
// device moves (docs/migration.md): orders, as Vendor_Defined messages of type 1 (PCI
// Express Base Specification, section 2.2.8.6), in order with the other TLPs.
//
//	bytes  8-9   reserved                 bytes 12  order
//	bytes 10-11  vendor ID 1234           byte  13  version, 1
//	                                      bytes 14-15  the lower half of the successor's epoch
package migration

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// Order is a message of a migration.
type Order uint8

// Orders.
const (
	Stop      Order = iota + 1 // host to source: stop, and send the rest
	Stopped                    // source to host: nothing follows before Resume
	Resume                     // host to source: go on
	Start                      // host to target: begin
	Installed                  // target to host: the state is in place
	Refused                    // source or target to host: the device cannot move, with the reason
	Commit                     // source to target, with a Sum of the state
	Settle                     // source to target: answer when the memory so far is in place
	Settled                    // target to source
)

// String returns the name in lower case.
func (o Order) String() string {
	if names := [...]string{"", "stop", "stopped", "resume", "start", "installed", "refused", "commit", "settle", "settled"}; int(o) < len(names) {
		return names[o]
	}
	return fmt.Sprintf("Order(%d)", uint8(o))
}

const (
	vendor  = 0x1234 // that of the software GPU
	version = 1
)

// Message is an order of one migration.
type Message struct {
	Order Order
	Epoch uint16 // the lower half of the epoch of the successor
	Sum   Sum    // of Commit
	Why   string // of Refused; "": not said
}

// Sum describes a state.
type Sum struct {
	Length uint32 // bytes
	CRC    uint32 // CRC-32C
}

const (
	sumSize = 8   // the size of the payload of Commit in bytes
	maxWhy  = 256 // the most bytes of a reason
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// SumOf returns the sum of a state.
func SumOf(state []byte) Sum {
	return Sum{Length: uint32(len(state)), CRC: crc32.Checksum(state, castagnoli)}
}

// Packet returns the message as a TLP. Of Why it carries the first 256 bytes.
func (m Message) Packet() tlp.Packet {
	p := tlp.Packet{Type: tlp.Msg, DW4: true, Code: tlp.CodeVendorType1, Routing: tlp.RouteLocal}
	binary.BigEndian.PutUint16(p.MsgHeader[2:], vendor)
	p.MsgHeader[4], p.MsgHeader[5] = uint8(m.Order), version
	binary.BigEndian.PutUint16(p.MsgHeader[6:], m.Epoch)
	switch {
	case m.Order == Commit:
		p.Data = binary.LittleEndian.AppendUint32(nil, m.Sum.Length)
		p.Data = binary.LittleEndian.AppendUint32(p.Data, m.Sum.CRC)
	case m.Order == Refused:
		p.Data = []byte(m.Why[:min(len(m.Why), maxWhy)])
		p.Data = append(p.Data, make([]byte, -len(p.Data)&(pcie.DW-1))...)
	}
	if len(p.Data) > 0 {
		p.Type, p.Length = tlp.MsgD, uint16(len(p.Data)/pcie.DW)
	}
	return p
}

// Next returns the message that follows m, or nil: after REFUSED with a reason comes one
// without, because a host of an older version drops the first.
func (m Message) Next() *Message {
	if m.Order != Refused || m.Why == "" {
		return nil
	}
	m.Why = ""
	return &m
}

// Parse returns the message that a TLP carries. ok is false for all other TLPs.
func Parse(p *tlp.Packet) (m Message, ok bool) {
	if !Is(p) || p.MsgHeader[5] != version {
		return Message{}, false
	}
	m = Message{Order: Order(p.MsgHeader[4]), Epoch: binary.BigEndian.Uint16(p.MsgHeader[6:])}
	switch {
	case m.Order < Stop || m.Order > Settled:
		return Message{}, false
	case m.Order == Refused && len(p.Data) <= maxWhy:
		m.Why = strings.ToValidUTF8(strings.TrimRight(string(p.Data), "\x00"), "")
	case m.Order == Commit && len(p.Data) != sumSize || m.Order != Commit && len(p.Data) > 0:
		return Message{}, false
	case m.Order == Commit:
		m.Sum = Sum{Length: binary.LittleEndian.Uint32(p.Data), CRC: binary.LittleEndian.Uint32(p.Data[4:])}
	}
	return m, true
}

// Is reports whether a TLP is a message of a migration, also a wrong one. No device may
// send one.
func Is(p *tlp.Packet) bool {
	return (p.Type == tlp.Msg || p.Type == tlp.MsgD) && p.Code == tlp.CodeVendorType1 && binary.BigEndian.Uint16(p.MsgHeader[2:]) == vendor
}

// StateAt is the address from which the bytes of a state are written in a transfer.
const StateAt = 1 << 62
