package trace

import (
	"fmt"
	"io"
	"strings"

	"github.com/dxpu-project/dxpu/internal/model/trace/sqlite"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

var sqliteMagic = []byte(sqlite.Magic)

// tables reads the tables of a database into a builder.
type tables struct {
	db *sqlite.DB
	b  *workload.Builder
}

// ReadSQLite reads a sqlite export of Nsight Systems, or a database of rocprofv3.
func ReadSQLite(r io.ReaderAt, size int64, o Options) (*workload.Workload, error) {
	db, err := sqlite.Open(r, size)
	if err != nil {
		return nil, err
	}
	progress := func(done, of int) {
		if o.Progress != nil {
			o.Progress(size*int64(done)/int64(of), size)
		}
	}
	runs := rocpdRuns(db)
	if len(runs) > 1 {
		return nil, fmt.Errorf("rocpd: the database holds %d runs: give the database of one", len(runs))
	}
	t := tables{db: db, b: workload.NewBuilder("nsys")}
	var read func(progress func(done, of int)) error
	if len(runs) == 1 {
		t.b.Format = "rocpd"
		read = newRocpd(t, runs[0], o.stepPrefix()).read
	} else {
		read = (&nsys{tables: t, steps: o.stepPrefix(), names: map[int64]uint32{}, nameText: map[int64]string{}, referenced: map[int64]bool{}, contexts: map[nsysContext]int64{}}).read
	}
	if db.WAL {
		t.b.Report.Note("the database is in write-ahead-log mode: rows that were not checkpointed are missing")
	}
	if db.Truncated {
		t.b.Report.Incomplete = true
		t.b.Report.Doubt("the database is truncated")
	}
	if err := read(progress); err != nil {
		return nil, err
	}
	return t.b.Build()
}

// scan calls row for each row of a table with the indices of the named columns.
// A missing table has no rows. The names of required columns end with "!".
func (t *tables) scan(table string, columns []string, count bool, row func(r *sqlite.Row, c []int, where func() string)) error {
	in, ok := t.db.Table(table)
	if !ok {
		return nil
	}
	cols := make([]int, len(columns))
	for i, name := range columns {
		name, required := strings.CutSuffix(name, "!")
		var err error
		if cols[i], err = in.Column(name); err != nil {
			return err
		}
		if cols[i] < 0 && required {
			return fmt.Errorf("%s: table %s has no column %s: the form of this database is not supported", t.b.Format, table, name)
		}
	}
	return t.db.Scan(in, func(r *sqlite.Row) error {
		if count {
			t.b.Report.Events++
		}
		row(r, cols, func() string { return fmt.Sprintf("row %d of %s", r.ID(), table) })
		return nil
	}, func(err error) error {
		if t.b.Report.Events++; t.b.Report.Dropped() > workload.MaxRecords {
			return fmt.Errorf("%s: table %s: too many damaged rows: %w", t.b.Format, table, err)
		}
		t.b.Report.Drop("unreadable in the database", fmt.Sprintf("%s: %v", table, err))
		return nil
	})
}
