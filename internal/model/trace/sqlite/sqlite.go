// Package sqlite reads the rows of tables from a SQLite 3 database file. It
// neither writes nor reads indices and executes no SQL. It holds one page per
// level of the tree in memory and validates everything that it reads.
//
// Section numbers in the comments are those of
// https://www.sqlite.org/fileformat2.html.
package sqlite

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
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
	// maxDefinition bounds the text that defines a table, in bytes: each may be a token
	// of 32 bytes in memory. A table with SQLite's most columns fits.
	maxDefinition = 4 << 20
	// maxTreeDepth is far above the depth of a tree of 2^32 pages.
	maxTreeDepth = 32
	// maxSchema bounds the number of rows of the schema table.
	maxSchema  = 100_000
	maxColumns = 32767 // section 3 of https://www.sqlite.org/limits.html
)

// ErrFormat is returned by Open for a file that is not a SQLite database.
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
	// WAL is set if the file is in write-ahead-log mode. Open does not see the
	// log: rows that were not checkpointed into the file are missing.
	WAL bool
	// Truncated is set if the file is shorter than the size in its header.
	Truncated bool

	r        io.ReaderAt
	pageSize int
	usable   int
	pages    uint32
	enc      textEncoding
	tables   map[string]Table
}

// Table is one table of the schema.
type Table struct {
	Name    string
	columns []column
	stored  int // number of columns that records hold
	root    uint32
	rowid   int    // the column that is an alias of the rowid, -1 for none
	keyed   bool   // the definition has a constraint PRIMARY KEY
	reason  string // why the table cannot be read, or ""
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
		return nil, fmt.Errorf("sqlite: %d of the %d bytes of each page are reserved: too many", h[20], db.pageSize)
	}
	if h[18] > 2 || h[19] > 2 {
		return nil, fmt.Errorf("sqlite: file format version %d/%d is not supported", h[18], h[19])
	}
	switch db.enc = textEncoding(binary.BigEndian.Uint32(h[56:])); db.enc {
	case 0:
		db.enc = utf8Text
	case utf8Text, utf16LEText, utf16BEText:
	default:
		return nil, fmt.Errorf("sqlite: text encoding %d is not supported", db.enc)
	}
	db.pages = uint32(min((size+int64(db.pageSize)-1)/int64(db.pageSize), 1<<32-1))
	// The header's size is valid if the two change counters agree (section 1.3.7).
	if string(h[24:28]) == string(h[92:96]) {
		db.Truncated = size < int64(binary.BigEndian.Uint32(h[28:]))*int64(db.pageSize)
	}
	return db, db.readSchema()
}

// readSchema reads sqlite_schema, the table rooted at page 1 (section 2.6).
func (db *DB) readSchema() error {
	const typ, name, tblName, rootPage, sql, width = 0, 1, 2, 3, 4, 5
	schema := Table{Name: "sqlite_schema", root: 1, rowid: -1}
	for i := range width {
		schema.columns = append(schema.columns, column{stored: i})
	}
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
		return nil
	}, func(err error) error { return fmt.Errorf("sqlite: schema: %w", err) })
	return err
}

// Table returns the table of that name, case-insensitively.
func (db *DB) Table(name string) (Table, bool) {
	t, ok := db.tables[strings.ToLower(name)]
	return t, ok
}

// Names returns the names of all tables, in lower case and sorted.
func (db *DB) Names() []string { return slices.Sorted(maps.Keys(db.tables)) }

// Column returns the index of a column by name, case-insensitively; -1 if there is
// none. It fails for a generated column whose values are not stored.
func (t Table) Column(name string) (int, error) {
	i := t.index(name)
	if i >= 0 && t.columns[i].stored < 0 {
		return -1, fmt.Errorf("sqlite: table %s: column %s is generated and its values are not stored", t.Name, name)
	}
	return i, nil
}

func (t Table) index(name string) int {
	return slices.IndexFunc(t.columns, func(c column) bool { return strings.EqualFold(c.name, name) })
}

// Scan calls row for each row of the table in ascending order of the rowid. The
// row is valid until row returns. Scan reports damaged rows and pages to damaged,
// which may be nil, and continues after them. It stops at the first error that
// row or damaged returns.
func (db *DB) Scan(t Table, row func(*Row) error, damaged func(error) error) error {
	if t.reason != "" {
		return fmt.Errorf("sqlite: table %s: %s", t.Name, t.reason)
	}
	if damaged == nil {
		damaged = func(error) error { return nil }
	}
	return db.scan(t, row, damaged)
}
