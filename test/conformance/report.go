package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// event is a line of "go test -json" ("go doc test2json").
type event struct {
	Action, Test, Output, Key, Value string
}

// check is a test without subtests: a row of the table.
type check struct {
	name   string
	result string // pass, fail or skip; "": it did not end
	said   string // its last line in the log
	attrs  map[string][]string
	parent bool // it has subtests
}

// report collects the checks in the order in which they began. Of several runs of a
// check the last one counts.
type report struct {
	order  []string
	checks map[string]*check
}

func newReport() *report { return &report{checks: map[string]*check{}} }

// read takes the events of one or more runs. Lines of other programs among them are
// an error.
func (r *report) read(in io.Reader) error {
	for d := json.NewDecoder(in); ; {
		var e event
		switch err := d.Decode(&e); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("not the output of go test -json: %w", err)
		}
		if e.Test != "" {
			r.take(e)
		}
	}
}

var logLine = regexp.MustCompile(`^\s+\w+_test\.go:\d+: (.*)\n$`)

func (r *report) take(e event) {
	c := r.checks[e.Test]
	switch {
	case e.Action == "run":
		if c == nil {
			r.order = append(r.order, e.Test)
		}
		r.checks[e.Test] = &check{name: e.Test, attrs: map[string][]string{}}
		if i := strings.LastIndex(e.Test, "/"); i >= 0 && r.checks[e.Test[:i]] != nil {
			r.checks[e.Test[:i]].parent = true
		}
	case c == nil:
	case e.Action == "attr":
		c.attrs[e.Key] = append(c.attrs[e.Key], e.Value)
	case e.Action == "output":
		if m := logLine.FindStringSubmatch(e.Output); m != nil {
			c.said = m[1]
		}
	case e.Action == "pass", e.Action == "fail", e.Action == "skip":
		c.result = e.Action
	}
}

// rows are the checks that tell something by themselves.
func (r *report) rows() (out []*check) {
	for _, name := range r.order {
		if c := r.checks[name]; !c.parent {
			out = append(out, c)
		}
	}
	return out
}

// inherited returns the last value of an attribute of the check or a test above it.
func (r *report) inherited(c *check, key string) string {
	for name := c.name; ; {
		if above := r.checks[name]; above != nil && len(above.attrs[key]) > 0 {
			return above.attrs[key][len(above.attrs[key])-1]
		}
		i := strings.LastIndex(name, "/")
		if i < 0 {
			return ""
		}
		name = name[:i]
	}
}

func (c *check) verdict() string {
	switch {
	case c.result == "pass" && len(c.attrs["limit"]) > 0:
		return "limit: " + strings.Join(c.attrs["limit"], "; ")
	case c.result == "skip":
		return "not run: " + c.said
	case c.result == "fail":
		return "**FAIL**"
	case c.result == "":
		return "**did not end**"
	}
	return c.result
}

// table returns the rows in Markdown.
func (r *report) table() string {
	var b strings.Builder
	b.WriteString("| test | with | result | seen |\n|---|---|---|---|\n")
	for _, c := range r.rows() {
		with := slices.DeleteFunc([]string{r.inherited(c, "peer"), r.inherited(c, "with")}, func(s string) bool { return s == "" })
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", c.name, cell(strings.Join(with, ", ")), cell(c.verdict()), cell(strings.Join(c.attrs["seen"], "; ")))
	}
	return b.String()
}

// cell returns a text that does not end a cell of a table.
func cell(text string) string {
	return cmp.Or(strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`), "–")
}

// err says how many checks failed.
func (r *report) err() error {
	bad := 0
	rows := r.rows()
	for _, c := range rows {
		if c.result != "pass" && c.result != "skip" {
			bad++
		}
	}
	switch {
	case len(rows) == 0:
		return errors.New("no check ran")
	case bad > 0:
		return fmt.Errorf("%d of %d checks failed", bad, len(rows))
	}
	return nil
}
