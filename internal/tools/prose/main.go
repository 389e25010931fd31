// Command prose checks the English of the repository against a word list:
// comments and texts of Go, C, protocol buffer, shell and template files, and
// the paragraphs of Markdown. "make lint" runs it over everything.
//
//	go run ./internal/tools/prose            # all files that git tracks
//	go run ./internal/tools/prose link docs  # some of them
//
// It prints file:line, the words found and the advice of the rule, and exits
// with 1 when it found any. A line that quotes the words on purpose carries
// the mark "prose:ok".
package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	n, err := run(os.Stdout, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "prose:", err)
		os.Exit(2)
	}
	if n > 0 {
		fmt.Printf("prose: %d findings; CONTRIBUTING.md has the rules\n", n)
		os.Exit(1)
	}
}

// run checks the tracked files below the paths and returns how many findings
// it printed.
func run(w io.Writer, paths []string) (int, error) {
	files, err := tracked(paths)
	if err != nil {
		return 0, err
	}
	total := 0
	for _, file := range files {
		read := readerOf(file)
		if read == nil {
			continue
		}
		src, err := os.ReadFile(file)
		if os.IsNotExist(err) {
			continue // deleted, not yet committed
		}
		if err != nil {
			return total, err
		}
		for _, text := range read(file, string(src)) {
			for _, f := range check(text.words) {
				total++
				fmt.Fprintf(w, "%s:%d: %q: %s\n", file, text.lineAt(f.offset), f.words, f.advice)
			}
		}
	}
	return total, nil
}

func tracked(paths []string) ([]string, error) {
	args := append([]string{"ls-files", "--cached", "--others", "--exclude-standard", "--"}, paths...)
	out, err := exec.Command("git", args...).Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	return strings.Fields(string(out)), nil
}

// readerOf returns the function that finds the prose in a file, nil for a file
// without any.
func readerOf(file string) func(name, src string) []text {
	switch base := filepath.Base(file); {
	case strings.HasSuffix(base, ".pb.go"), strings.HasSuffix(base, ".connect.go"), base == "LICENSE",
		strings.Contains(file, "internal/tools/prose/"): // its word list and its tests quote what it refuses
		return nil
	case strings.HasSuffix(base, ".go"):
		return goTexts
	case strings.HasSuffix(base, ".md"):
		return markdownTexts
	case strings.HasSuffix(base, ".c"), strings.HasSuffix(base, ".h"), strings.HasSuffix(base, ".proto"),
		strings.HasSuffix(base, ".js"), strings.HasSuffix(base, ".css"):
		return commentTexts
	case strings.HasSuffix(base, ".sh"), base == "Makefile", strings.HasSuffix(base, ".yml"), strings.HasSuffix(base, ".service"):
		return hashTexts
	case strings.HasSuffix(base, ".html"), strings.HasSuffix(base, ".tmpl"):
		return lineTexts
	}
	return nil
}
