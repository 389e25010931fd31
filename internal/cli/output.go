package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// jsonFlag gives a command --json and --yaml. v is true with both: what the
// command then prints as JSON comes out as YAML.
func jsonFlag(cmd *cobra.Command, v *bool) {
	cmd.Flags().BoolVar(v, "json", false, "print JSON")
	cmd.Flags().VarPF(&yamlFlag{cmd: cmd, json: v}, "yaml", "", "print YAML").NoOptDefVal = "true"
	cmd.MarkFlagsMutuallyExclusive("json", "yaml")
}

// output is how a command prints a message of the API.
type output struct{ json bool }

// register adds the flags.
func (o *output) register(cmd *cobra.Command) { jsonFlag(cmd, &o.json) }

// given reports whether the message is wanted as it is, not in words.
func (o *output) given() bool { return o.json }

// write prints a message in the form that was asked for.
func (o *output) write(w io.Writer, m proto.Message) error { return writeMessage(w, m) }

// writeJSON prints a value, indented.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// writeMessage prints a message of the API in its JSON form, indented.
func writeMessage(w io.Writer, m proto.Message) error {
	raw, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode JSON: %w", err)
	}
	// protojson varies its white space on purpose; ours is always the same.
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

// table prints rows in columns; the first row is the heading.
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

// enumWord is the last part of an enumeration's name in lower case:
// "LEASE_STATE_ACTIVE" without "LEASE_STATE_" is "active".
func enumWord(e fmt.Stringer, prefix string) string {
	w := strings.ToLower(strings.TrimPrefix(e.String(), prefix))
	if w == "unspecified" {
		return ""
	}
	return strings.ReplaceAll(w, "_", "-")
}

func memory(b uint64) string {
	switch {
	case b >= 1<<30 && b%(1<<30) == 0:
		return fmt.Sprintf("%d GiB", b>>30)
	case b >= 1<<20:
		return fmt.Sprintf("%d MiB", b>>20)
	default:
		return fmt.Sprintf("%d B", b)
	}
}

// duration prints a duration with three digits or so.
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
