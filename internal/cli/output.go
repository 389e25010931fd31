package cli

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
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
	w := bufio.NewWriter(cmd.OutOrStdout()) // Flush returns the first error of all writes
	text(w, v)
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
