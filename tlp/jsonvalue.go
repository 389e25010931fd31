package tlp

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/dxpu-project/dxpu/pcie"
)

// Number is written as a JSON number, and read from one or from a string like "0x1f".
type Number uint64

// Hex is written as a string such as "0x1f", and read from a string or a number.
type Hex uint64

// Bytes is a string of hex digits in wire order, read by ParseHex.
type Bytes []byte

// TypeName is the name of a Type, read in upper or lower case.
type TypeName Type

// BusAddr is a Routing ID such as "01:00.0". The reader also accepts a number.
type BusAddr pcie.BDF

// CplName is a completion status: "SC", "UR", "RRS" or "CA". The reader also
// accepts "CRS" and numbers; reserved codes are written as numbers.
type CplName pcie.CplStatus

// CodeValue is a message code such as "0x20". The reader also accepts a number and
// the name in the specification, such as "Assert_INTA".
type CodeValue uint8

// RouteName is a message routing. The reader also accepts the number of r[2:0];
// reserved values are written as numbers.
type RouteName Routing

// AttrNames is a list of "no_snoop", "relaxed_ordering" and "id_ordering". The
// reader also accepts the number of the attribute bits.
type AttrNames Attr

// Digest is the ECRC as 8 hex digits. The reader computes it for "auto".
type Digest struct {
	Value uint32
	Auto  bool
}

var (
	attrNames  = [...]string{"no_snoop", "relaxed_ordering", "id_ordering"} // by bit
	routeNames = [...]string{"to_root_complex", "by_address", "by_id", "broadcast", "local", "gather_to_root"}
)

// readNumber parses a JSON number or a string with a number in Go's notation.
func readNumber(b []byte, largest uint64) (uint64, error) {
	text := strings.ReplaceAll(strings.Trim(string(b), `"`), "_", "")
	n, err := strconv.ParseUint(strings.TrimSpace(text), 0, 64)
	if err != nil {
		return 0, fmt.Errorf(`%s is not a number: want one like 31 or "0x1f"`, b)
	}
	if n > largest {
		return 0, fmt.Errorf("%s does not fit: want 0 to %#x", b, largest)
	}
	return n, nil
}

// isText returns the string in b, or false if b is no string or holds a number.
func isText(b []byte) (string, bool) {
	var s string
	if json.Unmarshal(b, &s) != nil {
		return "", false
	}
	s = strings.TrimSpace(s)
	if _, err := strconv.ParseUint(s, 0, 64); err == nil {
		return "", false
	}
	return s, true
}

// readName stores the number in b, or the value that find returns for the name in b.
// find returns -1 for an unknown name.
func readName[T ~uint8](dest *T, b []byte, largest uint64, want string, find func(name string) int) error {
	name, ok := isText(b)
	if !ok {
		n, err := readNumber(b, largest)
		*dest = T(n)
		return err
	}
	v := find(name)
	if v < 0 {
		return fmt.Errorf("%s is not %s", b, want)
	}
	*dest = T(v)
	return nil
}

// UnmarshalJSON reads a number.
func (n *Number) UnmarshalJSON(b []byte) error {
	v, err := readNumber(b, math.MaxUint64)
	*n = Number(v)
	return err
}

// MarshalJSON writes a string in hex.
func (h Hex) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, `"%#x"`, uint64(h)), nil }

// UnmarshalJSON reads a number.
func (h *Hex) UnmarshalJSON(b []byte) error {
	v, err := readNumber(b, math.MaxUint64)
	*h = Hex(v)
	return err
}

// MarshalJSON writes a string of hex digits.
func (v Bytes) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, `"%x"`, []byte(v)), nil }

// UnmarshalJSON reads a string of hex digits.
func (v *Bytes) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf(`%s is not bytes: want a string of hex digits like "00ff"`, b)
	}
	data, err := ParseHex(s)
	*v = data
	return err
}

// MarshalJSON writes the name.
func (t TypeName) MarshalJSON() ([]byte, error) { return json.Marshal(Type(t).String()) }

// UnmarshalJSON reads the name.
func (t *TypeName) UnmarshalJSON(b []byte) error {
	typ, err := ParseType(strings.TrimSpace(strings.Trim(string(b), `"`)))
	*t = TypeName(typ)
	return err
}

