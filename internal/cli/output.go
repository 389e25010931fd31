package cli

import (
	"bytes"
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

// output holds the flags for the form of a command's output.
type output struct{ json bool }

func (o *output) register(cmd *cobra.Command) { jsonFlag(cmd, &o.json) }

// writeJSON prints a value, indented.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// printValue prints a value as JSON or as text.
func printValue[T any](cmd *cobra.Command, asJSON bool, v T, text func(io.Writer, T) error) error {
	if asJSON {
		return writeJSON(cmd.OutOrStdout(), v)
	}
	return text(cmd.OutOrStdout(), v)
}

// writeMessage prints a message of the API in its JSON form, indented.
func writeMessage(w io.Writer, m proto.Message) error {
	raw, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode JSON: %w", err)
	}
	// protojson varies its white space on purpose; json.Indent makes it stable.
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return fmt.Errorf("encode JSON: %w", err)
	}
	out.WriteByte('\n')
	_, err = out.WriteTo(w)
	return err
}

// writeLine prints a message of the API as one line of JSON.
func writeLine(w io.Writer, m proto.Message) error {
	raw, err := protojson.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode JSON: %w", err)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, raw); err != nil {
		return fmt.Errorf("encode JSON: %w", err)
	}
	out.WriteByte('\n')
	_, err = out.WriteTo(w)
	return err
}

// table prints aligned columns; the first row is the heading.
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
		s := fmt.Sprint(c)
		if s == "" {
			s = "-"
		}
		_, _ = fmt.Fprint(t.w, s, sep)
	}
}

func (t *table) flush() error { return t.w.Flush() }

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
