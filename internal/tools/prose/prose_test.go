package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCheck(t *testing.T) {
	for _, tc := range []struct {
		name, words string
		want        []string // the words found
	}{
		{"plain", "The client polls the socket while an answer is due.", nil},
		{"free relative, person", "Who waits reads the socket.", []string{"Who"}},
		{"free relative, thing", "It ends. What is sent is copied.", []string{"What is sent is copied"}},
		{"question", "What is the round trip?", nil},
		{"nobody", "The list grows while nobody reads.", []string{"nobody"}},
		{"who of a thing", "the socket who reads", []string{"socket who"}},
		{"who of people", "users who attach a GPU, and operators who watch", nil},
		{"code as a person", "The reader keeps his turn.", []string{"his"}},
		{"two findings in order", "Somebody wrote it anew.", []string{"Somebody", "anew"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, f := range check(tc.words) {
				got = append(got, f.words)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// The lines that a finding names are those of the file, whatever the language.
func TestTextsAndLines(t *testing.T) {
	for _, tc := range []struct {
		name, file, src string
		want            map[string]int // words to line
	}{
		{"go", "a.go", "package a\n\n// One\n// nobody.\nvar s = \"not anew here\"\n", map[string]int{"nobody": 4, "anew": 5}},
		{"go code in a comment", "a.go", "// Example:\n//\n//\tnobody := 1\npackage a\n", nil},
		{"markdown", "a.md", "# Nobody\n\nA line\nand nobody.\n\n```\nnobody\n```\n| a | anew |\n", map[string]int{"nobody": 4, "anew": 9}},
		{"markdown code", "a.md", "a `nobody` b\n", nil},
		{"c", "a.c", "int a; // by nobody\n/* One\n * anew. */\n", map[string]int{"nobody": 1, "anew": 3}},
		{"shell", "a.sh", "#!/bin/sh\n# for nobody\n", map[string]int{"nobody": 2}},
		{"on purpose", "a.md", "\"nobody\" is refused <!-- prose:ok -->\n", nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got map[string]int
			for _, text := range readerOf(tc.file)(tc.file, tc.src) {
				for _, f := range check(text.words) {
					if got == nil {
						got = map[string]int{}
					}
					got[f.words] = text.lineAt(f.offset)
				}
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
