package cluster

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Limits of a trace.
const (
	maxRows = 5_000_000
	maxName = 256
	// maxNumber bounds each number, so that the sums of all rows do not overflow.
	maxNumber = 1e12
)

// column is a field of a CSV by any of its names.
type column struct {
	names    []string
	required bool
}

// table reads the rows of a CSV whose first line names the columns.
type table struct {
	r    *csv.Reader
	at   []int // index of each wanted column, or -1
	row  []string
	cols []column
	what string
}

func openTable(r io.Reader, what string, cols []column) (*table, error) {
	t := &table{r: csv.NewReader(r), cols: cols, what: what, at: make([]int, len(cols))}
	t.r.ReuseRecord = true
	header, err := t.r.Read()
	if err != nil {
		return nil, fmt.Errorf("cluster: %s: no header line: %w", what, err)
	}
	header = slices.Clone(header)
	for i := range header {
		header[i] = strings.ToLower(strings.TrimSpace(strings.TrimPrefix(header[i], "\ufeff")))
	}
	for i, c := range cols {
		t.at[i] = slices.IndexFunc(header, func(h string) bool { return slices.Contains(c.names, h) })
		if t.at[i] < 0 && c.required {
			return nil, fmt.Errorf("cluster: %s: no column %s among %q", what, strings.Join(c.names, " or "), header)
		}
	}
	return t, nil
}

// next reads a row; it returns false at the end.
func (t *table) next(n int) (bool, error) {
	row, err := t.r.Read()
	switch {
	case errors.Is(err, io.EOF):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("cluster: %s: %w", t.what, err)
	case n >= maxRows:
		return false, fmt.Errorf("cluster: %s: more than %d rows", t.what, maxRows)
	}
	t.row = row
	return true, nil
}

func (t *table) text(i int) string {
	if t.at[i] < 0 {
		return ""
	}
	return strings.TrimSpace(t.row[t.at[i]])
}

// number returns a column as a whole number; an empty one is 0.
func (t *table) number(i int) (int64, error) {
	f, err := t.amount(i)
	return int64(math.Round(f)), err
}

// amount returns a column as a number; an empty one is 0.
func (t *table) amount(i int) (float64, error) {
	s := t.text(i)
	if s == "" {
		return 0, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil || math.IsNaN(f) || f < 0 || f > maxNumber {
		line, _ := t.r.FieldPos(0)
		return 0, fmt.Errorf("cluster: %s, line %d: %s %q: want a number from 0 to %.0e", t.what, line, t.cols[i].names[0], s, float64(maxNumber))
	}
	return f, nil
}

// numbers reads several columns.
func (t *table) numbers(into map[int]*int64) error {
	for i, p := range into {
		n, err := t.number(i)
		if err != nil {
			return err
		}
		*p = n
	}
	return nil
}

// ReadNodes reads a node list as CSV: the columns name (or sn), cpu_milli, memory_mib,
// gpu and model, in any order, as in Alibaba's openb lists.
func ReadNodes(r io.Reader) ([]Node, error) {
	t, err := openTable(r, "nodes", []column{{[]string{"name", "sn"}, true}, {[]string{"cpu_milli"}, true}, {[]string{"memory_mib"}, true}, {[]string{"gpu"}, true}, {[]string{"model"}, false}})
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
		n := Node{Name: clip(t.text(0)), Model: clip(t.text(4))}
		var gpus int64
		if err := t.numbers(map[int]*int64{1: &n.MilliCPU, 2: &n.MemoryMiB, 3: &gpus}); err != nil {
			return nil, err
		}
		n.GPUs = int(min(gpus, MaxGPUs+1))
		out = append(out, n)
	}
}

// ReadPods reads a list of pods as CSV: the columns name, cpu_milli, memory_mib,
// num_gpu and gpu_milli (thousandths of each GPU), and if the file has them gpu_spec
// (models separated by "|"), creation_time and deletion_time (seconds).
func ReadPods(r io.Reader) ([]Pod, error) {
	t, err := openTable(r, "pods", []column{
		{[]string{"name"}, true},
		{[]string{"cpu_milli"}, true},
		{[]string{"memory_mib"}, true},
		{[]string{"num_gpu"}, true},
		{[]string{"gpu_milli"}, true},
		{[]string{"gpu_spec"}, false},
		{[]string{"creation_time"}, false},
		{[]string{"deletion_time"}, false},
	})
	if err != nil {
		return nil, err
	}
	return readRows(t, func() (Pod, error) {
		p := Pod{Name: clip(t.text(0)), Models: clip(t.text(5))}
		var gpus int64
		err := t.numbers(map[int]*int64{1: &p.MilliCPU, 2: &p.MemoryMiB, 3: &gpus, 4: &p.MilliGPU, 6: &p.Created, 7: &p.Deleted})
		p.GPUs = int(min(gpus, MaxGPUs+1))
		return p, err
	})
}

// clip copies a field of a reused record and bounds its length.
func clip(s string) string { return strings.Clone(s[:min(len(s), maxName)]) }
