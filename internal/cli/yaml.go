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

// yamlFlag is --yaml: it has the command print JSON, and puts a yamlWriter in
// between.
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

// IsBoolFlag says that --yaml needs no value.
func (f *yamlFlag) IsBoolFlag() bool { return true }

// maxPending bounds how much of one JSON value a yamlWriter keeps: more than any
// list of a pool.
const maxPending = 1 << 30

// yamlWriter turns a stream of JSON values into YAML documents, each as soon as
// it is complete, in the order of the keys. What is not JSON is passed on as it is.
type yamlWriter struct {
	w       io.Writer
	pending []byte
	some    bool // something was written
	plain   bool // it is no JSON
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
			return len(p), nil // there is more to come
		default:
			y.plain, y.pending = true, nil
			if _, err := y.w.Write(rest); err != nil {
				return 0, err
			}
			return len(p), nil
		}
	}
}

// document writes one value. JSON is YAML: it is read as such, and loses its
// braces and needless quotes.
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
	if y.some {
		out = append([]byte("---\n"), out...)
	}
	y.some = true
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
		n.Style = 0 // what would not be a string without quotes keeps them: it has the tag of one
	}
	for _, c := range n.Content {
		block(c)
	}
}
