package sqlite

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf16"
)

// Row is one row during a Scan.
type Row struct {
	table  Table
	enc    textEncoding
	id     int64
	values []value
}

// value is one value of a record, or a column's default.
type value struct {
	serial uint64 // section 2.1; 0 is NULL
	body   []byte // aliases the page
	text   string // of a default that is text
	// unknown marks a default that is an expression.
	unknown bool
}

// serialInt64 is the serial type of an 8-byte integer.
const serialInt64 = 6

// serialDefault stands for text in UTF-8 in the field text; the file format
// keeps 10 and 11 for internal use.
const serialDefault = 10

func textValue(text string) value { return value{serial: serialDefault, text: text} }

func be64(v int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(v)) }

var errRecord = errors.New("record is truncated")

// parse splits a record (section 2.1) into its values.
func (r *Row) parse(b []byte, id int64) error {
	r.id = id
	r.values = r.values[:0]
	headLen, n := varint(b)
	if n == 0 || headLen > uint64(len(b)) || headLen < uint64(n) {
		return errRecord
	}
	head, body := b[n:headLen], b[headLen:]
	for len(head) > 0 {
		serial, n := varint(head)
		if n == 0 || len(r.values) >= maxColumns {
			return errRecord
		}
		head = head[n:]
		size := serialSize(serial)
		if size > uint64(len(body)) {
			return errRecord
		}
		r.values = append(r.values, value{serial: serial, body: body[:size]})
		body = body[size:]
	}
	return r.addAbsent()
}

// addAbsent adds the defaults of the columns that were added after the row was
// written, which its record lacks.
func (r *Row) addAbsent() error {
	if len(r.values) >= r.table.stored {
		return nil
	}
	for _, c := range r.table.columns {
		if c.stored < len(r.values) {
			continue
		}
		if c.absent.unknown {
			return fmt.Errorf("the row is older than column %s, whose default is an expression", c.name)
		}
		r.values = append(r.values, c.absent)
	}
	return nil
}

// value returns column i, NULL where the table has no such column.
func (r *Row) value(i int) value {
	if i < 0 || i >= len(r.table.columns) {
		return value{}
	}
	if i = r.table.columns[i].stored; i < 0 || i >= len(r.values) {
		return value{}
	}
	return r.values[i]
}

// serialSize returns the length of a value in the record (section 2.1).
func serialSize(serial uint64) uint64 {
	switch {
	case serial <= 4:
		return serial
	case serial == 5:
		return 6
	case serial == 6 || serial == 7:
		return 8
	case serial < 12:
		return 0
	}
	return (serial - 12) / 2
}

// ID returns the rowid.
func (r *Row) ID() int64 { return r.id }

// Int returns column i as an integer; ok is false for NULL, text, blobs, numbers
// with a fraction, and columns that the table does not have.
func (r *Row) Int(i int) (v int64, ok bool) {
	if i >= 0 && i == r.table.rowid {
		return r.id, true
	}
	val := r.value(i)
	switch s := val.serial; {
	case s >= 1 && s <= 6:
		v = int64(int8(val.body[0]))
		for _, b := range val.body[1:] {
			v = v<<8 | int64(b)
		}
		return v, true
	case s == 7:
		f := math.Float64frombits(binary.BigEndian.Uint64(val.body))
		if f != math.Trunc(f) || math.Abs(f) >= math.MaxInt64 {
			return 0, false
		}
		return int64(f), true
	case s == 8, s == 9:
		return int64(s - 8), true
	}
	return 0, false
}

// Text returns column i as a string in UTF-8; "" for anything but text. It does
// not check text that the file declares to be UTF-8.
func (r *Row) Text(i int) string {
	v := r.value(i)
	if v.serial == serialDefault {
		return v.text
	}
	if v.serial < 13 || v.serial%2 == 0 {
		return ""
	}
	if r.enc == utf8Text {
		return string(v.body)
	}
	var order binary.ByteOrder = binary.LittleEndian
	if r.enc == utf16BEText {
		order = binary.BigEndian
	}
	units := make([]uint16, len(v.body)/2)
	for i := range units {
		units[i] = order.Uint16(v.body[2*i:])
	}
	return string(utf16.Decode(units))
}
