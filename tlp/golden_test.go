package tlp_test

import (
	_ "embed"
	"strings"
)

//go:embed testdata/golden.txt
var goldenText string

type vector struct{ name, hex string }

// golden holds the packets of testdata/golden.txt, which the test of the
// Wireshark dissector also reads.
var golden = func() (out []vector) {
	for line := range strings.Lines(goldenText) {
		if name, hex, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && line[0] != '#' {
			out = append(out, vector{name, hex})
		}
	}
	return out
}()
