package vfiouser

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
)

const (
	versionSize = 4
	// maxVersionJSON bounds the capability text, in bytes; QEMU's has about 200.
	maxVersionJSON = 4096

	// DefaultMaxData is the max_data_xfer_size of a peer that states none
	// (section "VFIO_USER_VERSION").
	DefaultMaxData = 1 << 20
	// DefaultMaxFDs is the max_msg_fds of a peer that states none.
	DefaultMaxFDs = 1
	// MaxFDs is the most descriptors in one message: QEMU refuses a peer that
	// states more.
	MaxFDs = 16
)

// Version is the payload of VERSION in both directions:
//
//	 0       2       4
//	+-------+-------+--------------------------+
//	| major | minor | JSON text, NUL (optional) |
//	+-------+-------+--------------------------+
type Version struct {
	Major, Minor uint16
	Caps         Capabilities
}

// Capabilities are the capabilities that a peer states. A zero field was not
// stated. The parser ignores other keys, and none are ever written, since QEMU
// warns about unknown keys.
type Capabilities struct {
	MaxMsgFDs       uint32      `json:"max_msg_fds,omitempty"`
	MaxDataXferSize uint64      `json:"max_data_xfer_size,omitempty"` // bytes
	MaxDMAMaps      uint64      `json:"max_dma_maps,omitempty"`
	WriteMultiple   bool        `json:"write_multiple,omitempty"`
	TwinSocket      *TwinSocket `json:"twin_socket,omitempty"`
}

// TwinSocket offers, and in the reply grants, a second socket for the
// requests of the server (libvfio-user).
type TwinSocket struct {
	Supported bool    `json:"supported"`
	FDIndex   *uint32 `json:"fd_index,omitempty"` // of the socket among the reply's descriptors
}

// maxFDs applies the default of the specification and the bound MaxFDs.
func (c Capabilities) maxFDs() int {
	if c.MaxMsgFDs == 0 {
		return DefaultMaxFDs
	}
	return int(min(c.MaxMsgFDs, MaxFDs))
}

// maxData applies the default of the specification.
func (c Capabilities) maxData() uint64 {
	if c.MaxDataXferSize == 0 {
		return DefaultMaxData
	}
	return c.MaxDataXferSize
}

// capabilityText is the JSON document.
type capabilityText struct {
	Capabilities Capabilities `json:"capabilities"`
}

// ParseVersion reads a VERSION payload. The text may be absent; otherwise it
// must be valid JSON, with or without a NUL at its end.
func ParseVersion(b []byte) (Version, int, error) {
	if len(b) < versionSize {
		return Version{}, 0, shortError("version", len(b), versionSize)
	}
	v := Version{Major: binary.LittleEndian.Uint16(b), Minor: binary.LittleEndian.Uint16(b[2:])}
	text := b[versionSize:]
	if len(text) > maxVersionJSON {
		return Version{}, 0, fmt.Errorf("vfiouser: version: %d bytes of capabilities, at most %d", len(text), maxVersionJSON)
	}
	if n := bytes.IndexByte(text, 0); n >= 0 {
		text = text[:n]
	}
	if len(text) > 0 {
		var doc capabilityText
		if err := json.Unmarshal(text, &doc); err != nil {
			return Version{}, 0, fmt.Errorf("vfiouser: version: capabilities: %w", err)
		}
		v.Caps = doc.Capabilities
	}
	return v, len(b), nil
}

// Append appends the payload, always with the JSON text and its NUL: rust-vmm's
// client requires them.
func (v Version) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint16(b, v.Major)
	b = binary.LittleEndian.AppendUint16(b, v.Minor)
	text, err := json.Marshal(capabilityText{v.Caps})
	if err != nil { // numbers and booleans always marshal
		panic("vfiouser: " + err.Error())
	}
	return append(append(b, text...), 0)
}

var errVersionMajor = errors.New("vfiouser: version: the peer speaks another major version")
