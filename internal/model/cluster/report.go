package cluster

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Report is the outcome of a scenario, in tables and plots.
type Report struct {
	Name        string   `json:"name"`
	Description string   `json:"description,omitempty"`
	Facts       []string `json:"facts"`
	Tables      []Table  `json:"tables"`
	Plots       []Plot   `json:"-"`
}

// Table is a table whose first column is a name.
type Table struct {
	Name    string // a word without spaces
	Title   string
	First   string // title of the column of names
	Columns []Column
	Rows    []Row
	Note    string
}

// Column is a column of numbers. NaN stands for no value.
type Column struct {
	Key   string // a word without spaces, with its unit
	Title string // for people, with its unit
	// Decimals is the number of digits behind the point.
	Decimals int
}

// Row is a line of a table.
type Row struct {
	Name   string
	Values []float64
}

// Plot is a drawing of lines over one axis.
type Plot struct {
	Title, X, Y string
	Steps       bool // each line keeps its value up to the next point
	Lines       []Line
}

// Line is one line of a plot.
type Line struct {
	Name string
	X, Y []float64
	// Second is set for the line of the second scenario of a comparison, which stands behind
	// that of the first one.
	Second bool
}

// Covers reports whether the line hides another one.
func (l *Line) Covers(other *Line) bool {
	return slices.Equal(l.X, other.X) && slices.Equal(l.Y, other.Y)
}

// none is the value of a cell that has none.
var none = math.NaN()

// Text returns a cell for people.
func (c Column) Text(v float64) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case math.IsInf(v, 1):
		return "never"
	}
	return grouped(strconv.FormatFloat(v, 'f', c.Decimals, 64))
}

// grouped puts a comma between groups of three digits.
func grouped(number string) string {
	whole, rest := number, ""
	if at := strings.IndexByte(number, '.'); at >= 0 {
		whole, rest = number[:at], number[at:]
	}
	for at := len(whole) - 3; at > 0 && whole[at-1] != '-'; at -= 3 {
		whole = whole[:at] + "," + whole[at:]
	}
	return whole + rest
}

// count returns a number and its noun, in the plural unless it is one.
func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// MarshalJSON writes the rows as objects with the keys of the columns.
func (t Table) MarshalJSON() ([]byte, error) {
	rows := make([]json.RawMessage, len(t.Rows))
	for i, r := range t.Rows {
		var b bytes.Buffer
		name, err := json.Marshal(r.Name)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&b, `{"name":%s`, name)
		for k, c := range t.Columns {
			fmt.Fprintf(&b, ",%q:%s", c.Key, jsonNumber(r.Values[k]))
		}
		b.WriteByte('}')
		rows[i] = b.Bytes()
	}
	return json.Marshal(struct {
		Name  string            `json:"name"`
		Title string            `json:"title"`
		Rows  []json.RawMessage `json:"rows"`
		Note  string            `json:"note,omitempty"`
	}{t.Name, t.Title, rows, t.Note})
}

// jsonNumber rounds to nine digits, which are the same on every machine.
func jsonNumber(v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return "null"
	}
	return strconv.FormatFloat(v, 'g', 9, 64)
}

// WriteCSV writes all tables, one line for each cell: table, row, column, value.
func (r *Report) WriteCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	if err := out.Write([]string{"table", "name", "column", "value"}); err != nil {
		return err
	}
	for _, t := range r.Tables {
		for _, row := range t.Rows {
			for k, c := range t.Columns {
				if math.IsNaN(row.Values[k]) {
					continue
				}
				if err := out.Write([]string{t.Name, plainCell(row.Name), c.Key, jsonNumber(row.Values[k])}); err != nil {
					return err
				}
			}
		}
	}
	out.Flush()
	return out.Error()
}

// plainCell keeps a spreadsheet from taking a name for a formula.
func plainCell(s string) string {
	if strings.ContainsAny(s[:min(len(s), 1)], "=+-@\t\r") {
		return "'" + s
	}
	return s
}

// Compare puts two reports side by side: for each table that both have, each row and
// column that both have, as the value in a, that in b, and the difference. Each plot that
// both have shows the lines that both have.
func Compare(a, b *Report) *Report {
	out := &Report{
		Name:  a.Name + " and " + b.Name,
		Facts: []string{"A: " + a.Name + ": " + strings.Join(a.Facts, "; "), "B: " + b.Name + ": " + strings.Join(b.Facts, "; ")},
	}
	for _, ta := range a.Tables {
		for _, tb := range b.Tables {
			if ta.Name == tb.Name {
				if t := compareTables(&ta, &tb); len(t.Rows) > 0 {
					out.Tables = append(out.Tables, t)
				}
			}
		}
	}
	for _, one := range []struct {
		name    string
		in, not *Report
	}{{"A", a, b}, {"B", b, a}} {
		if names := onlyIn(one.in, one.not); len(names) > 0 {
			out.Facts = append(out.Facts, "only in "+one.name+", and not shown: "+strings.Join(names, ", "))
		}
	}
	for i := range a.Plots {
		for k := range b.Plots {
			if p := comparePlots(&a.Plots[i], &b.Plots[k]); len(p.Lines) > 0 {
				out.Plots = append(out.Plots, p)
			}
		}
	}
	return out
}

// onlyIn returns the names of rows of one report that no table of the other one has.
func onlyIn(in, not *Report) (names []string) {
	has := func(r *Report, name string) bool {
		return slices.ContainsFunc(r.Tables, func(t Table) bool {
			return slices.ContainsFunc(t.Rows, func(row Row) bool { return row.Name == name })
		})
	}
	for _, t := range in.Tables {
		for _, row := range t.Rows {
			if !has(not, row.Name) && !slices.Contains(names, row.Name) {
				names = append(names, row.Name)
			}
		}
	}
	return names
}

// comparePlots returns a plot without lines if the two are not of the same thing.
func comparePlots(a, b *Plot) Plot {
	out := Plot{Title: a.Title, X: a.X, Y: a.Y, Steps: a.Steps}
	if a.Title != b.Title || a.X != b.X || a.Y != b.Y {
		return out
	}
	for _, la := range a.Lines {
		for _, lb := range b.Lines {
			if la.Name == lb.Name {
				out.Lines = append(out.Lines, Line{Name: la.Name + ", A", X: la.X, Y: la.Y}, Line{Name: lb.Name + ", B", X: lb.X, Y: lb.Y, Second: true})
			}
		}
	}
	return out
}

func compareTables(a, b *Table) Table {
	t := Table{Name: a.Name, Title: a.Title, First: a.First, Note: a.Note}
	var pairs [][2]int
	for i, c := range a.Columns {
		for k, d := range b.Columns {
			if c.Key != d.Key {
				continue
			}
			pairs = append(pairs, [2]int{i, k})
			t.Columns = append(t.Columns, Column{c.Key + "_a", c.Title + ": A", c.Decimals}, Column{c.Key + "_b", "B", c.Decimals}, Column{c.Key + "_change", "B - A", c.Decimals})
		}
	}
	for _, ra := range a.Rows {
		for _, rb := range b.Rows {
			if ra.Name != rb.Name {
				continue
			}
			row := Row{Name: ra.Name}
			for _, p := range pairs {
				va, vb := ra.Values[p[0]], rb.Values[p[1]]
				row.Values = append(row.Values, va, vb, difference(va, vb))
			}
			t.Rows = append(t.Rows, row)
		}
	}
	return t
}

func difference(a, b float64) float64 {
	if math.IsInf(a, 0) || math.IsInf(b, 0) {
		return none
	}
	return b - a
}
