package tlp

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/dxpu-project/dxpu/pcie"
)

// JSON is the form of a packet that `dxpu tlp` writes and reads. The writer emits
// every field that the type has; the reader requires only those without a default.
// The README of this package lists the defaults.
type JSON struct {
	Type      TypeName   `json:"type"`
	DW4       *bool      `json:"dw4,omitempty"`  // 4 DW header of a memory request
	TC        *Number    `json:"tc,omitempty"`   // 0 to 7
	Attr      *AttrNames `json:"attr,omitempty"` // no_snoop, relaxed_ordering, id_ordering
	TH        *bool      `json:"th,omitempty"`
	PH        *Number    `json:"ph,omitempty"` // bits 1:0 of the address field
	ST        *Hex       `json:"st,omitempty"`
	EP        *bool      `json:"ep,omitempty"`
	AT        *Number    `json:"at,omitempty"`
	Length    *Number    `json:"length,omitempty"` // double words, 1024 for the code 0
	Requester *BusAddr   `json:"requester,omitempty"`
	Tag       *Number    `json:"tag,omitempty"` // 0 to 1023
	FirstBE   *Hex       `json:"first_be,omitempty"`
	LastBE    *Hex       `json:"last_be,omitempty"`
	Addr      *Hex       `json:"addr,omitempty"`
	Target    *BusAddr   `json:"target,omitempty"`
	Register  *Hex       `json:"register,omitempty"` // byte offset
	Completer *BusAddr   `json:"completer,omitempty"`
	Status    *CplName   `json:"status,omitempty"`
	BCM       *bool      `json:"bcm,omitempty"`
	ByteCount *Number    `json:"byte_count,omitempty"` // 4096 for the code 0
	LowerAddr *Hex       `json:"lower_addr,omitempty"`
	Code      *CodeValue `json:"code,omitempty"`
	Routing   *RouteName `json:"routing,omitempty"`
	MsgHeader *Bytes     `json:"msg_header,omitempty"` // bytes 8 to 15
	LN        *bool      `json:"ln,omitempty"`
	Reserved  *Hex       `json:"reserved,omitempty"`
	Prefixes  []Bytes    `json:"prefixes,omitempty"` // 4 bytes each
	Data      *Bytes     `json:"data,omitempty"`     // in the order of the wire
	Digest    *Digest    `json:"digest,omitempty"`
}

// UnmarshalJSON decodes one object. Errors name the field.
func (j *JSON) UnmarshalJSON(b []byte) error {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal(b, &raw); err != nil {
		return errors.New("tlp: a packet is a JSON object with at least a type")
	}
	*j = JSON{}
	var known []string
	for field, dest := range reflect.ValueOf(j).Elem().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		known = append(known, name)
		value, ok := raw[name]
		if !ok {
			continue
		}
		delete(raw, name)
		if err := json.Unmarshal(value, dest.Addr().Interface()); err != nil {
			return fmt.Errorf("tlp: %s: %w", name, plain(err, value))
		}
	}
	if len(raw) > 0 {
		unknown := slices.Sorted(maps.Keys(raw))
		return fmt.Errorf("tlp: %s: no such field; the fields are %s", strings.Join(unknown, ", "), strings.Join(known, ", "))
	}
	return nil
}

// plain replaces the Go types in an error of encoding/json by words.
func plain(err error, value json.RawMessage) error {
	var wrong *json.UnmarshalTypeError
	if !errors.As(err, &wrong) {
		return err
	}
	want := wrong.Type.Kind().String()
	switch want {
	case "bool":
		want = "true or false"
	case "slice":
		want = "an array"
	}
	return fmt.Errorf("%s has the wrong type: want %s", value, want)
}

