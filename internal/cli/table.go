package cli

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
)

// page is where a command prints its text. It knows the terminal, if there is one, so
// that the tables on it fit.
type page struct {
	*bufio.Writer
	width  int  // columns of the terminal; 0: no limit
	wide   bool // print all columns, uncut
	colour bool

	// For tables that continue each other, as with --watch: the widths so far, and
	// whether the heading has been printed.
	widths    []int
	headed    bool
	continues bool

	// record receives the table in place of the printing, nil normally.
	record *table
}

// newPage returns a page of the command's output.
func newPage(out io.Writer, wide bool) *page {
	p := &page{Writer: bufio.NewWriter(out), wide: wide}
	if !isTerminal(out) {
		return p
	}
	p.colour = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	if f, ok := out.(*os.File); ok && !wide {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil {
			p.width = columns
		}
	}
	return p
}

// isTerminal reports whether a reader or writer is a terminal.
func isTerminal(v any) bool {
	f, ok := v.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// mark adds a colour to a text, on a terminal.
func (p *page) mark(colour, text string) string {
	if !p.colour {
		return text
	}
	return colour + text + normal
}

// wideColumn is the heading of a column that only -o wide prints.
type wideColumn string

// bytesCell is a cell with a number of bytes.
type bytesCell uint64

// String implements fmt.Stringer.
func (b bytesCell) String() string { return size(uint64(b)) }

// table prints aligned columns; the first row is the heading. The writer below it
// keeps the errors.
type table struct {
	page   *page
	rows   [][]any
	hidden []bool // columns that are not printed
}

func newTable(w io.Writer, heading ...any) *table {
	p, ok := w.(*page)
	if !ok {
		p = &page{Writer: bufio.NewWriter(w)}
	}
	t := &table{page: p, hidden: make([]bool, len(heading))}
	for i, h := range heading {
		_, only := h.(wideColumn)
		t.hidden[i] = only && !p.wide && p.record == nil
	}
	t.row(heading...)
	return t
}

func (t *table) row(cells ...any) { t.rows = append(t.rows, cells) }

// heading returns the heading of column i.
func (t *table) heading(i int) string {
	if i >= len(t.rows[0]) {
		return ""
	}
	return fmt.Sprint(t.rows[0][i])
}

// flush prints the table.
func (t *table) flush() {
	p := t.page
	if p.record != nil {
		*p.record = *t
		return
	}
	lines := make([][]string, 0, len(t.rows))
	for _, row := range t.rows {
		line := make([]string, 0, len(row))
		for i, c := range row {
			if i >= len(t.hidden) || !t.hidden[i] {
				line = append(line, cmp.Or(oneLine(fmt.Sprint(c)), "-"))
			}
		}
		lines = append(lines, line)
	}
	widths := columnWidths(lines, p.widths)
	fit(widths, lines, p.width)
	if p.continues {
		p.widths = widths
	}
	states := t.states()
	for i, line := range lines {
		if i == 0 && p.headed {
			continue
		}
		p.line(line, widths, states, i > 0)
	}
	p.headed = p.continues
	_ = p.Flush()
}

// oneLine replaces characters that would break a row: line ends and control characters
// of what others wrote.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) {
			return ' '
		}
		return r
	}, s)
}

const (
	columnGap = 2
	// leastColumn is the width to which a column of a table may be cut.
	leastColumn = 6
	ellipsis    = "…"
)

// fitLine cuts a line of text that does not fit the terminal of a page.
func fitLine(w io.Writer, line string) string {
	p, ok := w.(*page)
	if !ok || p.width == 0 || utf8.RuneCountInString(line) <= p.width {
		return line
	}
	return string([]rune(line)[:p.width-1]) + ellipsis
}

// columnWidths returns the widths of the columns of lines, at least those of before. The
// last column of a line needs no padding, so it does not count for the lines where it is
// not the last one.
func columnWidths(lines [][]string, before []int) []int {
	var widths []int
	for _, line := range lines {
		for i, c := range line {
			for len(widths) <= i {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(c))
		}
	}
	for i := range min(len(before), len(widths)) {
		widths[i] = max(widths[i], before[i])
	}
	return widths
}

