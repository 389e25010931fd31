package tlp

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// ParseHex parses bytes in wire order from pasted hex digits: in upper or lower
// case, separated by spaces, line breaks, colons, commas, dashes or underscores,
// each group with or without 0x. A group has whole bytes.
func ParseHex(s string) ([]byte, error) {
	groups := strings.FieldsFunc(s, func(r rune) bool {
		return strings.ContainsRune(" \t\r\n\v\f:,;-_", r)
	})
	var out []byte
	for _, g := range groups {
		digits := strings.TrimPrefix(strings.TrimPrefix(g, "0x"), "0X")
		if len(digits)%2 != 0 {
			return nil, fmt.Errorf("tlp: hex: %q has an odd number of digits: want two for each byte", clip(g))
		}
		b, err := hex.DecodeString(digits)
		if err != nil {
			return nil, fmt.Errorf("tlp: hex: %q is not hex digits", clip(g))
		}
		out = append(out, b...)
	}
	return out, nil
}

// clip shortens a quotation in an error.
func clip(s string) string {
	if len(s) > 24 {
		return s[:24] + "..."
	}
	return s
}

// ParseGroups decodes packets from groups of hex digits: arguments of a command or
// lines of a file. If the first group is whole packets, it decodes each group by
// itself and so detects a truncated one. Otherwise it concatenates the groups.
// With header it decodes headers without payload.
func ParseGroups(groups []string, header bool) ([]Packet, error) {
	parse := ParseAll
	if header {
		parse = ParseAllHeaders
	}
	chunks := make([][]byte, 0, len(groups))
	var all []byte
	for _, g := range groups {
		b, err := ParseHex(g)
		if err != nil {
			return nil, err
		}
		if len(b) > 0 {
			chunks = append(chunks, b)
			all = append(all, b...)
		}
	}
	if len(chunks) < 2 {
		return parse(all)
	}
	if _, err := parse(chunks[0]); err != nil {
		return parse(all)
	}
	var packets []Packet
	for i, b := range chunks {
		more, err := parse(b)
		if err != nil {
			return nil, fmt.Errorf("input %d of %d: %w", i+1, len(chunks), err)
		}
		packets = append(packets, more...)
	}
	return packets, nil
}

// ParseAll decodes packets that follow each other without a gap. Errors name the
// number of the packet, from 1, and the byte at which it starts.
func ParseAll(b []byte) ([]Packet, error) { return parseAll(b, (*Packet).Decode) }

// ParseAllHeaders is ParseAll for headers without payload and digest, such as
// those in the header log of Advanced Error Reporting.
func ParseAllHeaders(b []byte) ([]Packet, error) { return parseAll(b, (*Packet).DecodeHeader) }

func parseAll(b []byte, decode func(*Packet, []byte) (int, error)) ([]Packet, error) {
	if len(b) == 0 {
		return nil, errors.New("tlp: no packet in the input: want hex digits")
	}
	var packets []Packet
	for at := 0; at < len(b); {
		var p Packet
		n, err := decode(&p, b[at:])
		if err != nil && at > 0 {
			return nil, fmt.Errorf("packet %d at byte %d: %w", len(packets)+1, at, err)
		}
		if err != nil {
			return nil, err
		}
		packets = append(packets, p)
		at += n
	}
	return packets, nil
}
