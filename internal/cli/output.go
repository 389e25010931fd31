package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// jsonFlag adds --json and --yaml to a command. Both set v; with --yaml the JSON
// output of the command is converted to YAML.
func jsonFlag(cmd *cobra.Command, v *bool) {
	cmd.Flags().BoolVar(v, "json", false, "print JSON")
	cmd.Flags().VarPF(&yamlFlag{cmd: cmd, json: v}, "yaml", "", "print YAML").NoOptDefVal = "true"
	cmd.MarkFlagsMutuallyExclusive("json", "yaml")
}

// valueCommand completes a command that prints a value, as text by default.
func valueCommand[T any](cmd *cobra.Command, get func(cmd *cobra.Command, args []string) (T, error), text func(io.Writer, T)) *cobra.Command {
	var asJSON bool
	jsonFlag(cmd, &asJSON)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		v, err := get(cmd, args)
		if err != nil {
			return err
		}
		return printValue(cmd, asJSON, v, text)
	}
	return cmd
}

// printValue prints a value as JSON or as text.
func printValue[T any](cmd *cobra.Command, asJSON bool, v T, text func(io.Writer, T)) error {
	if asJSON {
		return writeJSON(cmd.OutOrStdout(), v)
	}
	return printText(cmd.OutOrStdout(), func(w io.Writer) { text(w, v) })
}

// printText calls a function that prints, and returns the first error of its writes.
func printText(out io.Writer, text func(io.Writer)) error {
	w := bufio.NewWriter(out)
	text(w)
	return w.Flush()
}

// writeJSON prints a value or a message of the API, indented.
func writeJSON(w io.Writer, v any) error {
	if m, ok := v.(proto.Message); ok {
		raw, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
		if err != nil {
			return fmt.Errorf("encode JSON: %w", err)
		}
		v = json.RawMessage(raw) // protojson varies its white space on purpose; the encoder makes it stable
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// writeLine prints a message of the API as one line of JSON.
func writeLine(w io.Writer, m proto.Message) error {
	raw, err := protojson.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode JSON: %w", err)
	}
	e := json.NewEncoder(w) // compacts raw
	e.SetEscapeHTML(false)
	return e.Encode(json.RawMessage(raw))
}

// table prints aligned columns; the first row is the heading. The writer below it
// keeps the errors.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer, heading ...any) *table {
	t := &table{tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)}
	t.row(heading...)
	return t
}

func (t *table) row(cells ...any) {
	for i, c := range cells {
		sep := "\t"
		if i == len(cells)-1 {
			sep = "\n"
		}
		fmt.Fprint(t.w, cmp.Or(fmt.Sprint(c), "-"), sep)
	}
}

func (t *table) flush() { _ = t.w.Flush() }

// duration prints a duration, rounded to 10 ms or 10 µs.
func duration(d time.Duration) string {
	switch {
	case d >= time.Second:
		return d.Round(10 * time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	default:
		return d.String()
	}
}

// yamlFlag is --yaml. It makes the command print JSON, and converts the output with a
// yamlWriter.
type yamlFlag struct {
	cmd  *cobra.Command
	json *bool
	on   bool
}

// Set implements pflag.Value.
func (f *yamlFlag) Set(s string) error {
	on, err := strconv.ParseBool(s)
	if err != nil || !on || f.on {
		return err
	}
	f.on, *f.json = true, true
	f.cmd.SetOut(&yamlWriter{w: f.cmd.OutOrStdout()})
	return nil
}

// String implements pflag.Value.
func (f *yamlFlag) String() string { return strconv.FormatBool(f.on) }

// Type implements pflag.Value.
func (f *yamlFlag) Type() string { return "bool" }

// IsBoolFlag tells pflag that --yaml needs no value.
func (f *yamlFlag) IsBoolFlag() bool { return true }

// maxPending bounds the size of one JSON value in a yamlWriter, in bytes: more than any
// list of a pool.
const maxPending = 1 << 30

// yamlWriter converts a stream of JSON values to YAML documents, each as soon as it is
// complete, with the keys in their order. It passes on other text unchanged.
type yamlWriter struct {
	w       io.Writer
	pending []byte
	started bool // a document was written
	plain   bool // the stream is not JSON
}

// Write implements io.Writer.
func (y *yamlWriter) Write(p []byte) (int, error) {
	if y.plain {
		return y.w.Write(p)
	}
	y.pending = append(y.pending, p...)
	for {
		rest := bytes.TrimLeft(y.pending, " \t\r\n")
		if len(rest) == 0 {
			y.pending = nil
			return len(p), nil
		}
		var value json.RawMessage
		d := json.NewDecoder(bytes.NewReader(rest))
		switch err := d.Decode(&value); {
		case err == nil:
			if err := y.document(value); err != nil {
				return 0, err
			}
			y.pending = rest[d.InputOffset():]
		case errors.Is(err, io.ErrUnexpectedEOF) && len(rest) < maxPending:
			return len(p), nil // the value is not complete
		default:
			y.plain, y.pending = true, nil
			if _, err := y.w.Write(rest); err != nil {
				return 0, err
			}
			return len(p), nil
		}
	}
}

// document writes one value. JSON is valid YAML: it is parsed as such and written
// without braces and unnecessary quotes.
func (y *yamlWriter) document(value []byte) error {
	var n yaml.Node
	if err := yaml.Load(value, &n); err != nil {
		return err
	}
	block(&n)
	out, err := yaml.Dump(&n, yaml.WithIndent(2))
	if err != nil {
		return err
	}
	if y.started {
		out = append([]byte("---\n"), out...)
	}
	y.started = true
	_, err = y.w.Write(out)
	return err
}

func block(n *yaml.Node) {
	switch n.Kind {
	case yaml.MappingNode, yaml.SequenceNode:
		if len(n.Content) > 0 {
			n.Style = 0
		}
	case yaml.ScalarNode:
		n.Style = 0 // the tag keeps the quotes of strings that need them
	}
	for _, c := range n.Content {
		block(c)
	}
}

// enum is an enumeration of the API.
type enum interface {
	~int32
	protoreflect.Enum
}

// enumWord returns the last part of a value's name in lower case, such as "active"
// for LEASE_STATE_ACTIVE, and "" for the unspecified value.
func enumWord(e protoreflect.Enum) string {
	if e.Number() == 0 {
		return ""
	}
	values := e.Descriptor().Values()
	prefix := strings.TrimSuffix(string(values.Get(0).Name()), "UNSPECIFIED")
	name := fmt.Sprint(e) // a number if the value is newer than this program
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(name, prefix)), "_", "-")
}