// ToJSON returns the JSON form of a packet. It omits fields that the type does
// not have and reserved bits that are zero.
func ToJSON(p *Packet) JSON {
	c := types[p.Type&31].class
	j := JSON{
		Type: TypeName(p.Type), TC: new(Number(p.TC)), Attr: new(AttrNames(p.Attr)), TH: new(p.TH), EP: new(p.EP), AT: new(Number(p.AT)),
		Length: new(Number(p.Length)), Requester: new(BusAddr(p.Requester)), Tag: new(Number(p.Tag)),
		LN:       optional(p.LN, p.LN),
		PH:       optional(p.PH != 0 || p.TH && c&memory != 0, Number(p.PH)),
		ST:       optional(p.TH && c&memory != 0, Hex(p.ST)),
		Reserved: optional(p.Reserved != 0, Hex(p.Reserved)),
		Data:     optional(p.Data != nil, Bytes(p.Data)),
		Digest:   optional(p.HasDigest, Digest{Value: p.Digest}),
		DW4:      optional(c&memory != 0, p.DW4),
	}
	for rest := p.Prefix; len(rest) >= PrefixSize; rest = rest[PrefixSize:] {
		j.Prefixes = append(j.Prefixes, Bytes(rest[:PrefixSize]))
	}
	switch {
	case c&completion != 0:
		j.completion(p)
	case c&message != 0:
		j.message(p)
	default:
		j.request(p, c)
	}
	return j
}

func (j *JSON) request(p *Packet, c class) {
	enables := c&atomic == 0 && (!p.TH || c&memory == 0 || p.Type == MWr) || c&atomic != 0 && p.FirstBE|p.LastBE != 0
	j.FirstBE = optional(enables, Hex(p.FirstBE))
	j.LastBE = optional(enables, Hex(p.LastBE))
	if c&config != 0 {
		j.Target = new(BusAddr(p.Target))
		j.Register = new(Hex(p.Register))
		return
	}
	j.Addr = new(Hex(p.Addr))
}

func (j *JSON) completion(p *Packet) {
	j.Completer = new(BusAddr(p.Completer))
	j.Status = new(CplName(p.Status))
	j.BCM = new(p.BCM)
	j.ByteCount = new(Number(p.ByteCount))
	j.LowerAddr = new(Hex(p.LowerAddr))
}

func (j *JSON) message(p *Packet) {
	j.Code = new(CodeValue(p.Code))
	j.Routing = new(RouteName(p.Routing))
	byAddr := p.Routing == RouteByAddress
	j.Addr = optional(byAddr, Hex(p.Addr))
	j.Target = optional(p.Routing == RouteByID, BusAddr(p.Target))
	j.MsgHeader = optional(!byAddr, Bytes(p.MsgHeader[:]))
}

func optional[T any](present bool, v T) *T {
	if !present {
		return nil
	}
	return &v
}

// Packet returns the packet, with defaults for absent fields, and validates it.
// Errors name the field as in JSON.
func (j *JSON) Packet() (Packet, error) {
	if j.Type == TypeName(Invalid) {
		return Packet{}, fmt.Errorf("tlp: type: missing: want one of %s", strings.Join(typeNames(), ", "))
	}
	p := Packet{Type: Type(j.Type)}
	for _, err := range []error{
		setInt(&p.TC, "tc", j.TC), setInt(&p.PH, "ph", j.PH), setInt(&p.ST, "st", j.ST), setInt(&p.AT, "at", j.AT),
		setInt(&p.Length, "length", j.Length), setInt(&p.Tag, "tag", j.Tag),
		setInt(&p.FirstBE, "first_be", j.FirstBE), setInt(&p.LastBE, "last_be", j.LastBE),
		setInt(&p.Addr, "addr", j.Addr), setInt(&p.Register, "register", j.Register),
		setInt(&p.ByteCount, "byte_count", j.ByteCount), setInt(&p.LowerAddr, "lower_addr", j.LowerAddr),
		setInt(&p.Reserved, "reserved", j.Reserved),
	} {
		if err != nil {
			return Packet{}, err
		}
	}
	p.TH, p.EP, p.BCM, p.LN = value(j.TH), value(j.EP), value(j.BCM), value(j.LN)
	p.Attr = Attr(value(j.Attr))
	p.Requester, p.Target, p.Completer = pcie.BDF(value(j.Requester)), pcie.BDF(value(j.Target)), pcie.BDF(value(j.Completer))
	p.Status = pcie.CplStatus(value(j.Status))
	p.Code, p.Routing = uint8(value(j.Code)), Routing(value(j.Routing))
	if err := j.setBytes(&p); err != nil {
		return Packet{}, err
	}
	j.setDefaults(&p)
	if j.Digest != nil {
		p.HasDigest = true
		p.Digest = j.Digest.Value
	}
	if err := p.Validate(); err != nil {
		return Packet{}, err
	}
	if j.Digest != nil && j.Digest.Auto {
		p.SetECRC()
	}
	return p, nil
}

