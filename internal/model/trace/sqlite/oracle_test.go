package sqlite

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// query runs SQL on a database with the sqlite3 program.
func query(t *testing.T, db, sql string) string {
	t.Helper()
	program, err := exec.LookPath("sqlite3")
	if err != nil {
		t.Skip("sqlite3 is not in PATH")
	}
	out, err := exec.Command(program, "-batch", "-bail", db, sql).CombinedOutput()
	if err != nil {
		t.Fatalf("sqlite3: %v\n%s\n%s", err, sql, out)
	}
	return string(out)
}

// Scan returns what a SELECT of the sqlite3 program returns.
func TestScanAgreesWithSQLite(t *testing.T) {
	for _, tc := range []struct{ name, sql string }{
		{"generated columns", "CREATE TABLE t (a INT, v INT AS (a+1), s INT GENERATED ALWAYS AS (a+2) STORED, w TEXT GENERATED ALWAYS AS (a || ',x') VIRTUAL, z TEXT);" +
			"INSERT INTO t (a, z) VALUES (1, 'one'), (2, 'two')"},
		{"added columns", "CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (2); ALTER TABLE t ADD COLUMN z INT DEFAULT NULL; ALTER TABLE t ADD COLUMN l; INSERT INTO t VALUES (3, 4, 'new')"},
		{"defaults in all rows", "CREATE TABLE t (a INT, b TEXT DEFAULT 'it''s, (odd', c INT DEFAULT (1 + 2), d REAL DEFAULT -1e+3); INSERT INTO t (a) VALUES (1), (2)"},
		{"key", "CREATE TABLE t (id INTEGER PRIMARY KEY, a TEXT); INSERT INTO t VALUES (5, 'x'), (3, 'y')"},
		{"descending key", "CREATE TABLE t (id INTEGER PRIMARY KEY DESC, a TEXT); INSERT INTO t VALUES (5, 'x'), (3, 'y'), (NULL, 'z')"},
		{"key as constraint", "CREATE TABLE t (id INTEGER, a TEXT, PRIMARY KEY (id)); INSERT INTO t VALUES (5, 'x'), (NULL, 'y')"},
		{"descending key as constraint", "CREATE TABLE t (id INTEGER, a TEXT, PRIMARY KEY (id DESC)); INSERT INTO t VALUES (5, 'x'), (NULL, 'y')"},
		{"named key as constraint", "CREATE TABLE t (id INTEGER, a TEXT, CONSTRAINT k PRIMARY KEY ('id' ASC) ON CONFLICT REPLACE); INSERT INTO t VALUES (5, 'x')"},
		{"key as last constraint", "CREATE TABLE t (id INTEGER, a TEXT, UNIQUE (a) PRIMARY KEY (id COLLATE NOCASE)); INSERT INTO t VALUES (5, 'x')"},
		{"automatic key", "CREATE TABLE t (id INTEGER NOT NULL PRIMARY KEY ASC AUTOINCREMENT, a TEXT); INSERT INTO t VALUES (5, 'x')"},
		{"key of quoted type", "CREATE TABLE t ([id] \"INTEGER\" PRIMARY KEY, a TEXT); INSERT INTO t VALUES (5, 'x'); INSERT INTO t (a) VALUES ('y')"},
		{"key of two columns", "CREATE TABLE t (id INTEGER, a TEXT, PRIMARY KEY (id, a)); INSERT INTO t VALUES (NULL, 'x')"},
		{"key of another type", "CREATE TABLE t (id INT PRIMARY KEY, a TEXT); INSERT INTO t VALUES (NULL, 'x')"},
		{"key of type INTEGER(5)", "CREATE TABLE t (id INTEGER(5) PRIMARY KEY, a TEXT); INSERT INTO t VALUES (NULL, 'x')"},
		{"key of text as constraint", "CREATE TABLE t (id TEXT, a INT, PRIMARY KEY (id)); INSERT INTO t VALUES (NULL, 1)"},
		{"commas and parentheses in strings", "CREATE TABLE t (a INT DEFAULT '(', b TEXT DEFAULT ',', c TEXT CHECK (c <> ')'), \"d\"\"e\" INT); INSERT INTO t VALUES (1, 'b', 'c', 4)"},
		{"set default", "CREATE TABLE t (a INT REFERENCES p (x) ON DELETE SET DEFAULT, b INT); INSERT INTO t VALUES (1, 2)"},
		{"16-bit text", "PRAGMA encoding = 'UTF-16le'; CREATE TABLE t (a TEXT); INSERT INTO t VALUES ('é'); ALTER TABLE t ADD COLUMN b TEXT"},
		{"added column after UPDATE", "CREATE TABLE t (a INT); INSERT INTO t VALUES (1); ALTER TABLE t ADD COLUMN i INT DEFAULT 42; UPDATE t SET i = i"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "db")
			query(t, file, tc.sql)
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			db := open(t, b)
			tab, _ := db.Table("t")
			var fields []string
			for _, c := range tab.columns {
				name := `"` + strings.ReplaceAll(c.name, `"`, `""`) + `"`
				if c.stored < 0 {
					fields = append(fields, "'computed'")
					if _, err := tab.Column(c.name); err == nil || !strings.Contains(err.Error(), "generated") {
						t.Errorf("column %s: error %v", c.name, err)
					}
					continue
				}
				// Int returns whole numbers, Text returns text, and neither returns the rest.
				fields = append(fields, fmt.Sprintf("CASE typeof(%[1]s) WHEN 'integer' THEN 'i' || %[1]s WHEN 'real' THEN 'i' || CAST(%[1]s AS INTEGER) WHEN 'text' THEN 't' || %[1]s ELSE '' END", name))
			}
			want := query(t, file, "SELECT "+strings.Join(fields, " || '|' || ")+" FROM t ORDER BY rowid")
			var got strings.Builder
			err = db.Scan(tab, func(r *Row) error {
				for i, c := range tab.columns {
					if i > 0 {
						got.WriteString("|")
					}
					switch v, ok := r.Int(i); {
					case c.stored < 0:
						got.WriteString("computed")
					case ok:
						fmt.Fprintf(&got, "i%d", v)
					case r.Text(i) != "":
						got.WriteString("t" + r.Text(i))
					}
				}
				got.WriteString("\n")
				return nil
			}, func(err error) error { return err })
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(want, got.String()); d != "" {
				t.Errorf("columns %q: -sqlite3 +Scan:\n%s", columnNames(tab), d)
			}
		})
	}
}

// A scan fails if it needs the default of a column that was added after a row was
// written.
func TestDefaultOfAddedColumn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "db")
	query(t, file, "CREATE TABLE t (a INT); INSERT INTO t VALUES (1); ALTER TABLE t ADD COLUMN b INT DEFAULT 42; INSERT INTO t VALUES (2, 3)")
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	db := open(t, b)
	tab, _ := db.Table("t")
	scan := func(column int) error {
		return db.Scan(tab, func(r *Row) error { r.Int(column); return nil }, func(err error) error { return err })
	}
	if err := scan(0); err != nil {
		t.Errorf("without the column: %v", err)
	}
	if err := scan(1); err == nil || !strings.Contains(err.Error(), "row 1 is older than column b") {
		t.Errorf("with the column: %v", err)
	}
}
