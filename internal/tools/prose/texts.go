package main

import (
	"go/scanner"
	"go/token"
	"regexp"
	"strconv"
	"strings"
)

// text is a run of prose: the lines of one comment, string or paragraph,
// joined by spaces.
type text struct {
	words string
	lines []mark
}

// mark says on which line of the file the words from an offset on stand.
type mark struct{ offset, line int }

func (t *text) lineAt(offset int) int {
	line := 0
	for _, m := range t.lines {
		if m.offset <= offset {
			line = m.line
		}
	}
	return line
}

// add appends a line of the file. An empty one ends a sentence, as the end of
// a paragraph does.
func (t *text) add(line int, words string) {
	words = strings.TrimSpace(words)
	if strings.Contains(words, "prose:ok") {
		return
	}
	if t.words != "" {
		if words == "" {
			t.words += "\n"
			return
		}
		t.words += " "
	}
	t.lines = append(t.lines, mark{len(t.words), line})
	t.words += words
}

// goTexts returns the comments of a Go file, joined by group, and the strings
// of three words and more.
func goTexts(name, src string) (out []text) {
	var s scanner.Scanner
	set := token.NewFileSet()
	file := set.AddFile(name, -1, len(src))
	s.Init(file, []byte(src), nil, scanner.ScanComments)
	var group text
	last := -1
	for {
		pos, tok, lit := s.Scan()
		line := file.Line(pos)
		if tok == token.COMMENT {
			if line > last+1 {
				out, group = append(out, group), text{}
			}
			last = line + strings.Count(lit, "\n")
			for i, l := range strings.Split(lit, "\n") {
				addComment(&group, line+i, l)
			}
			continue
		}
		if tok == token.STRING {
			if v, err := strconv.Unquote(lit); err == nil && len(strings.Fields(v)) >= 3 {
				var t text
				for i, l := range strings.Split(v, "\n") {
					t.add(line+i, l)
				}
				out = append(out, t)
			}
		}
		if tok == token.EOF {
			return append(out, group)
		}
	}
}

// addComment adds a line of a comment; indented code in it is no prose.
func addComment(t *text, line int, l string) {
	l = strings.TrimSpace(l)
	l = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(l, "/*"), "//"), "*/")
	if strings.HasPrefix(l, "\t") || strings.HasPrefix(l, "    ") || strings.HasPrefix(l, "go:") {
		t.add(line, "")
		return
	}
	t.add(line, strings.TrimPrefix(strings.TrimSpace(l), "* "))
}

// commentTexts returns the comments of languages that write them as C does.
func commentTexts(_, src string) (out []text) {
	var t text
	inside := false
	for i, l := range strings.Split(src, "\n") {
		trimmed := strings.TrimSpace(l)
		at := strings.Index(l, "//")
		switch {
		case inside, strings.HasPrefix(trimmed, "/*"):
			inside = !strings.Contains(trimmed, "*/")
			addComment(&t, i+1, strings.TrimPrefix(trimmed, "*"))
			continue
		case at >= 0 && (at == 0 || l[at-1] != ':'):
			addComment(&t, i+1, l[at:])
			continue
		}
		if t.words != "" {
			out, t = append(out, t), text{}
		}
	}
	return append(out, t)
}

// hashTexts returns the comments of shell, make and YAML files.
func hashTexts(_, src string) (out []text) {
	var t text
	for i, l := range strings.Split(src, "\n") {
		if at := strings.Index(l, "#"); at >= 0 && !strings.HasPrefix(l, "#!") && (at == 0 || l[at-1] == ' ' || l[at-1] == '\t' || l[at-1] == '#') {
			t.add(i+1, strings.TrimLeft(l[at:], "#"))
			continue
		}
		if t.words != "" {
			out, t = append(out, t), text{}
		}
	}
	return append(out, t)
}

var inlineCode = regexp.MustCompile("`[^`]*`")

// markdownTexts returns the paragraphs of a Markdown file, without code. Each
// cell of a table and each item of a list is a text.
func markdownTexts(_, src string) (out []text) {
	var t text
	end := func() {
		if t.words != "" {
			out, t = append(out, t), text{}
		}
	}
	fenced := false
	for i, l := range strings.Split(src, "\n") {
		trimmed := strings.TrimSpace(l)
		if strings.HasPrefix(trimmed, "```") {
			fenced = !fenced
			end()
			continue
		}
		if fenced || strings.HasPrefix(l, "    ") && t.words == "" || trimmed == "" {
			end()
			continue
		}
		if strings.HasPrefix(trimmed, "|") || strings.HasPrefix(trimmed, "- ") || strings.HasPrefix(trimmed, "#") {
			end()
		}
		if strings.HasPrefix(trimmed, "#") { // a heading may ask without a question mark
			continue
		}
		l = inlineCode.ReplaceAllStringFunc(trimmed, func(code string) string { return strings.Repeat("x", len(code)) })
		if strings.Contains(trimmed, "prose:ok") {
			continue
		}
		if strings.HasPrefix(trimmed, "|") {
			for cell := range strings.SplitSeq(l, "|") {
				t.add(i+1, cell)
				end()
			}
			continue
		}
		t.add(i+1, strings.TrimPrefix(l, "- "))
	}
	end()
	return out
}

// lineTexts takes each line of a template as a text.
func lineTexts(_, src string) (out []text) {
	for i, l := range strings.Split(src, "\n") {
		var t text
		t.add(i+1, l)
		out = append(out, t)
	}
	return out
}