// MarshalJSON writes bus, device and function.
func (a BusAddr) MarshalJSON() ([]byte, error) { return json.Marshal(pcie.BDF(a).String()) }

// UnmarshalJSON reads bus, device and function, or the number they make.
func (a *BusAddr) UnmarshalJSON(b []byte) error {
	if s, ok := isText(b); ok {
		bdf, err := pcie.ParseBDF(s)
		*a = BusAddr(bdf)
		return err
	}
	n, err := readNumber(b, math.MaxUint16)
	*a = BusAddr(n)
	return err
}

// MarshalJSON writes the abbreviation.
func (s CplName) MarshalJSON() ([]byte, error) {
	name := pcie.CplStatus(s).String()
	if strings.HasPrefix(name, "CplStatus") {
		return strconv.AppendUint(nil, uint64(s), 10), nil
	}
	return json.Marshal(name)
}

// UnmarshalJSON reads the abbreviation or the code.
func (s *CplName) UnmarshalJSON(b []byte) error {
	return readName(s, b, 7, "a completion status: want SC, UR, RRS, CA or 0 to 7", func(name string) int {
		if strings.EqualFold(name, "CRS") {
			return int(pcie.RequestRetry)
		}
		for v := range pcie.CplStatus(8) {
			if strings.EqualFold(name, v.String()) {
				return int(v)
			}
		}
		return -1
	})
}

// MarshalJSON writes the code in hex.
func (c CodeValue) MarshalJSON() ([]byte, error) { return Hex(c).MarshalJSON() }

// UnmarshalJSON reads the code or its name.
func (c *CodeValue) UnmarshalJSON(b []byte) error {
	return readName(c, b, math.MaxUint8, `a message code: want a number like "0x20" or a name like "Assert_INTA"`, func(name string) int {
		for code, known := range codeNames {
			if strings.EqualFold(name, known) {
				return int(code)
			}
		}
		return -1
	})
}

// MarshalJSON writes the name.
func (r RouteName) MarshalJSON() ([]byte, error) {
	if int(r) < len(routeNames) {
		return json.Marshal(routeNames[r])
	}
	return strconv.AppendUint(nil, uint64(r), 10), nil
}

// UnmarshalJSON reads the name or the number.
func (r *RouteName) UnmarshalJSON(b []byte) error {
	want := "a routing: want 0 to 7, " + strings.Join(routeNames[:], ", ")
	return readName(r, b, routingMask, want, func(name string) int { return indexFold(routeNames[:], name) })
}

// MarshalJSON writes the names of the bits that are set.
func (a AttrNames) MarshalJSON() ([]byte, error) {
	names := []string{}
	for i, name := range attrNames {
		if a>>i&1 != 0 {
			names = append(names, name)
		}
	}
	return json.Marshal(names)
}

// UnmarshalJSON reads names or the number of the bits.
func (a *AttrNames) UnmarshalJSON(b []byte) error {
	var names []string
	if json.Unmarshal(b, &names) != nil {
		n, err := readNumber(b, 7)
		*a = AttrNames(n)
		return err
	}
	*a = 0
	for _, name := range names {
		i := indexFold(attrNames[:], name)
		if i < 0 {
			return fmt.Errorf("%q is not an attribute: want %s", name, strings.Join(attrNames[:], ", "))
		}
		*a |= 1 << i
	}
	return nil
}

// indexFold returns the index of a name in upper or lower case, or -1.
func indexFold(names []string, name string) int {
	return slices.IndexFunc(names, func(known string) bool { return strings.EqualFold(known, name) })
}

// MarshalJSON writes 8 hex digits.
func (d Digest) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, `"%08x"`, d.Value), nil }

// UnmarshalJSON reads 8 hex digits, a number or "auto".
func (d *Digest) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) != nil {
		n, err := readNumber(b, math.MaxUint32)
		*d = Digest{Value: uint32(n)}
		return err
	}
	if strings.EqualFold(s, "auto") {
		*d = Digest{Auto: true}
		return nil
	}
	data, err := ParseHex(s)
	if err != nil || len(data) != DigestSize {
		return fmt.Errorf(`%s is not a digest: want 8 hex digits, or "auto" to compute it`, b)
	}
	*d = Digest{Value: binary.BigEndian.Uint32(data)}
	return nil
}
