package cli

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/dxpu-project/dxpu/internal/atomicfile"
)

// newDocsCommand returns the hidden command with which a release makes its documents.
func newDocsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "man DIRECTORY", Short: "Write a man page for each command", Args: cobra.ExactArgs(1),
		Long:    "Write a man page for each command to a directory: dxpu.1, dxpu-get.1, dxpu-get-gpus.1 and so on.",
		Example: "  dxpu docs man /usr/share/man/man1",
		RunE: func(cmd *cobra.Command, args []string) error {
			return writeManPages(cmd.Root(), args[0])
		},
	}
	docs := group("docs", "Write documents about the commands", "Write documents about the commands, for packages.", cmd.Example, cmd)
	docs.Hidden = true
	return docs
}

// writeManPages writes the pages of a command and of its subcommands.
func writeManPages(cmd *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if cmd.Name() == "help" || cmd.Hidden || cmd.Name() == "completion" {
		return nil
	}
	page := &strings.Builder{}
	manPage(page, cmd)
	file := filepath.Join(dir, pageName(cmd)+".1")
	if err := atomicfile.Output(file, []byte(page.String()), 0o644); err != nil {
		return err
	}
	for _, sub := range cmd.Commands() {
		if err := writeManPages(sub, dir); err != nil {
			return err
		}
	}
	return nil
}

// pageName returns the name of a command's man page, such as dxpu-get-gpus.
func pageName(cmd *cobra.Command) string { return strings.ReplaceAll(cmd.CommandPath(), " ", "-") }

// manPage writes the page of one command, in the macros of man(7).
func manPage(w io.Writer, cmd *cobra.Command) {
	fmt.Fprintf(w, ".TH %s 1 \"\" \"dxpu\" \"DxPU\"\n", strings.ToUpper(pageName(cmd)))
	fmt.Fprintf(w, ".SH NAME\n%s \\- %s\n", roff(pageName(cmd)), roff(lowerFirst(cmd.Short)))
	fmt.Fprintf(w, ".SH SYNOPSIS\n\\fB%s\\fR%s\n", roff(cmd.CommandPath()), roff(strings.TrimPrefix(cmd.UseLine(), cmd.CommandPath())))
	fmt.Fprint(w, ".SH DESCRIPTION\n")
	roffText(w, cmd.Long)
	roffFlags(w, "OPTIONS", cmd.NonInheritedFlags())
	roffFlags(w, "OPTIONS OF ALL COMMANDS HERE", cmd.InheritedFlags())
	if cmd.Example != "" {
		fmt.Fprint(w, ".SH EXAMPLES\n.nf\n")
		for line := range strings.Lines(cmd.Example) {
			fmt.Fprintln(w, roff(strings.TrimPrefix(strings.TrimRight(line, "\n"), "  ")))
		}
		fmt.Fprint(w, ".fi\n")
	}
	var see []string
	if cmd.HasParent() {
		see = append(see, cmd.Parent().CommandPath())
	}
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" && sub.Name() != "completion" {
			see = append(see, sub.CommandPath())
		}
	}
	if len(see) > 0 {
		fmt.Fprint(w, ".SH SEE ALSO\n")
		for i, s := range see {
			comma := ","
			if i == len(see)-1 {
				comma = ""
			}
			fmt.Fprintf(w, ".BR %s (1)%s\n", roff(strings.ReplaceAll(s, " ", "-")), comma)
		}
	}
}

// roffFlags writes the flags as tagged paragraphs.
func roffFlags(w io.Writer, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(w, ".SH %s\n", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, help := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		fmt.Fprintf(w, ".TP\n\\fB%s\\fR", roff(name))
		if value != "" {
			fmt.Fprintf(w, " \\fI%s\\fR", roff(value))
		}
		fmt.Fprintf(w, "\n%s", roff(help))
		if d := f.DefValue; d != "" && d != "false" && d != "0" && d != "[]" {
			fmt.Fprintf(w, " (default: %s)", roff(d))
		}
		fmt.Fprintln(w)
	})
}

// roffText writes the text of a help: paragraphs are filled, indented lines stay as they
// are.
func roffText(w io.Writer, text string) {
	verbatim, broken := false, false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		indented := strings.HasPrefix(line, "  ")
		switch {
		case line == "":
			if !broken {
				fmt.Fprintln(w, ".PP")
			}
			broken = true
			continue
		case indented && !verbatim:
			fmt.Fprintln(w, ".nf")
		case !indented && verbatim:
			fmt.Fprintln(w, ".fi")
		}
		verbatim, broken = indented, false
		fmt.Fprintln(w, roff(line))
	}
	if verbatim {
		fmt.Fprintln(w, ".fi")
	}
}

// roff escapes a line of text.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		return `\&` + s
	}
	return s
}

// lowerFirst makes the first letter small, unless the word is an abbreviation.
func lowerFirst(s string) string {
	if len(s) > 1 && s[1] >= 'a' && s[1] <= 'z' {
		return strings.ToLower(s[:1]) + s[1:]
	}
	return s
}
