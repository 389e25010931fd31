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
	err    error // set by value
}

type value struct {
	serial uint64 // section 2.1; 0 is NULL
	body   []byte // aliases the page
}

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
	return nil
}

// value returns column i. It returns NULL for a column that the table does not have,
// and for one that was added after the row was written; if that has a default, the
// scan fails.
func (r *Row) value(i int) value {
	if i < 0 || i >= len(r.table.columns) {
		return value{}
	}
	c := &r.table.columns[i]
	switch {
	case c.stored >= 0 && c.stored < len(r.values):
		return r.values[c.stored]
	case c.hasDefault && c.stored >= 0:
		r.err = fmt.Errorf("sqlite: table %s: row %d is older than column %s: its default value is not supported (UPDATE %[1]s SET %[3]s = %[3]s stores it)", r.table.Name, r.id, c.name)
	}
	return value{}
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
