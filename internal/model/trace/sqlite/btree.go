package sqlite

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Kinds of b-tree pages (section 1.6). The pages of an index are not supported.
const (
	interiorTable = 0x05
	leafTable     = 0x0d
)

// Sizes of the page header.
const (
	leafHeader     = 8
	interiorHeader = 12
)

// scanner walks one table b-tree.
type scanner struct {
	db      *DB
	row     Row
	each    func(*Row) error
	damaged func(error) error
	visited uint32
	pages   [][]byte // one per level
	// payload holds a row that spans several pages, overflow one of its pages.
	payload, overflow []byte
}

// errStop stops the scan and carries the error that Scan returns, or nil.
type errStop struct{ error }

func (e errStop) Error() string { return "stopped" }

func (e errStop) Unwrap() error { return e.error }

func (db *DB) scan(t Table, each func(*Row) error, damaged func(error) error) error {
	s := &scanner{db: db, each: each, damaged: damaged, row: Row{table: t, enc: db.enc}}
	err := s.tree(t.root, 0)
	var stop errStop
	if errors.As(err, &stop) {
		return stop.error
	}
	if err != nil {
		return damaged(err)
	}
	return nil
}

// report passes damage to the caller, which may stop the scan.
func (s *scanner) report(err error) error {
	if stop := (errStop{}); errors.As(err, &stop) {
		return stop
	}
	if err := s.damaged(err); err != nil {
		return errStop{err}
	}
	return nil
}

// page reads a page into the buffer of its level.
func (s *scanner) page(number uint32, level int) (page []byte, header int, err error) {
	for len(s.pages) <= level {
		s.pages = append(s.pages, make([]byte, s.db.pageSize))
	}
	page = s.pages[level]
	if err := s.read(page, number); err != nil {
		return nil, 0, err
	}
	if number == 1 {
		header = headerSize
	}
	return page, header, nil
}

func (s *scanner) read(page []byte, number uint32) error {
	if number < 1 || number > s.db.pages {
		return fmt.Errorf("page number %d: the file has %d pages", number, s.db.pages)
	}
	// A table uses each page once, so more reads than pages mean a cycle. The
	// scan stops, because it would follow the cycle once for every cell.
	if s.visited++; s.visited > s.db.pages {
		return errStop{s.damaged(fmt.Errorf("page %d: the pages form a cycle", number))}
	}
	n, err := s.db.r.ReadAt(page, int64(number-1)*int64(s.db.pageSize))
	if err != nil && (!errors.Is(err, io.EOF) || n != len(page)) {
		return fmt.Errorf("page %d: %w", number, err)
	}
	return nil
}

// tree scans the subtree of a page. It reports damage instead of returning it.
func (s *scanner) tree(number uint32, level int) error {
	if level > maxTreeDepth {
		return s.report(fmt.Errorf("page %d: the tree is deeper than %d", number, maxTreeDepth))
	}
	page, at, err := s.page(number, level)
	if err != nil {
		return s.report(err)
	}
	kind := page[at]
	cells := int(binary.BigEndian.Uint16(page[at+3:]))
	size := leafHeader
	if kind == interiorTable {
		size = interiorHeader
	} else if kind != leafTable {
		return s.report(fmt.Errorf("page %d: kind %#02x is not that of a table page", number, kind))
	}
	if at+size+2*cells > s.db.usable {
		return s.report(fmt.Errorf("page %d: %d cells exceed the page", number, cells))
	}
	room := s.db.usable - (at + size + 2*cells)
	for i := range cells {
		ptr := int(binary.BigEndian.Uint16(page[at+size+2*i:]))
		if kind == leafTable {
			var used int
			used, err = s.leafCell(page, number, ptr)
			// Cells that overlap could make a small file last for hours.
			if room -= used; room < 0 && err == nil {
				return s.report(fmt.Errorf("page %d: its cells overlap", number))
			}
		} else if ptr+4 > s.db.usable {
			err = s.report(fmt.Errorf("page %d: cell %d lies outside the page", number, i))
		} else {
			err = s.tree(binary.BigEndian.Uint32(page[ptr:]), level+1)
		}
		if err != nil {
			return err
		}
	}
	if kind == interiorTable {
		return s.tree(binary.BigEndian.Uint32(page[at+8:]), level+1)
	}
	return nil
}

// leafCell parses one row: size, rowid, payload, overflow page (section 1.6). It
// returns the bytes of the page that it used.
func (s *scanner) leafCell(page []byte, number uint32, ptr int) (used int, err error) {
	body := page[:s.db.usable]
	if ptr >= len(body) {
		return 0, s.report(fmt.Errorf("page %d: a cell lies outside the page", number))
	}
	size, n := varint(body[ptr:])
	id, m := varint(body[min(ptr+n, len(body)):])
	if n == 0 || m == 0 {
		return 0, s.report(fmt.Errorf("page %d: a cell is truncated", number))
	}
	if size > maxPayload {
		return 0, s.report(fmt.Errorf("page %d: a row of %d bytes exceeds the limit", number, size))
	}
	used = n + m + s.localSize(int(size))
	payload, err := s.assemble(body[ptr+n+m:], int(size))
	if err == nil {
		err = s.row.parse(payload, int64(id))
	}
	if err != nil {
		return used, s.report(fmt.Errorf("page %d: row %d: %w", number, int64(id), err))
	}
	if err := s.each(&s.row); err != nil {
		return used, errStop{err}
	}
	if s.row.err != nil {
		return used, errStop{s.row.err}
	}
	return used, nil
}

// localSize returns how much of a payload of size bytes is in its cell (section 1.6).
func (s *scanner) localSize(size int) int {
	u := s.db.usable
	if size <= u-35 {
		return size
	}
	least := (u-12)*32/255 - 23
	if here := least + (size-least)%(u-4); here <= u-35 {
		return here
	}
	return least
}

// assemble returns a payload of size bytes, part of which may be on overflow
// pages (sections 1.6 and 1.7). The result aliases buffers that the next row
// overwrites.
func (s *scanner) assemble(local []byte, size int) ([]byte, error) {
	here := s.localSize(size)
	if here == size {
		if size > len(local) {
			return nil, errors.New("truncated")
		}
		return local[:size], nil
	}
	if here+4 > len(local) {
		return nil, errors.New("truncated")
	}
	next := binary.BigEndian.Uint32(local[here:])
	s.payload = append(s.payload[:0], local[:here]...)
	if s.overflow == nil {
		s.overflow = make([]byte, s.db.pageSize)
	}
	for len(s.payload) < size {
		if err := s.read(s.overflow, next); err != nil {
			return nil, fmt.Errorf("overflow: %w", err)
		}
		next = binary.BigEndian.Uint32(s.overflow)
		s.payload = append(s.payload, s.overflow[4:4+min(s.db.usable-4, size-len(s.payload))]...)
	}
	return s.payload, nil
}

// varint reads SQLite's big-endian base-128 integer of up to nine bytes
// (section 1.6); n is 0 if b is truncated.
func varint(b []byte) (v uint64, n int) {
	const longest = 9
	for n < len(b) && n < longest-1 {
		v = v<<7 | uint64(b[n]&0x7f)
		n++
		if b[n-1] < 0x80 {
			return v, n
		}
	}
	if n == longest-1 && n < len(b) {
		return v<<8 | uint64(b[n]), longest
	}
	return 0, 0
}
