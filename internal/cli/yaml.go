package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"
)

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
