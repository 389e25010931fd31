package tlp

import (
	"encoding/hex"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/dxpu-project/dxpu/pcie"
)

// Field is one field of an encoded packet. Offset is its first byte and Size the
// number of bytes that it overlaps. Hi and Lo are its bits in these bytes, read
// big-endian.
type Field struct {
	Offset, Size int
	Hi, Lo       int
	Name         string // as in JSON, if JSON has the field
	Value        string
	Meaning      string
}

// layout is the position of a field. Bit 0 is bit 7 of byte 0 of the header.
type layout struct {
	bit, width int
	name       string
	meaning    func(p *Packet, v uint64) string // nil if the value needs no explanation
}

var commonLayout = []layout{
	{0, 3, "fmt", func(p *Packet, _ uint64) string {
		if p.Type.HasData() {
			return fmt.Sprintf("%d DW header, with data", p.HeaderLen()/pcie.DW)
		}
		return fmt.Sprintf("%d DW header, no data", p.HeaderLen()/pcie.DW)
	}},
	{3, 5, "type", func(p *Packet, _ uint64) string {
		if p.Type.Message() {
			return p.Type.String() + ", " + p.Routing.String()
		}
		return p.Type.String()
	}},
	{8, 1, "t9", func(*Packet, uint64) string { return "bit 9 of the tag" }},
	{9, 3, "tc", func(*Packet, uint64) string { return "traffic class" }},
	{12, 1, "t8", func(*Packet, uint64) string { return "bit 8 of the tag" }},
	{13, 1, "attr[2]", flag("ID-based ordering", "no ID-based ordering")},
	{14, 1, "ln", flag("reserved; lightweight notification before revision 6.0", "reserved")},
	{15, 1, "th", flag("processing hints", "no processing hints")},
	{16, 1, "td", flag("digest after the payload", "no digest")},
	{17, 1, "ep", flag("poisoned", "not poisoned")},
	{18, 2, "attr[1:0]", func(_ *Packet, v uint64) string {
		return [...]string{"snooped, strongly ordered", "no snoop", "relaxed ordering", "relaxed ordering, no snoop"}[v]
	}},
	{20, 2, "at", func(_ *Packet, v uint64) string {
		return [...]string{"untranslated address", "translation request", "translated address", "reserved"}[v]
	}},
	{22, 10, "length", func(p *Packet, _ uint64) string {
		if p.lengthReserved() {
			return "reserved: no data"
		}
		return fmt.Sprintf("%d DW, %d bytes", p.Length, int(p.Length)*pcie.DW)
	}},
}

func flag(set, clear string) func(*Packet, uint64) string {
	return func(_ *Packet, v uint64) string {
		if v == 0 {
			return clear
		}
		return set
	}
}

func bdfMeaning(_ *Packet, v uint64) string { return pcie.BDF(v).String() }

func tagMeaning(p *Packet, _ uint64) string { return fmt.Sprintf("tag %d with T9 and T8", p.Tag) }

func enables(_ *Packet, v uint64) string { return fmt.Sprintf("byte enables %04b", v) }

func reserved(*Packet, uint64) string { return "reserved" }

// restLayout returns the fields from byte 4 on.
func (p *Packet) restLayout() []layout {
	c := types[p.Type&31].class
	switch {
	case c&completion != 0:
		return []layout{
			{32, 16, "completer", bdfMeaning},
			{48, 3, "status", func(p *Packet, _ uint64) string { return p.Status.String() }},
			{51, 1, "bcm", flag("byte count modified", "byte count not modified")},
			{52, 12, "byte_count", func(p *Packet, _ uint64) string { return fmt.Sprintf("%d bytes left", p.ByteCount) }},
			{64, 16, "requester", bdfMeaning},
			{80, 8, "tag[7:0]", tagMeaning},
			{88, 1, "reserved", reserved},
			{89, 7, "lower_addr", nil},
		}
	case c&message != 0:
		return append([]layout{
			{32, 16, "requester", bdfMeaning},
			{48, 8, "tag[7:0]", tagMeaning},
			{56, 8, "code", func(p *Packet, _ uint64) string { return CodeName(p.Code) }},
		}, p.messageLayout()...)
	}
	rest := []layout{{32, 16, "requester", bdfMeaning}}
	steered := p.TH && c&memory != 0
	switch {
	case steered && p.Type == MWr:
		rest = append(rest, layout{48, 8, "st", steering}, layout{56, 4, "last_be", enables}, layout{60, 4, "first_be", enables})
	case steered:
		rest = append(rest, layout{48, 8, "tag[7:0]", tagMeaning}, layout{56, 8, "st", steering})
	default:
		rest = append(rest, layout{48, 8, "tag[7:0]", tagMeaning}, layout{56, 4, "last_be", enables}, layout{60, 4, "first_be", enables})
	}
	if c&config != 0 {
		return append(
			rest, layout{64, 16, "target", bdfMeaning}, layout{80, 4, "reserved", reserved},
			layout{84, 10, "register", func(p *Packet, _ uint64) string { return fmt.Sprintf("byte offset %#x", p.Register) }},
			layout{94, 2, "reserved", reserved},
		)
	}
	return append(rest, p.addressLayout()...)
}

