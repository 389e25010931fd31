package cluster

import (
	"bufio"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Limits of a trace.
const (
	maxRows = 5_000_000
	maxName = 256
	maxLine = 1 << 20 // bytes; a quoted field has several lines of text
	// maxNumber bounds each number, so that the sums of all rows do not overflow.
	maxNumber = 1e12
)

// boundedLines ends with an error when the reader of a CSV asks for more bytes than one
// line may have: that reader keeps a whole line, and a file may have no others.
type boundedLines struct {
	r    io.Reader
	left int
}

var errLongLine = fmt.Errorf("a line of more than %d bytes", maxLine)

// Read implements io.Reader.
func (b *boundedLines) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errLongLine
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// inList adds the name of a list to an error in it.
func inList(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", name, err)
}

// openList opens a list that a field of the scenario names.
func openList(data fs.FS, field, name string) (fs.File, error) {
	if !fs.ValidPath(name) {
		return nil, fmt.Errorf("%s: %q: want a file in the folder of the lists (--data), without .. and / before it", field, clip(name))
	}
	f, err := data.Open(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%s: %s: no such file: give the folder of the lists with --data", field, name)
	case err != nil:
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	if st, err := f.Stat(); err == nil && st.IsDir() {
		return nil, errors.Join(fmt.Errorf("%s: %s: it is a folder: want a file", field, name), f.Close())
	}
	return f, nil
}

// column is a field of a CSV by any of its names.
type column struct {
	names []string
	need  need
}

// in returns the index of the column in a header, or -1. If the header has several of its
// names, the first of them counts, wherever it stands.
func (c column) in(header []string) int {
	for _, name := range c.names {
		if i := slices.Index(header, name); i >= 0 {
			return i
		}
	}
	return -1
}

// need says what a list must have of a column.
type need uint8

const (
	optional need = iota
	required      // the column, which may be empty in a line
	filled        // the column, and a value in each line
)

// table reads the rows of a CSV whose first line names the columns.
type table struct {
	in   *boundedLines
	r    *csv.Reader
	at   []int // index of each wanted column, or -1
	row  []string
	cols []column
	what string
	// lines has the line of each name.
	lines map[string]int
}

// withoutMark skips the mark before a text in UTF-8 that some programs write. A quote after
// it would else not begin its field.
func withoutMark(r io.Reader) io.Reader {
	const mark = "\ufeff"
	in := bufio.NewReader(r)
	if head, _ := in.Peek(len(mark)); string(head) == mark {
		_, _ = in.Discard(len(mark)) // it is there
	}
	return in
}

func openTable(r io.Reader, what string, cols []column) (*table, error) {
	in := &boundedLines{r: withoutMark(r), left: maxLine}
	t := &table{in: in, r: csv.NewReader(in), cols: cols, what: what, at: make([]int, len(cols)), lines: map[string]int{}}
	t.r.ReuseRecord = true
	header, err := t.r.Read()
	if err != nil {
		return nil, fmt.Errorf("cluster: %s: no header line: %w", what, err)
	}
	header = slices.Clone(header)
	for i := range header {
		header[i] = strings.ToLower(strings.TrimSpace(header[i]))
	}
	if err := checkHeader(header); err != nil {
		return nil, fmt.Errorf("cluster: %s: %w", what, err)
	}
	for i, c := range cols {
		t.at[i] = c.in(header)
		if t.at[i] < 0 {
			if c.need != optional {
				return nil, fmt.Errorf("cluster: %s: no column %s among %s", what, strings.Join(c.names, " or "), listed(header))
			}
			continue
		}
		name := header[t.at[i]]
		if slices.Contains(header[t.at[i]+1:], name) {
			return nil, fmt.Errorf("cluster: %s: two columns %s: leave one", what, name)
		}
	}
	return t, nil
}

// checkHeader tells apart what is no CSV of this kind.
func checkHeader(header []string) error {
	all := strings.Join(header, "")
	switch {
	case !utf8.ValidString(all) || strings.Contains(all, "\x00"):
		return errors.New("the first line is not text in UTF-8: save the list as CSV in UTF-8")
	case strings.Contains(all, "\r"):
		return errors.New("lines end with CR alone: want LF or CRLF")
	case len(header) == 1 && strings.ContainsAny(all, ";\t"):
		return fmt.Errorf("one column %s: want columns that are separated by commas", listed(header))
	}
	return nil
}

// listed quotes the names of columns, and not more than a message can have.
func listed(header []string) string {
	const most = 20
	var out []string
	for _, h := range header[:min(len(header), most)] {
		out = append(out, strconv.Quote(clip(h)))
	}
	if len(header) > most {
		out = append(out, "...")
	}
	return strings.Join(out, ", ")
}

// next reads a row; it returns false at the end.
func (t *table) next(n int) (bool, error) {
	t.in.left = maxLine
	row, err := t.r.Read()
	switch {
	case errors.Is(err, io.EOF):
		return false, nil
	case errors.Is(err, errLongLine):
		return false, fmt.Errorf("cluster: %s, row %d: %w", t.what, n+1, err)
	case errors.Is(err, csv.ErrFieldCount):
		return false, t.wrong("%d columns: want %d as in the first line", len(row), t.r.FieldsPerRecord)
	case err != nil:
		return false, fmt.Errorf("cluster: %s: %w", t.what, err)
	case n >= maxRows:
		return false, fmt.Errorf("cluster: %s: more than %d rows", t.what, maxRows)
	}
	t.row = row
	for i, c := range t.cols {
		if c.need == filled && t.text(i) == "" {
			return false, t.wrong("%s is empty", c.names[0])
		}
	}
	return true, nil
}

// wrong returns an error that names the line.
func (t *table) wrong(format string, args ...any) error {
	line, _ := t.r.FieldPos(0)
	return fmt.Errorf("cluster: %s, line %d: %w", t.what, line, fmt.Errorf(format, args...))
}

func (t *table) text(i int) string {
	if t.at[i] < 0 {
		return ""
	}
	return strings.TrimSpace(t.row[t.at[i]])
}

// word returns a column as text that a list may not have longer than maxName. A cut would
// take the difference from two names, or a model from a list of them.
func (t *table) word(i int) (string, error) {
	s := t.text(i)
	if len(s) > maxName {
		return "", t.wrong("%s has %d bytes: want at most %d", t.cols[i].names[0], len(s), maxName)
	}
	return strings.Clone(s), nil
}

// name returns a column as a name, which no other line has; an empty one is not a name. A
// name that occurs twice is a list that was put together wrong, or a column that names
// something else.
func (t *table) name(i int) (string, error) {
	s, err := t.word(i)
	if err != nil || s == "" {
		return "", err
	}
	if line, ok := t.lines[s]; ok {
		return "", t.wrong("%s %q is in line %d, too: want a name of its own in each line", t.cols[i].names[0], s, line)
	}
	t.lines[s], _ = t.r.FieldPos(0)
	return s, nil
}

// amount returns a column as a number; an empty one is 0.
func (t *table) amount(i int) (float64, error) {
	s := t.text(i)
	if s == "" {
		return 0, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(f) || f < 0 || f > maxNumber {
		return 0, t.wrong("%s %q: want a number from 0 to %.0e", t.cols[i].names[0], clip(s), float64(maxNumber))
	}
	return f, nil
}

// count returns a column as a whole number.
func (t *table) count(i int) (int, error) {
	f, err := t.amount(i)
	if err == nil && f != math.Trunc(f) {
		err = t.wrong("%s %v: want a whole number", t.cols[i].names[0], f)
	}
	return int(f), err
}

// number is a column and where its value goes.
type number[T int64 | float64] struct {
	column int
	to     *T
}

// numbers reads several columns as whole numbers.
func (t *table) numbers(into ...number[int64]) error {
	for _, v := range into {
		f, err := t.amount(v.column)
		if err != nil {
			return err
		}
		*v.to = int64(math.Round(f))
	}
	return nil
}

// amounts reads several columns as numbers with fractions; an empty one is 0.
func (t *table) amounts(into ...number[float64]) error {
	for _, v := range into {
		f, err := t.amount(v.column)
		if err != nil {
			return err
		}
		*v.to = f
	}
	return nil
}

// ReadNodes reads a node list as CSV: the columns name (or sn), cpu_milli, memory_mib,
// gpu and model, in any order, as in Alibaba's openb lists.
func ReadNodes(r io.Reader) ([]Node, error) {
	t, err := openTable(r, "nodes", []column{
		{[]string{"name", "sn"}, filled},
		{[]string{"cpu_milli"}, filled},
		{[]string{"memory_mib"}, filled},
		{[]string{"gpu"}, filled},
		{[]string{"model"}, optional},
	})
	if err != nil {
		return nil, err
	}
	var out []Node
	for {
		ok, err := t.next(len(out))
		if err != nil {
			return nil, err
		}
		if !ok {
			return out, checkNodes(out)
		}
		n, err := t.node()
		if err != nil {
			return nil, err
		}
		if err := n.check(); err != nil {
			return nil, t.wrong("%w", err)
		}
		out = append(out, n)
	}
}

// node reads a row of a node list.
func (t *table) node() (n Node, err error) {
	if n.Name, err = t.name(0); err != nil {
		return n, err
	}
	if n.Model, err = t.word(4); err != nil {
		return n, err
	}
	if err := t.numbers(number[int64]{1, &n.MilliCPU}, number[int64]{2, &n.MemoryMiB}); err != nil {
		return n, err
	}
	n.GPUs, err = t.count(3)
	return n, err
}

// ReadPods reads a list of pods as CSV: the columns name, cpu_milli, memory_mib,
// num_gpu and gpu_milli (thousandths of each GPU), and if the file has them gpu_spec
// (models separated by "|"), creation_time and deletion_time (seconds).
func ReadPods(r io.Reader) ([]Pod, error) {
	t, err := openTable(r, "pods", []column{
		{[]string{"name"}, required},
		{[]string{"cpu_milli"}, filled},
		{[]string{"memory_mib"}, filled},
		{[]string{"num_gpu"}, filled},
		{[]string{"gpu_milli"}, filled},
		{[]string{"gpu_spec"}, optional},
		{[]string{"creation_time"}, optional},
		{[]string{"deletion_time"}, optional},
	})
	if err != nil {
		return nil, err
	}
	return readRows(t, t.pod)
}

// pod reads a row of a list of pods.
func (t *table) pod() (p Pod, err error) {
	if p.Name, err = t.name(0); err != nil {
		return p, err
	}
	if p.Models, err = t.models(5); err != nil {
		return p, err
	}
	if err := t.numbers(number[int64]{1, &p.MilliCPU}, number[int64]{2, &p.MemoryMiB}, number[int64]{6, &p.Created}, number[int64]{7, &p.Deleted}); err != nil {
		return p, err
	}
	if p.GPUs, err = t.count(3); err != nil {
		return p, err
	}
	milli, err := t.count(4)
	if p.GPUs > 0 { // a pod without GPUs needs none, whatever this says of each
		p.MilliGPU = int64(milli)
	}
	return p, err
}

// models returns the names of GPU models without spaces around them.
func (t *table) models(i int) (string, error) {
	s, err := t.word(i)
	if err != nil || !strings.Contains(s, " ") {
		return s, err
	}
	names := strings.Split(s, "|")
	for i := range names {
		names[i] = strings.TrimSpace(names[i])
	}
	return strings.Join(names, "|"), nil
}

// clip bounds the length of a text in a message.
func clip(s string) string { return strings.Clone(s[:min(len(s), maxName)]) }
