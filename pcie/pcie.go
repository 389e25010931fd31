// Package pcie defines the basic types of PCI Express that all other packages
// use: bus addresses, tags, payload sizes, completion status and link
// generations.
//
// Numbers follow the PCI Express Base Specification (revision 6.0); section
// numbers in the comments refer to it.
package pcie

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// BDF is a Routing ID: bus in bits 15:8, device in 7:3, function in 2:0
// (section 2.2.4.2).
type BDF uint16

// NewBDF returns a Routing ID. It truncates device to 5 bits and function to 3.
func NewBDF(bus, device, function uint8) BDF {
	return BDF(bus)<<8 | BDF(device&0x1f)<<3 | BDF(function&7)
}

// Bus returns bits 15:8.
func (b BDF) Bus() uint8 { return uint8(b >> 8) }

// Device returns bits 7:3.
func (b BDF) Device() uint8 { return uint8(b>>3) & 0x1f }

// Function returns bits 2:0.
func (b BDF) Function() uint8 { return uint8(b) & 7 }

// String returns the form that Linux prints, "01:00.0".
func (b BDF) String() string {
	return fmt.Sprintf("%02x:%02x.%x", b.Bus(), b.Device(), b.Function())
}

// ParseBDF parses the form that String returns. It accepts a leading domain of
// zero ("0000:").
func ParseBDF(s string) (BDF, error) {
	bad := func() (BDF, error) {
		return 0, fmt.Errorf("pcie: %q is not a bus address: want BUS:DEVICE.FUNCTION in hex, like 01:00.0", s)
	}
	rest := strings.TrimPrefix(s, "0000:")
	busText, rest, ok := strings.Cut(rest, ":")
	devText, fnText, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 {
		return bad()
	}
	bus, err1 := strconv.ParseUint(busText, 16, 8)
	dev, err2 := strconv.ParseUint(devText, 16, 5)
	fn, err3 := strconv.ParseUint(fnText, 16, 3)
	if err1 != nil || err2 != nil || err3 != nil {
		return bad()
	}
	return NewBDF(uint8(bus), uint8(dev), uint8(fn)), nil
}

// Tag identifies an outstanding non-posted request of one requester. A tag has 5,
// 8 or 10 bits (section 2.2.6.2).
type Tag uint16

// MaxTags is the number of 10-bit tags. With 10-Bit Tag Requester Enable the
// specification reserves tags 0 to 255 for 8-bit completers; a binding is
// point-to-point and does not need that reserve.
const MaxTags = 1024

// CplStatus is the Completion Status field (table 2-39).
type CplStatus uint8

// Completion Status values.
const (
	SuccessfulCompletion CplStatus = 0
	UnsupportedRequest   CplStatus = 1
	RequestRetry         CplStatus = 2 // RRS, formerly CRS
	CompleterAbort       CplStatus = 4
)

// String returns the abbreviation of the specification.
func (s CplStatus) String() string {
	switch s {
	case SuccessfulCompletion:
		return "SC"
	case UnsupportedRequest:
		return "UR"
	case RequestRetry:
		return "RRS"
	case CompleterAbort:
		return "CA"
	}
	return fmt.Sprintf("CplStatus(%d)", uint8(s))
}

// Sizes in bytes.
const (
	DW            = 4    // a double word
	PageSize      = 4096 // no request may cross this boundary (section 2.2.7)
	MaxPayload    = 4096 // the largest Max_Payload_Size and Max_Read_Request_Size
	MinPayload    = 128
	ConfigSize    = 4096 // extended configuration space of one function
	ConfigSizePCI = 256  // the PCI-compatible part of it
	DefaultRCB    = 64   // Read Completion Boundary of a root complex (section 2.3.1.1)
	MaxBARs       = 6
)

// BAR describes one Base Address Register of a function, as found by sizing it
// (section 7.5.1.2.1).
type BAR struct {
	Size         uint64 // bytes, a power of two; 0: not implemented, or the upper half of a 64-bit BAR
	Wide         bool   // 64-bit: the next register holds the upper half
	IO           bool
	Prefetchable bool
}

// PayloadSize is a Max_Payload_Size or Max_Read_Request_Size in bytes: a power
// of two from 128 to 4096 (section 7.5.3.4).
type PayloadSize uint16

// Valid reports whether Device Control can encode the size.
func (p PayloadSize) Valid() bool {
	return p >= MinPayload && p <= MaxPayload && bits.OnesCount16(uint16(p)) == 1
}

// Encode returns the 3-bit field of Device Control. The size must be valid.
func (p PayloadSize) Encode() uint8 { return uint8(bits.TrailingZeros16(uint16(p))) - 7 }

// DecodePayloadSize decodes the 3-bit field. It returns false for the reserved
// encodings 6 and 7.
func DecodePayloadSize(field uint8) (PayloadSize, bool) {
	if field > 5 {
		return 0, false
	}
	return MinPayload << field, true
}

// Generation identifies a PCI Express revision by its data rate (section 1.2 and
// table 8-1).
type Generation uint8

// Generations.
const (
	Gen1 Generation = iota + 1
	Gen2
	Gen3
	Gen4
	Gen5
	Gen6
)

// TransferRate returns the raw rate of one lane in GT/s.
func (g Generation) TransferRate() float64 {
	switch g {
	case Gen1:
		return 2.5
	case Gen2:
		return 5
	case Gen3:
		return 8
	case Gen4:
		return 16
	case Gen5:
		return 32
	case Gen6:
		return 64
	}
	return 0
}