// fit cuts the widest columns until a table fits a terminal, but no column below the
// width of its heading. The first column, which has the names, is cut last. limit 0 cuts
// nothing.
func fit(widths []int, lines [][]string, limit int) {
	total := (len(widths) - 1) * columnGap
	for _, w := range widths {
		total += w
	}
	for limit > 0 && total > limit {
		widest := -1
		for i, w := range widths {
			least := leastColumn
			if i < len(lines[0]) {
				least = max(least, utf8.RuneCountInString(lines[0][i]))
			}
			if w > least && (i > 0 || len(widths) == 1) && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if widest < 0 {
			return // the lines are cut as a whole
		}
		widths[widest]--
		total--
	}
}

// line prints a row.
func (p *page) line(cells []string, widths []int, states []bool, coloured bool) {
	left := p.width
	for i, c := range cells {
		c = cut(c, widths[i])
		if p.width > 0 {
			c = cut(c, left)
		}
		n := utf8.RuneCountInString(c)
		left -= widths[i] + columnGap
		text := c
		if p.colour && coloured && i < len(states) && states[i] {
			text = colourOf(c)
		}
		_, _ = p.WriteString(text)
		if i == len(cells)-1 || p.width > 0 && left <= 0 {
			break
		}
		_, _ = p.WriteString(strings.Repeat(" ", widths[i]-n+columnGap))
	}
	_ = p.WriteByte('\n')
}

// cut shortens a text to a number of characters, with an ellipsis.
func cut(s string, width int) string {
	if utf8.RuneCountInString(s) <= width {
		return s
	}
	if width < 1 {
		return ""
	}
	return string([]rune(s)[:width-1]) + ellipsis
}

// states returns which printed columns hold a state, whose words have colours.
func (t *table) states() []bool {
	var out []bool
	for i := range t.rows[0] {
		if t.hidden[i] {
			continue
		}
		h := t.heading(i)
		out = append(out, h == "STATE" || h == "HEALTH" || h == "RESULT")
	}
	return out
}

// Colours of terminals (ECMA-48, SGR).
const (
	red    = "\x1b[31m"
	green  = "\x1b[32m"
	yellow = "\x1b[33m"
	bold   = "\x1b[1m"
	normal = "\x1b[0m"
)

// wordColours are the colours of states. A state of several words has that of the
// gravest.
var wordColours = map[string]string{
	"failed": red, "lost": red, "unavailable": red, "unreachable": red, "permission_denied": red, "unauthenticated": red,
	"degraded": yellow, "cordoned": yellow, "draining": yellow, "drained": yellow, "unstable": yellow, "pending": yellow, "binding": yellow, "releasing": yellow,
	"active": green, "connected": green, "ok": green,
}

// colourOf adds the colour of a state to its text.
func colourOf(s string) string {
	found := ""
	for _, word := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' }) {
		switch c := wordColours[word]; {
		case c == red, c == yellow && found != red, c == green && found == "":
			found = c
		}
	}
	if found == "" {
		return s
	}
	return found + s + normal
}

// compareCells compares two cells of a column: numbers by value, texts by their words and
// numbers, so that b1/2 precedes b1/10. Empty cells come last.
func compareCells(a, b any) int {
	x, y := fmt.Sprint(a), fmt.Sprint(b)
	if (x == "") != (y == "") {
		return cmp.Compare(len(y), len(x))
	}
	va, vb := reflect.ValueOf(a), reflect.ValueOf(b)
	switch {
	case va.Kind() != vb.Kind():
	case va.CanInt():
		return cmp.Compare(va.Int(), vb.Int())
	case va.CanUint():
		return cmp.Compare(va.Uint(), vb.Uint())
	}
	return compareNatural(x, y)
}

// compareNatural compares texts with the digits in them as numbers.
func compareNatural(a, b string) int {
	for a != "" && b != "" {
		na, nb := digits(a), digits(b)
		if na > 0 && nb > 0 {
			x, y := strings.TrimLeft(a[:na], "0"), strings.TrimLeft(b[:nb], "0")
			if c := cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)); c != 0 {
				return c
			}
			a, b = a[na:], b[nb:]
			continue
		}
		if a[0] != b[0] {
			return cmp.Compare(a[0], b[0])
		}
		a, b = a[1:], b[1:]
	}
	return cmp.Compare(len(a), len(b))
}

// digits returns the number of digits at the beginning of a text.
func digits(s string) int { return len(s) - len(strings.TrimLeft(s, "0123456789")) }
