package cli

import (
	"bufio"
	"bytes"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func tableOn(p *page, out *bytes.Buffer) string {
	p.Writer = bufio.NewWriter(out)
	t := newTable(p, "NAME", "STATE", "REASON", wideColumn("SERIAL"))
	t.row("box-with-a-long-name", "lost,cordoned", "the node has not reported for a long time", "S1")
	t.row("b2", "connected", "", "S2")
	t.flush()
	return out.String()
}

// A table never exceeds the terminal: the widest columns are cut first, names last.
func TestTableFitsTheTerminal(t *testing.T) {
	for width := 1; width < 120; width++ {
		out := tableOn(&page{width: width}, &bytes.Buffer{})
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n")); n > width {
				t.Fatalf("%d columns on a terminal of %d: %q", n, width, line)
			}
		}
	}
	const want = `NAME                  STATE        REASON
box-with-a-long-name  lost,cordo…  the node ha…
b2                    connected    -
`
	if got := tableOn(&page{width: 47}, &bytes.Buffer{}); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := tableOn(&page{}, &bytes.Buffer{}); !strings.Contains(got, "for a long time\n") || strings.Contains(got, "S1") {
		t.Errorf("without a terminal:\n%s", got)
	}
	if got := tableOn(&page{wide: true}, &bytes.Buffer{}); !strings.Contains(got, "for a long time  S1\n") {
		t.Errorf("with -o wide:\n%s", got)
	}
}

func TestColoursFollowTheGravestWord(t *testing.T) {
	out := tableOn(&page{colour: true}, &bytes.Buffer{})
	for _, want := range []string{red + "lost,cordoned" + normal, green + "connected" + normal} {
		if !strings.Contains(out, want) {
			t.Errorf("%q does not contain %q", out, want)
		}
	}
	if strings.Contains(tableOn(&page{}, &bytes.Buffer{}), "\x1b") {
		t.Error("colours without a terminal")
	}
}

// What others wrote cannot move the cursor or begin a row.
func TestCellsAreOneLine(t *testing.T) {
	var out bytes.Buffer
	tb := newTable(&out, "NAME")
	tb.row("a\x1b[2J\nb\u202ec")
	tb.flush()
	if got := out.String(); got != "NAME\na [2J b c\n" {
		t.Errorf("%q", got)
	}
	out.Reset()
	if err := printEvent(&out, &dxpuv1.Event{Message: "a\x1b[2J\nb"}, false); err != nil || !strings.HasSuffix(out.String(), "  a [2J b\n") {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestTablesContinue(t *testing.T) {
	var out bytes.Buffer
	p := &page{Writer: bufio.NewWriter(&out), continues: true}
	for _, state := range []string{"connected", "lost"} {
		tb := newTable(p, "NAME", "STATE", "RACK")
		tb.row("b1", state, "r1")
		tb.flush()
	}
	if got, want := out.String(), "NAME  STATE      RACK\nb1    connected  r1\nb1    lost       r1\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

func TestCompareCells(t *testing.T) {
	for _, sorted := range [][]any{
		{"b1/2", "b1/10", "b2/1", ""},
		{2, 10, 100},
		{bytesCell(1 << 20), bytesCell(512 << 20), bytesCell(16 << 30)},
		{"l-7", "l-7-abc", "l-10"},
		{"a01", "a2"},
	} {
		if !slices.IsSortedFunc(sorted, compareCells) {
			t.Errorf("%v is not sorted", sorted)
		}
		back := slices.Clone(sorted)
		slices.Reverse(back)
		if slices.SortFunc(back, compareCells); !slices.Equal(back, sorted) {
			t.Errorf("%v, want %v", back, sorted)
		}
	}
}
