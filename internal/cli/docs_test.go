package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var (
	codeSpan = regexp.MustCompile("`(dxpu [^`]+)`")
	flagWord = regexp.MustCompile(`^--([a-z][a-z0-9-]+)(=.*)?$`)
)

// TestDocumentedCommandsExist looks for the commands and flags of each "dxpu ..." that a
// document shows, in a code span or at the start of a line of a block.
func TestDocumentedCommandsExist(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(files) < 10 {
		t.Fatalf("documents: %v, %v", files, err)
	}
	root := newRootCommand(&connection{})
	n := 0
	for _, file := range append(files, "../../README.md") {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.ReplaceAll(string(raw), "\\\n", " ")
		fenced := false
		for line := range strings.SplitSeq(text, "\n") {
			if strings.HasPrefix(line, "```") {
				fenced = !fenced
			}
			for _, c := range commandsIn(line, fenced) {
				n++
				if why := unknownIn(root, c); why != "" {
					t.Errorf("%s: %q: %s", filepath.Base(file), c, why)
				}
			}
		}
	}
	if n < 300 {
		t.Errorf("only %d commands were found", n)
	}
}

// commandsIn returns the dxpu commands of a line, each without what a shell pipes it into.
func commandsIn(line string, fenced bool) []string {
	var found []string
	if inBlock, indented := strings.CutPrefix(line, "    "); (indented || fenced) && strings.HasPrefix(inBlock, "dxpu ") {
		found = append(found, inBlock)
	} else {
		for _, m := range codeSpan.FindAllStringSubmatch(line, -1) {
			found = append(found, m[1])
		}
	}
	for i, c := range found {
		found[i] = strings.TrimSpace(regexp.MustCompile(`[|;&#<>]|[$][(]|  `).Split(c, 2)[0])
	}
	return found
}

// unknownIn names the command or flag of a line that dxpu does not have.
func unknownIn(root *cobra.Command, line string) string {
	words := strings.Fields(line)[1:]
	if i := slices.Index(words, "--"); i >= 0 {
		words = words[:i]
	}
	cmd, rest, err := root.Find(words)
	if err != nil {
		return err.Error()
	}
	if cmd.HasSubCommands() && !cmd.Runnable() && len(rest) > 0 && !strings.HasPrefix(rest[0], "-") && !strings.HasPrefix(rest[0], "[") {
		return "no command " + rest[0]
	}
	for _, w := range rest {
		m := flagWord.FindStringSubmatch(strings.Trim(w, "[]().,"))
		if m != nil && cmd.Flags().Lookup(m[1]) == nil && cmd.InheritedFlags().Lookup(m[1]) == nil && m[1] != "help" && m[1] != "version" {
			return "no flag --" + m[1]
		}
	}
	return ""
}
