package yamltext

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"
)

type target struct {
	Count int
	List  []string
}

// No error has a word of Go or of the parser, and none is long.
func TestError(t *testing.T) {
	var to target
	for text, want := range map[string]string{
		"":                                  "the file is empty",
		"kind: x":                           `line 1: unknown key "kind"`,
		"count: 1e30":                       "line 1: wrong value: `1e30`, want a whole number",
		"count: [1]":                        "line 1: wrong value: a list",
		"x: [1, 2":                          "line 1, column 4: did not find",
		"a: 1\nb: 2":                        `line 1: unknown key "a"; line 2: unknown key "b"`,
		"list: {a: b}":                      "line 1: wrong value: a mapping",
		strings.Repeat("a: 1\n", 2):         "line 2",
		"\x00":                              "so it is not text",
		"count: 1\n---\ncount: 2\n":         "several documents: want one",
		"count: " + strings.Repeat("x", 99): "...",
	} {
		err := yaml.Load([]byte(text), &to, yaml.WithKnownFields(true))
		if err == nil {
			t.Fatalf("%q was taken", text)
		}
		got := Error(err, 60).Error()
		if !strings.Contains(got, want) || len(got) > 64 || strings.Contains(got, "struct") || strings.Contains(got, "yaml") || strings.Contains(got, "reader") {
			t.Errorf("%q: %s", text, got)
		}
	}
}
