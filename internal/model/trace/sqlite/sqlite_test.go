package sqlite

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func load(tb testing.TB, name string) []byte {
	tb.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

func open(tb testing.TB, b []byte) *DB {
	tb.Helper()
	db, err := Open(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		tb.Fatal(err)
	}
	return db
}

func columnNames(t Table) []string {
	var out []string
	for _, c := range t.columns {
		out = append(out, c.name)
	}
	return out
}

var files = []string{"types.sqlite", "types16le.sqlite", "types16be.sqlite"}

func TestValues(t *testing.T) {
	long := strings.Repeat("long ", 400)
	for _, name := range files {
		t.Run(name, func(t *testing.T) {
			db := open(t, load(t, name))
			tab, ok := db.Table("T")
			if !ok {
				t.Fatalf("no table t in %q", db.Tables())
			}
			if d := cmp.Diff([]string{"id", "i", "s", "r", "b", "added"}, columnNames(tab)); d != "" {
				t.Error(d)
			}
			var got []string
			err := db.Scan(tab, func(r *Row) error {
				id, ok := r.Int(tab.index("ID"))
				if !ok || id != r.ID() {
					t.Errorf("row %d: id %d, %v", r.ID(), id, ok)
				}
				i, okI := r.Int(1)
				whole, okR := r.Int(3)
				if _, ok := r.Int(5); ok {
					t.Errorf("row %d has a column that was added later", id)
				}
				got = append(got, fmt.Sprintf("%d %d %v %s %d %v %s", id, i, okI, r.Text(2), whole, okR, r.Text(4)))
				return nil
			}, func(err error) error { return err })
			if err != nil {
				t.Fatal(err)
			}
			want := []string{
				"1 0 true  0 true ", "2 1 true a 0 false ", "3 -1 true é€😀 -2 true ", "4 127 true  0 false ",
				"5 -32768 true x 0 false ", "6 8388607 true x 3 true ", "7 -2147483648 true x 3 true ",
				"8 140737488355327 true x 3 true ", "9 -9223372036854775808 true x 3 true ",
				"4611686018427387904 42 true " + long + " 3 true ",
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestSchema(t *testing.T) {
	db := open(t, load(t, "types.sqlite"))
	odd, ok := db.Table("odd name")
	if !ok || odd.index("A B") != 0 || odd.index("c") != 1 || odd.index("d") != 2 || len(odd.columns) != 3 {
		t.Errorf("%+v", odd)
	}
	late, _ := db.Table("late")
	if err := db.Scan(late, func(r *Row) error {
		if v, ok := r.Int(0); !ok || v != 77 || r.Text(1) != "seven" || r.Text(9) != "" || r.Text(-1) != "" {
			t.Errorf("%d %q", v, r.Text(1))
		}
		return nil
	}, nil); err != nil {
		t.Error(err)
	}
	keyed, _ := db.Table("keyed")
	if err := db.Scan(keyed, nil, nil); err == nil || !strings.Contains(err.Error(), "WITHOUT ROWID") {
		t.Errorf("a table without rowid: %v", err)
	}
	empty, _ := db.Table("empty")
	if err := db.Scan(empty, func(*Row) error { t.Error("a row"); return nil }, nil); err != nil {
		t.Error(err)
	}
	if _, ok := db.Table("v"); ok {
		t.Error("Table returned a view")
	}
	if _, ok := db.Table("nothing"); ok {
		t.Error("Table returned a table that does not exist")
	}
}

func TestScanStops(t *testing.T) {
	db := open(t, load(t, "types.sqlite"))
	tab, _ := db.Table("t")
	stop := errors.New("stop")
	n := 0
	if err := db.Scan(tab, func(*Row) error { n++; return stop }, nil); !errors.Is(err, stop) || n != 1 {
		t.Errorf("%v after %d rows", err, n)
	}
}

// rows scans the first tables of a file. In a damaged file cells overlap, and a few
// kilobytes can hold thousands of tables.
func rows(db *DB) (n, damaged int, err error) {
	for _, name := range db.Tables()[:min(len(db.Tables()), 12)] {
		tab, _ := db.Table(name)
		_ = db.Scan(tab, func(r *Row) error {
			n++
			for i := range tab.columns {
				r.Int(i)
				_ = r.Text(i)
			}
			return nil
		}, func(error) error { damaged++; return nil })
	}
	return n, damaged, nil
}

func TestTruncationAtEachLength(t *testing.T) {
	whole := load(t, "types.sqlite")
	all, _, _ := rows(open(t, whole))
	for n := range whole {
		db, err := Open(bytes.NewReader(whole[:n]), int64(n))
		if err != nil {
			if db != nil && n < headerSize {
				t.Fatalf("length %d: a database and an error", n)
			}
			continue
		}
		got, damaged, _ := rows(db)
		if got > all || got == all && damaged == 0 && n < len(whole)-1024 {
			t.Fatalf("length %d of %d: %d rows of %d, %d damaged", n, len(whole), got, all, damaged)
		}
	}
}

func TestHeader(t *testing.T) {
	for _, tc := range []struct {
		name string
		at   int
		val  []byte
		ok   bool
	}{
		{"as it is", 0, []byte("S"), true},
		{"magic", 0, []byte("X"), false},
		{"page size 0", 16, []byte{0, 0}, false},
		{"page size 513", 16, []byte{2, 1}, false},
		{"page size 256", 16, []byte{1, 0}, false},
		{"reserved space", 20, []byte{33}, false},
		{"version 3", 18, []byte{3, 3}, false},
		{"encoding 4", 56, []byte{0, 0, 0, 4}, false},
		{"encoding 0", 56, []byte{0, 0, 0, 0}, true},
		{"write-ahead log", 18, []byte{2, 2}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := load(t, "types.sqlite")
			copy(b[tc.at:], tc.val)
			_, err := Open(bytes.NewReader(b), int64(len(b)))
			if (err == nil) != tc.ok {
				t.Errorf("%v, want ok %v", err, tc.ok)
			}
		})
	}
}

// A scan ends although pages form a cycle.
func TestCycle(t *testing.T) {
	const pageSize = 512
	b := load(t, "types.sqlite")
	for p := 1; p < len(b)/pageSize; p++ {
		page := b[p*pageSize:]
		copy(page, []byte{interiorTable, 0, 0, 0, 1, 0, 12, 0, 0, 0, 0, 2, 0, 14, 0, 0, 0, 2, 1})
	}
	if _, err := Open(bytes.NewReader(b), int64(len(b))); err == nil || !strings.Contains(err.Error(), "cycle") {
		t.Errorf("in the schema: %v", err)
	}
	db := open(t, load(t, "types.sqlite"))
	db.r = bytes.NewReader(b)
	if _, damaged, _ := rows(db); damaged == 0 {
		t.Error("in a table: not reported")
	}
}

// A page of cells that overlap costs no more than a page of cells that do not.
func TestOverlappingCells(t *testing.T) {
	const pageSize, cells = 512, 200
	b := load(t, "types.sqlite")
	db := open(t, bytes.Clone(b))
	tab, _ := db.Table("t")
	page := b[(tab.root-1)*pageSize:][:pageSize]
	copy(page, []byte{leafTable, 0, 0, 0, cells})
	for i := range cells {
		binary.BigEndian.PutUint16(page[leafHeader+2*i:], pageSize-64)
	}
	copy(page[pageSize-64:], []byte{62, 1, 61}) // a row of 62 bytes: 60 columns, all NULL
	clear(page[pageSize-61:])
	db.r = bytes.NewReader(b)
	rows := 0
	err := db.Scan(tab, func(*Row) error { rows++; return nil }, func(err error) error { return err })
	if err == nil || !strings.Contains(err.Error(), "its cells overlap") || rows > 2 {
		t.Errorf("%d rows, %v", rows, err)
	}
}

// The number of steps to read a definition is linear in its length: at 2 MB each of
// these would take minutes otherwise.
func TestLongDefinitions(t *testing.T) {
	const n = 1 << 20
	for name, tc := range map[string]struct {
		sql     string
		columns int
	}{
		"AS":          {"CREATE TABLE t (a " + strings.Repeat("AS ", n) + ")", 1},
		"quotes":      {`CREATE TABLE t ("` + strings.Repeat(`""`, n) + `")`, 1},
		"type":        {"CREATE TABLE t (a " + strings.Repeat("b ", n) + ")", 1},
		"keys":        {"CREATE TABLE t (" + strings.Repeat("a,", 30000) + "CONSTRAINT c " + strings.Repeat("PRIMARY KEY (z) ", n/8) + ")", 30000},
		"parentheses": {"CREATE TABLE t (a" + strings.Repeat("( ,", n) + ")", 1},
	} {
		tab := Table{rowid: -1}
		tab.parseColumns(tc.sql)
		if len(tab.columns) != tc.columns {
			t.Errorf("%s: %d columns, want %d", name, len(tab.columns), tc.columns)
		}
	}
}

// A definition cannot take many times its size in memory.
func TestTooLongDefinition(t *testing.T) {
	sql := "CREATE TABLE t (a" + strings.Repeat("(", maxDefinition) + ")"
	tab := Table{rowid: -1}
	if tab.parseColumns(sql); len(tab.columns) != 0 || !strings.Contains(tab.reason, "longer than 4 MiB") {
		t.Errorf("%d columns, %q", len(tab.columns), tab.reason)
	}
	tab = Table{rowid: -1}
	rest := strings.Repeat(" ", maxDefinition-len("CREATE TABLE t (a)"))
	if tab.parseColumns("CREATE TABLE t (a)" + rest); len(tab.columns) != 1 {
		t.Errorf("a definition of the greatest length: %q", tab.reason)
	}
}

func TestVarint(t *testing.T) {
	for _, tc := range []struct {
		b []byte
		v uint64
		n int
	}{
		{nil, 0, 0},
		{[]byte{0}, 0, 1},
		{[]byte{0x7f}, 127, 1},
		{[]byte{0x81, 0}, 128, 2},
		{[]byte{0x81}, 0, 0},
		{bytes.Repeat([]byte{0xff}, 9), 1<<64 - 1, 9},
		{bytes.Repeat([]byte{0xff}, 8), 0, 0},
		{bytes.Repeat([]byte{0xff}, 10), 1<<64 - 1, 9},
	} {
		if v, n := varint(tc.b); v != tc.v || n != tc.n {
			t.Errorf("%x: %d, %d; want %d, %d", tc.b, v, n, tc.v, tc.n)
		}
	}
}

func FuzzScan(f *testing.F) {
	for _, name := range files {
		f.Add(load(f, name))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		db, err := Open(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			return
		}
		if _, _, err := rows(db); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzColumns(f *testing.F) {
	f.Add("CREATE TABLE t (id INTEGER PRIMARY KEY, [a b] TEXT, \"c\" INT DEFAULT (1), PRIMARY KEY (c)) -- x")
	f.Add("CREATE TABLE t (a /* b, */ TEXT) WITHOUT ROWID")
	f.Fuzz(func(t *testing.T, sql string) {
		tab := Table{rowid: -1}
		tab.parseColumns(sql)
		if tab.rowid >= len(tab.columns) {
			t.Fatalf("%q: column %d of %d is the rowid", sql, tab.rowid, len(tab.columns))
		}
	})
}
