package cli

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"unicode/utf8"
)

// Errors repeat the words of the command line, which may have any length.
func TestLongWords(t *testing.T) {
	for _, word := range []string{strings.Repeat("a", 100_000), strings.Repeat("ä", 50_000), strings.Repeat("\xff", 1000)} {
		for _, args := range [][]string{{word}, {"get", word}, {"get", "gpus", "-o", word}, {"apply", "-f", word}, {"manager", "--listen", word}, {"help", word}} {
			var out, stderr bytes.Buffer
			if code := Main(args, strings.NewReader(""), &out, &stderr); code == 0 {
				t.Errorf("%.10q: exit code 0", args)
			}
			if n := stderr.Len(); n == 0 || n > 2000 || !utf8.Valid(stderr.Bytes()) {
				t.Errorf("%.10q: %d bytes: %.2000s", args, n, &stderr)
			}
		}
	}
	const text = "a word of a usual length stays: "
	if got := errorText(errors.New(text+strings.Repeat("x", maxWord-1)), nil); got != text+strings.Repeat("x", maxWord-1) {
		t.Errorf("got %s", got)
	}
}

// A help that cannot be printed is an error, as all output is.
func TestHelpToAFullDisk(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"help", "get"}, {"get", "gpus", "--help"}, {"model"}} {
		full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
		if err != nil {
			t.Skip(err) // Linux has it
		}
		var stderr bytes.Buffer
		code := Main(args, strings.NewReader(""), full, &stderr)
		if err := full.Close(); err != nil {
			t.Error(err)
		}
		if want := "dxpu: error: /dev/full: no space left on device\n"; code != exitFailure || stderr.String() != want {
			t.Errorf("%q: exit code %d, %s", args, code, &stderr)
		}
	}
}

// An error of one of several files names the file once, also a file with a short name.
func TestErrorOfAFile(t *testing.T) {
	for text, want := range map[string]string{
		"the trace has no steps":          "a: the trace has no steps",
		"trace: a: line 3: wrong":         "trace: a: line 3: wrong",
		"a: no such file or directory":    "a: no such file or directory",
		"open a: no such file":            "open a: no such file",
		"trace: data: no such file":       "a: trace: data: no such file",
		"--native: a step takes 3ms: odd": "a: --native: a step takes 3ms: odd",
	} {
		if got := ofFile("a", errors.New(text)).Error(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