func steering(*Packet, uint64) string { return "steering tag" }

func (p *Packet) addressLayout() []layout {
	width := 30
	if p.HeaderLen() == Header4DW {
		width = 62
	}
	return []layout{
		{64, width, "addr", func(p *Packet, _ uint64) string { return fmt.Sprintf("address %#x", p.Addr) }},
		{64 + width, 2, "ph", func(p *Packet, v uint64) string {
			if !p.TH {
				return "reserved"
			}
			return [...]string{"bi-directional", "requester", "target", "target with priority"}[v]
		}},
	}
}

func (p *Packet) messageLayout() []layout {
	if p.Routing == RouteByAddress {
		return p.addressLayout()
	}
	if p.Routing == RouteByID {
		return []layout{{64, 16, "target", bdfMeaning}, {80, 16, "msg_header", nil}, {96, 32, "msg_header", nil}}
	}
	return []layout{{64, 64, "msg_header", nil}}
}

// Fields describes the packet p field by field, in the order of the wire, as
// Append encodes it. For a packet without its payload, as ParseHeader returns it,
// the fields end with the header.
func (p *Packet) Fields() []Field {
	b := p.AppendHeader(nil)
	var out []Field
	for n := 0; n < len(p.Prefix); n += PrefixSize {
		meaning := "local"
		if b[n]&typeEndEnd != 0 {
			meaning = "end-to-end"
		}
		out = append(out, bytesField(n, "prefix", b[n:n+PrefixSize], meaning))
	}
	header := b[len(p.Prefix):]
	for _, l := range append(commonLayout[:len(commonLayout):len(commonLayout)], p.restLayout()...) {
		out = append(out, l.field(p, header))
	}
	const row = 16
	at := len(b)
	for rest := p.Data; len(rest) > 0; {
		n := min(row, len(rest))
		meaning := ""
		if at == len(b) {
			meaning = fmt.Sprintf("payload of %d bytes", len(p.Data))
		}
		out = append(out, bytesField(at, "data", rest[:n], meaning))
		at += n
		rest = rest[n:]
	}
	if p.HasDigest && len(p.Data) == p.PayloadLen() {
		meaning := "ECRC is correct"
		if !p.CheckECRC() {
			digest := *p
			digest.SetECRC()
			meaning = fmt.Sprintf("ECRC is wrong: want %08x", digest.Digest)
		}
		out = append(out, bytesField(at, "digest", p.AppendDigest(nil), meaning))
	}
	return out
}

func (l *layout) field(p *Packet, header []byte) Field {
	first, last := l.bit/8, (l.bit+l.width-1)/8
	var v uint64
	for _, octet := range header[first : last+1] {
		v = v<<8 | uint64(octet)
	}
	lo := 7 - (l.bit+l.width-1)%8
	v = v >> lo & (1<<l.width - 1)
	f := Field{
		Offset: len(p.Prefix) + first, Size: last - first + 1,
		Hi: lo + l.width - 1, Lo: lo, Name: l.name,
		Value: fmt.Sprintf("%#x", v),
	}
	if l.meaning != nil {
		f.Meaning = l.meaning(p, v)
	}
	return f
}

func bytesField(at int, name string, b []byte, meaning string) Field {
	return Field{Offset: at, Size: len(b), Hi: len(b)*8 - 1, Name: name, Value: hex.EncodeToString(b), Meaning: meaning}
}

// WriteTable prints the fields of a packet: bytes, bits, name, value and meaning.
func WriteTable(w io.Writer, p *Packet) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "BYTE\tBITS\tFIELD\tVALUE\tMEANING")
	for _, f := range p.Fields() {
		at := fmt.Sprint(f.Offset)
		if f.Size > 1 {
			at = fmt.Sprintf("%d-%d", f.Offset, f.Offset+f.Size-1)
		}
		bits := fmt.Sprint(f.Hi)
		if f.Hi != f.Lo {
			bits = fmt.Sprintf("%d:%d", f.Hi, f.Lo)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\t%s\n", at, bits, f.Name, f.Value, f.Meaning)
	}
	return tw.Flush()
}
