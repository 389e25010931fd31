package tlp

import (
	"fmt"
	"strings"
)

// Type is the kind of a Transaction Layer Packet: the combination of the Fmt
// and Type fields (table 2-3) without the header size, which follows from
// Packet.DW4.
type Type uint8

// Kinds of TLP. The zero value is invalid.
const (
	Invalid Type = iota
	MRd          // memory read request
	MRdLk        // memory read request, locked
	MWr          // memory write request
	IORd
	IOWr
	CfgRd0
	CfgWr0
	CfgRd1
	CfgWr1
	Msg
	MsgD
	Cpl
	CplD
	CplLk
	CplDLk
	FetchAdd
	Swap
	CAS
	DMWr // deferrable memory write request, non-posted

	numTypes
)

// class is a set of properties that several types share.
type class uint8

const (
	withData   class = 1 << iota // a payload follows the header
	withAddr                     // routed by address: memory, I/O and atomics
	memory                       // memory space: MRd, MRdLk, MWr, DMWr and atomics
	atomic                       // read, modify, write
	config                       // configuration request
	message                      // always a 4 DW header
	completion                   // routed by ID to the requester
	posted                       // has no completion
)

// typeInfo describes one type: Fmt[1] and Type in byte 0, without the header size.
type typeInfo struct {
	name  string
	byte0 uint8
	class class
}

// Fmt bits in byte 0 (table 2-2).
const (
	fmt4DW    = 0x20
	fmtData   = 0x40
	fmtPrefix = 0x80 // with both others clear
	fmtMask   = 0xe0
	// typeEndEnd marks an end-to-end prefix.
	typeEndEnd  = 0x10
	routingMask = 0x07
)

// types is indexed by Type. Its size is a power of two, so that indexing with a
// masked value needs no bounds check.
var types = [32]typeInfo{
	MRd:      {"MRd", 0x00, withAddr | memory},
	MRdLk:    {"MRdLk", 0x01, withAddr | memory},
	MWr:      {"MWr", 0x40, withAddr | memory | withData | posted},
	IORd:     {"IORd", 0x02, withAddr},
	IOWr:     {"IOWr", 0x42, withAddr | withData},
	CfgRd0:   {"CfgRd0", 0x04, config},
	CfgWr0:   {"CfgWr0", 0x44, config | withData},
	CfgRd1:   {"CfgRd1", 0x05, config},
	CfgWr1:   {"CfgWr1", 0x45, config | withData},
	Msg:      {"Msg", 0x10, message | posted},
	MsgD:     {"MsgD", 0x50, message | withData | posted},
	Cpl:      {"Cpl", 0x0a, completion},
	CplD:     {"CplD", 0x4a, completion | withData},
	CplLk:    {"CplLk", 0x0b, completion},
	CplDLk:   {"CplDLk", 0x4b, completion | withData},
	FetchAdd: {"FetchAdd", 0x4c, withAddr | memory | atomic | withData},
	Swap:     {"Swap", 0x4d, withAddr | memory | atomic | withData},
	CAS:      {"CAS", 0x4e, withAddr | memory | atomic | withData},
	DMWr:     {"DMWr", 0x5b, withAddr | memory | withData},
}

// byByte0 is the inverse: it maps byte 0 of a header to its Type, and a reserved
// combination of Fmt and Type to Invalid.
var byByte0 = func() (table [256]Type) {
	for t := MRd; t < numTypes; t++ {
		info := types[t]
		switch {
		case info.class&message != 0:
			for r := range uint8(routingMask + 1) {
				table[info.byte0|fmt4DW|r] = t
			}
		case info.class&memory != 0:
			table[info.byte0] = t
			table[info.byte0|fmt4DW] = t
		default:
			table[info.byte0] = t
		}
	}
	return table
}()

func (t Type) is(c class) bool { return types[t&31].class&c != 0 }

// HasData reports whether packets of the type carry a payload.
func (t Type) HasData() bool { return t.is(withData) }

// Memory reports whether the type is MRd, MRdLk, MWr, DMWr or an atomic.
func (t Type) Memory() bool { return t.is(memory) }

// IO reports whether the type is a request to I/O space.
func (t Type) IO() bool { return t == IORd || t == IOWr }

// Atomic reports whether the type is FetchAdd, Swap or CAS.
func (t Type) Atomic() bool { return t.is(atomic) }

// Config reports whether the type is a configuration request.
func (t Type) Config() bool { return t.is(config) }

// Message reports whether the type is Msg or MsgD.
func (t Type) Message() bool { return t.is(message) }

// Completion reports whether the type is Cpl, CplD or one of their locked forms.
func (t Type) Completion() bool { return t.is(completion) }

// Posted reports whether the type is a request without completion.
func (t Type) Posted() bool { return t.is(posted) }

// NonPosted reports whether the type is a request with a completion.
func (t Type) NonPosted() bool { return t > Invalid && t < numTypes && !t.is(posted|completion) }

// Read reports whether the completion of the type carries data: reads and atomics.
func (t Type) Read() bool { return t.NonPosted() && (!t.is(withData) || t.is(atomic)) }

// String returns the name that the specification uses (table 2-3).
func (t Type) String() string {
	if t > Invalid && t < numTypes {
		return types[t].name
	}
	return fmt.Sprintf("Type(%d)", uint8(t))
}

// ParseType parses a name that String returns, in upper or lower case.
func ParseType(s string) (Type, error) {
	for t := MRd; t < numTypes; t++ {
		if strings.EqualFold(s, types[t].name) {
			return t, nil
		}
	}
	return Invalid, fmt.Errorf("tlp: %q is not a TLP type: want one of %s", s, strings.Join(typeNames(), ", "))
}

func typeNames() []string {
	names := make([]string, 0, numTypes)
	for t := MRd; t < numTypes; t++ {
		names = append(names, types[t].name)
	}
	return names
}