// setBytes copies the fields that are strings of hex digits.
func (j *JSON) setBytes(p *Packet) error {
	p.Data = value(j.Data)
	if j.MsgHeader != nil {
		if len(*j.MsgHeader) != len(p.MsgHeader) {
			return fmt.Errorf("tlp: msg_header: has %d bytes, want %d: bytes 8 to 15 of the header", len(*j.MsgHeader), len(p.MsgHeader))
		}
		copy(p.MsgHeader[:], *j.MsgHeader)
	}
	for _, prefix := range j.Prefixes {
		if len(prefix) != PrefixSize {
			return fmt.Errorf("tlp: prefixes: one has %d bytes, want %d", len(prefix), PrefixSize)
		}
		p.Prefix = append(p.Prefix, prefix...)
	}
	return nil
}

// setDefaults sets the fields that are absent.
func (j *JSON) setDefaults(p *Packet) {
	c := types[p.Type&31].class
	if j.Length == nil && !p.lengthReserved() {
		p.Length = 1
		if n := (len(p.Data) + pcie.DW - 1) / pcie.DW; c&withData != 0 && n <= MaxLength {
			p.Length = uint16(n)
		}
	}
	switch {
	case j.DW4 != nil:
		p.DW4 = *j.DW4
	case c&memory != 0:
		p.DW4 = p.Addr>>32 != 0
	}
	p.DW4 = p.DW4 || c&message != 0
	if c&completion != 0 && j.ByteCount == nil {
		p.ByteCount = pcie.DW
		if c&withData != 0 {
			p.ByteCount = uint16(min(int(p.Length)*pcie.DW, maxByteCnt))
		}
	}
	if c&(completion|message|atomic) != 0 {
		return
	}
	if j.FirstBE == nil {
		p.FirstBE = 0xf << (p.Addr % pcie.DW) & 0xf
		p.Addr &^= addrLow
	}
	if j.LastBE == nil && p.Length > 1 {
		p.LastBE = 0xf
	}
}

// setInt stores a number in a narrower field. It stores 0 for an absent number.
func setInt[T ~uint8 | ~uint16 | ~uint64, N Number | Hex](dest *T, name string, v *N) error {
	if v == nil {
		return nil
	}
	*dest = T(*v)
	if uint64(*dest) != uint64(*v) {
		return fmt.Errorf("tlp: %s: %d does not fit", name, uint64(*v))
	}
	return nil
}

func value[T any](v *T) T {
	if v == nil {
		v = new(T)
	}
	return *v
}

// ReadJSON reads packets from an object, an array of objects, or a sequence of
// objects. Errors name the number of the packet, from 1.
func ReadJSON(r io.Reader) ([]Packet, error) {
	dec := json.NewDecoder(r)
	var packets []Packet
	for {
		var raw json.RawMessage
		err := dec.Decode(&raw)
		if errors.Is(err, io.EOF) && len(packets) > 0 {
			return packets, nil
		}
		if errors.Is(err, io.EOF) {
			return nil, errors.New("tlp: no packet in the input: want a JSON object, or an array of them")
		}
		if err != nil {
			return nil, fmt.Errorf("tlp: packet %d: not JSON: %w", len(packets)+1, err)
		}
		list := []json.RawMessage{raw}
		if bytes.HasPrefix(raw, []byte("[")) {
			if err := json.Unmarshal(raw, &list); err != nil {
				return nil, fmt.Errorf("tlp: packet %d: not JSON: %w", len(packets)+1, err)
			}
		}
		for _, one := range list {
			p, err := readOne(one)
			if err != nil {
				return nil, fmt.Errorf("packet %d: %w", len(packets)+1, err)
			}
			packets = append(packets, p)
		}
	}
}

func readOne(raw json.RawMessage) (Packet, error) {
	var j JSON
	// A direct call, because encoding/json would wrap our error.
	if err := j.UnmarshalJSON(raw); err != nil {
		return Packet{}, err
	}
	return j.Packet()
}

// WriteJSON writes one packet as an object and several as an array, indented.
func WriteJSON(w io.Writer, packets []Packet) error {
	list := make([]JSON, len(packets))
	for i := range packets {
		list[i] = ToJSON(&packets[i])
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	if len(list) == 1 {
		return enc.Encode(list[0])
	}
	return enc.Encode(list)
}
