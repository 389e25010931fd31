package cli

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// nearest returns the one of some words that a mistyped word probably means, "" if none
// is near.
func nearest(word string, words []string) string {
	best, least := "", 1+max(1, min(len(word)/3, 3))
	for _, w := range words {
		d := distance(strings.ToLower(word), strings.ToLower(w))
		if len(word) >= 2 && strings.HasPrefix(w, word) {
			d = 1
		}
		if d < least || d == least && best != "" && commonPrefix(word, w) > commonPrefix(word, best) {
			best, least = w, d
		}
	}
	return best
}

// commonPrefix returns the number of bytes with which both words begin.
func commonPrefix(a, b string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

// distance returns the number of letters to insert, delete, replace or swap to make b of
// a (the restricted edit distance).
func distance(a, b string) int {
	const longest = 64 // bounds the work for hostile words
	x, y := []rune(a), []rune(b)
	if len(x) > longest || len(y) > longest {
		return longest
	}
	before, last, row := []int(nil), make([]int, len(y)+1), make([]int, len(y)+1)
	for j := range last {
		last[j] = j
	}
	for i := range x {
		row[0] = i + 1
		for j := range y {
			change := 1
			if x[i] == y[j] {
				change = 0
			}
			row[j+1] = min(last[j+1]+1, row[j]+1, last[j]+change)
			if i > 0 && j > 0 && x[i] == y[j-1] && x[i-1] == y[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, make([]int, len(y)+1)
	}
	return last[len(y)]
}

// unknownWord returns the error for a word that is none of some words.
func unknownWord(word string, words []string) error {
	all := "one of " + strings.Join(words, ", ")
	if near := nearest(word, words); near != "" {
		all = fmt.Sprintf("did you mean %q? It is %s", near, all)
	}
	return withHint(fmt.Errorf("unknown word %q", word), "%s", all)
}

// flagHint returns a flag of a command that a mistyped flag probably means.
func flagHint(cmd *cobra.Command, err error) string {
	var absent *pflag.NotExistError
	if !errors.As(err, &absent) {
		return ""
	}
	var names []string
	add := func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	}
	cmd.LocalFlags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	name := strings.TrimLeft(absent.GetSpecifiedName(), "-")
	near := nearest(name, names)
	for _, other := range sameFlags[name] {
		if slices.Contains(names, other) {
			near = other
			break
		}
	}
	if near != "" {
		return fmt.Sprintf("did you mean --%s? ", near)
	}
	return ""
}

// sameFlags has flags of other commands, of kubectl, Slurm, Docker and Nomad, and the flags here
// that mean the same, the best first.
var sameFlags = map[string][]string{
	"count":     {"gpus"},
	"gpu-count": {"count", "gpus"},
	"gpu-type":  {"model"},
	"gpus":      {"count"},
	"gres":      {"count", "gpus"},
	"labels":    {"label"},
	"namespace": {"tenant"},
	"node":      {"host"},
	"nodelist":  {"host"},
	"nodes":     {"hosts"},
	"num-gpus":  {"count", "gpus"},
	"project":   {"tenant"},
	"replicas":  {"count", "gpus"},
	"selector":  {"host-label", "label"},
	"server":    {"manager"},
	"time":      {"expires", "duration"},
	"type":      {"model", "kind"},
	"vram":      {"gpu-memory", "memory"},
}

var unknownCommand = regexp.MustCompile(`^unknown command "(.*)" for "`)

// commandError describes a word that is no command, or an argument of a command that has
// none. It returns nil for other errors.
func commandError(cmd *cobra.Command, err error) error {
	m := unknownCommand.FindStringSubmatch(err.Error())
	if m == nil {
		return nil
	}
	if !cmd.HasAvailableSubCommands() {
		return withHint(fmt.Errorf("%s takes no arguments: %q", cmd.CommandPath(), m[1]), "usage: %s", cmd.UseLine())
	}
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() || sub.IsAdditionalHelpTopicCommand() {
			names = append(append(names, sub.Name()), sub.Aliases...)
		}
	}
	err = fmt.Errorf("%s has no command %q", cmd.CommandPath(), m[1])
	near := nearest(m[1], names)
	if near == "" {
		return withHint(err, `"%s --help" lists the commands`, cmd.CommandPath())
	}
	return withHint(err, `did you mean "%s %s"?`, cmd.CommandPath(), near)
}

var absentObject = regexp.MustCompile(`^(?:[a-z_.]+: )?(lease|gpu|box|host|tenant|token|node) "([^"]*)" does not exist`)

// suggestName adds a hint to an error about an object that does not exist: the object
// with the nearest name, if the caller may list them.
func suggestName(ctx context.Context, conn *connection, err error) error {
	var many *manyErrors
	if errors.As(err, &many) {
		for i := range many.all {
			many.all[i] = suggestName(ctx, conn, many.all[i])
		}
		return err
	}
	var ce *connect.Error
	if connect.CodeOf(err) != connect.CodeNotFound || !errors.As(err, &ce) || ctx.Err() != nil {
		return err
	}
	m := absentObject.FindStringSubmatch(ce.Message())
	if m == nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, completionTimeout)
	defer cancel()
	names, listErr := namers[strings.ToUpper(m[1])](ctx, conn)
	if connect.CodeOf(listErr) == connect.CodePermissionDenied {
		return withHint(err, `"dxpu whoami" shows your role, and your tenant`)
	}
	if listErr != nil {
		return err
	}
	list := listsOf[m[1]]
	for _, kind := range []string{"box", "host"} {
		if others, err := namers[strings.ToUpper(kind)](ctx, conn); kind != m[1] && m[1] != "node" && err == nil && slices.Contains(others, m[2]) {
			return withHint(ce, `%q is a %s; "%s" lists all`, m[2], kind, list)
		}
	}
	switch near := nearest(m[2], names); {
	case near != "":
		return withHint(err, `did you mean %q? "%s" lists all`, near, list)
	case len(names) > 0 && len(names) <= 5:
		slices.SortFunc(names, compareNatural)
		return withHint(err, `"%s" lists all: %s`, list, strings.Join(names, ", "))
	}
	return withHint(err, `"%s" lists all`, list)
}

// listsOf are the commands that list the objects of a kind.
var listsOf = map[string]string{
	"lease": "dxpu get leases --all", "gpu": "dxpu get gpus", "box": "dxpu get boxes", "host": "dxpu get hosts",
	"tenant": "dxpu get tenants", "token": "dxpu get tokens", "node": "dxpu get hosts; dxpu get boxes",
}
