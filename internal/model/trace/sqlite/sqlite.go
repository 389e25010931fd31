// Package sqlite reads tables out of a SQLite 3 database file, and nothing
// else: no indices, no SQL, no writing. It holds one page per level of the
// tree in memory and trusts nothing in the file.
//
// The layout is that of https://www.sqlite.org/fileformat2.html; section
// numbers in the comments refer to it.
package sqlite

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Magic begins every database file (section 1.3).
const Magic = "SQLite format 3\x00"

const (
	headerSize  = 100
	minPageSize = 512
	maxPageSize = 65536
	// maxPayload bounds one row; SQLite's own default limit is 1e9.
	maxPayload = 64 << 20
	// maxTreeDepth is far above what a file of 2^32 pages can need.
	maxTreeDepth = 32
	// maxSchema bounds the number of rows of the schema table.
	maxSchema  = 100_000
	maxColumns = 32767 // section 3 of https://www.sqlite.org/limits.html
)

// ErrFormat is what a file gives that is no SQLite database.
var ErrFormat = errors.New("not a SQLite 3 database")

// textEncoding is the header's field at offset 56.
type textEncoding uint32

const (
	utf8Text    textEncoding = 1
	utf16LEText textEncoding = 2
	utf16BEText textEncoding = 3
)

// DB is an open database file.
type DB struct {
	// WAL says that the file was written with a write-ahead log; rows that
	// were not checkpointed into it are missing.
	WAL bool

	r        io.ReaderAt
	pageSize int
	usable   int
	pages    uint32
	enc      textEncoding
	tables   map[string]Table
	names    []string
}

// Table is one table of the schema.
type Table struct {
	Name    string
	Columns []string
	root    uint32
	rowid   int // the column that is an alias of the rowid, -1 for none
	reason  string
}

// Open reads the header and the schema of a database of size bytes.
func Open(r io.ReaderAt, size int64) (*DB, error) {
	var h [headerSize]byte
	if size < headerSize {
		return nil, ErrFormat
	}
	if _, err := r.ReadAt(h[:], 0); err != nil {
		return nil, fmt.Errorf("sqlite: read header: %w", err)
	}
	if string(h[:16]) != Magic {
		return nil, ErrFormat
	}
	db := &DB{r: r, WAL: h[19] == 2, tables: map[string]Table{}}
	db.pageSize = int(binary.BigEndian.Uint16(h[16:]))
	if db.pageSize == 1 {
		db.pageSize = maxPageSize
	}
	if db.pageSize < minPageSize || db.pageSize&(db.pageSize-1) != 0 {
		return nil, fmt.Errorf("sqlite: page size %d: want a power of two from 512 to 65536", db.pageSize)
	}
	if db.usable = db.pageSize - int(h[20]); db.usable < 480 {
		return nil, fmt.Errorf("sqlite: %d bytes reserved in each page of %d", h[20], db.pageSize)
	}
	if h[18] > 2 || h[19] > 2 {
		return nil, fmt.Errorf("sqlite: file format version %d/%d is not known", h[18], h[19])
	}
	switch db.enc = textEncoding(binary.BigEndian.Uint32(h[56:])); db.enc {
	case 0:
		db.enc = utf8Text
	case utf8Text, utf16LEText, utf16BEText:
	default:
		return nil, fmt.Errorf("sqlite: text encoding %d is not known", db.enc)
	}
	db.pages = uint32(min((size+int64(db.pageSize)-1)/int64(db.pageSize), 1<<32-1))
	return db, db.readSchema()
}

// readSchema reads sqlite_schema, the table rooted at page 1 (section 2.6).
func (db *DB) readSchema() error {
	const typ, name, tblName, rootPage, sql, width = 0, 1, 2, 3, 4, 5
	schema := Table{Name: "sqlite_schema", root: 1, rowid: -1, Columns: make([]string, width)}
	n := 0
	err := db.scan(schema, func(row *Row) error {
		if n++; n > maxSchema {
			return fmt.Errorf("sqlite: more than %d entries in the schema", maxSchema)
		}
		if row.Text(typ) != "table" {
			return nil
		}
		root, ok := row.Int(rootPage)
		t := Table{Name: row.Text(name), rowid: -1}
		if !ok || root < 1 || root > int64(db.pages) {
			return nil // virtual tables have no root
		}
		t.root = uint32(root)
		t.parseColumns(row.Text(sql))
		db.tables[strings.ToLower(t.Name)] = t
		db.names = append(db.names, t.Name)
		return nil
	}, func(err error) error { return fmt.Errorf("sqlite: schema: %w", err) })
	return err
}

// Tables lists the names of the tables in the order of the schema.
func (db *DB) Tables() []string { return db.names }

// Table finds a table by name, case-insensitively.
func (db *DB) Table(name string) (Table, bool) {
	t, ok := db.tables[strings.ToLower(name)]
	return t, ok
}

// Column is the index of a column by name, case-insensitively; -1 when there
// is none.
func (t Table) Column(name string) int {
	for i, c := range t.Columns {
		if strings.EqualFold(c, name) {
			return i
		}
	}
	return -1
}

// Scan calls row for each row of the table in the order of its rowid; the row
// is valid during the call only. Damaged rows and pages go to damaged, which
// may be nil, and the scan goes on after them; the scan stops with the first
// error that either function returns.
func (db *DB) Scan(t Table, row func(*Row) error, damaged func(error) error) error {
	if t.reason != "" {
		return fmt.Errorf("sqlite: table %s: %s", t.Name, t.reason)
	}
	if damaged == nil {
		damaged = func(error) error { return nil }
	}
	return db.scan(t, row, damaged)
}