// flagValue implements pflag.Value with functions.
type flagValue struct {
	typ  string
	set  func(string) error
	text func() string
}

// Set implements pflag.Value.
func (f flagValue) Set(s string) error { return f.set(s) }

// String implements pflag.Value.
func (f flagValue) String() string { return f.text() }

// Type implements pflag.Value.
func (f flagValue) Type() string { return f.typ }

// enumVar adds a flag for a value of an enumeration as its word: one of only, or any but
// the unspecified one.
func enumVar[E enum](f *pflag.FlagSet, v *E, name, help string, only ...E) {
	f.Var(flagValue{"string", func(s string) error {
		if len(only) == 0 {
			values := E(0).Descriptor().Values()
			for i := 1; i < values.Len(); i++ {
				only = append(only, E(values.Get(i).Number()))
			}
		}
		words := make([]string, len(only))
		for i, e := range only {
			if words[i] = enumWord(e); words[i] == s {
				*v = e
				return nil
			}
		}
		return withHint(fmt.Errorf("unknown word %q", s), "one of %s", strings.Join(words, ", "))
	}, func() string { return enumWord(*v) }}, name, help)
}

// sizeVar adds a flag for a number of bytes such as 4096, 64KiB or 16GiB. Its default
// is *v.
func sizeVar[T int | uint64](f *pflag.FlagSet, v *T, name, help string) {
	f.Var(flagValue{"size", func(s string) error {
		n, err := parseSize(s)
		*v = T(n)
		return err
	}, func() string { return sizeDefault(uint64(*v)) }}, name, help)
}

// memoryVar adds a flag for the size of a memory. It refuses a number without a unit,
// which is rarely meant in bytes.
func memoryVar(f *pflag.FlagSet, v *uint64, name, help string) {
	f.Var(flagValue{"size", func(s string) (err error) {
		if _, err := strconv.ParseFloat(s, 64); err == nil && s != "0" {
			return withHint(fmt.Errorf("%q has no unit", s), "write it like %sGiB or %sMiB; %sB if you mean bytes", s, s, s)
		}
		*v, err = parseSize(s)
		return err
	}, func() string { return sizeDefault(*v) }}, name, help)
}

func parseSize(s string) (uint64, error) {
	n, err := humanize.ParseBytes(s)
	if err != nil || n > math.MaxInt64 {
		return 0, withHint(fmt.Errorf("%q is not a size", s), "write it like 16GiB or 512MiB")
	}
	return n, nil
}

// sizeDefault prints the default of a size in a help text.
func sizeDefault(n uint64) string {
	if n == 0 {
		return ""
	}
	return strings.ReplaceAll(size(n), " ", "")
}

// size prints a number of bytes, such as "16 GiB".
func size(n uint64) string { return strings.Replace(humanize.IBytes(n), ".0 ", " ", 1) }

// inRange returns a usage error if a value of a flag is not between from and to.
func inRange(flag string, from, to int, values ...int) error {
	for _, v := range values {
		if v < from || v > to {
			return usagef("%s %d: want %d to %d", flag, v, from, to)
		}
	}
	return nil
}

// logFlag adds --log-level.
func logFlag(f *pflag.FlagSet, level *slog.Level) {
	f.TextVar(level, "log-level", *level, "least `level` of log records: debug, info, warn or error")
}

// newLogger returns a logger that writes to the command's standard error.
func newLogger(cmd *cobra.Command, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
}
