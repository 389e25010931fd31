package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v4"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Forms of a command's output, the words of --output.
const (
	formTable = "table"
	formWide  = "wide"
	formJSON  = "json"
	formYAML  = "yaml"
	formName  = "name"
)

// output is the form in which a command prints: --output. --json and --yaml are short
// for two of its words.
type output struct {
	form  string
	forms []string // the words that the command has
	cmd   *cobra.Command
	plain io.Writer // the output behind a yamlWriter; nil: there is none
}

// register adds the flags. A command has all forms if it prints objects with names, else
// no names.
func (o *output) register(cmd *cobra.Command, names bool) {
	o.form, o.cmd = formTable, cmd
	o.forms = []string{formTable, formWide, formJSON, formYAML}
	if names {
		o.forms = append(o.forms, formName)
	}
	f := cmd.Flags()
	f.VarP(flagValue{typ: "form", set: o.set, text: func() string { return o.form }, words: o.forms}, "output", "o",
		"`form` of the output: "+strings.Join(o.forms[:len(o.forms)-1], ", ")+" or "+o.forms[len(o.forms)-1])
	for _, form := range []string{formJSON, formYAML} {
		f.VarPF(flagValue{typ: "bool", set: func(s string) error {
			on, err := strconv.ParseBool(s)
			if err != nil || !on {
				return err
			}
			return o.set(form)
		}, text: func() string { return strconv.FormatBool(o.form == form) }}, form, "", "short for -o "+form).NoOptDefVal = "true"
	}
	cmd.MarkFlagsMutuallyExclusive("output", formJSON, formYAML)
}

func (o *output) set(s string) error {
	if !slices.Contains(o.forms, s) {
		return unknownWord(s, o.forms)
	}
	o.form = s
	switch {
	case s == formYAML && o.plain == nil:
		o.plain = o.cmd.OutOrStdout()
		o.cmd.SetOut(&yamlWriter{w: o.plain})
	case s != formYAML && o.plain != nil: // the last of several flags counts
		o.cmd.SetOut(o.plain)
		o.plain = nil
	}
	return nil
}

// structured reports whether the output is for programs: JSON, of which a yamlWriter may
// make YAML.
func (o *output) structured() bool { return o.form == formJSON || o.form == formYAML }

// jsonFlag adds the flags of output to a command that needs to know only whether to
// print JSON.
func jsonFlag(cmd *cobra.Command) *output {
	o := &output{}
	o.register(cmd, false)
	return o
}

// valueCommand completes a command that prints a value, as text by default.
func valueCommand[T any](cmd *cobra.Command, get func(cmd *cobra.Command, args []string) (T, error), text func(io.Writer, T)) *cobra.Command {
	o := &output{}
	o.register(cmd, hasNames[T]())
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		v, err := get(cmd, args)
		if err != nil {
			return err
		}
		return printValue(cmd, o, v, text)
	}
	return cmd
}

// printValue prints a value in the form that the user wants. A nil output is text.
func printValue[T any](cmd *cobra.Command, o *output, v T, text func(io.Writer, T)) error {
	switch {
	case o == nil:
		return printText(cmd.OutOrStdout(), false, func(w io.Writer) { text(w, v) })
	case o.structured():
		return writeJSON(cmd.OutOrStdout(), v)
	case o.form == formName:
		return printText(cmd.OutOrStdout(), true, func(w io.Writer) {
			for _, name := range namesIn(v) {
				fmt.Fprintln(w, name)
			}
		})
	}
	return printText(cmd.OutOrStdout(), o.form == formWide, func(w io.Writer) { text(w, v) })
}

// printText calls a function that prints, and returns the first error of its writes.
func printText(out io.Writer, wide bool, text func(io.Writer)) error {
	w := newPage(out, wide)
	text(w)
	return w.Flush()
}

// nameList is a value with names that is no message of the API.
type nameList interface{ names() []string }

// hasNames reports whether the values of a type have names.
func hasNames[T any]() bool {
	var zero T
	switch v := any(zero).(type) {
	case nameList:
		return true
	case proto.Message:
		m := v.ProtoReflect().Descriptor()
		return nameField(m) != nil || listField(m) != nil
	}
	return false
}

// namesIn returns the names of the objects in a value for which hasNames is true.
func namesIn(v any) []string {
	if n, ok := v.(nameList); ok {
		return n.names()
	}
	m, ok := v.(proto.Message)
	if !ok {
		return nil
	}
	var out []string
	for _, item := range itemsOf(m) {
		out = append(out, nameOf(item))
	}
	return out
}

// itemsOf returns the objects in the answer of a list method, or the message itself.
func itemsOf(m proto.Message) []protoreflect.Message {
	r := m.ProtoReflect()
	field := listField(r.Descriptor())
	if field == nil {
		return []protoreflect.Message{r}
	}
	list := r.Get(field).List()
	out := make([]protoreflect.Message, list.Len())
	for i := range out {
		out[i] = list.Get(i).Message()
	}
	return out
}

// setItems replaces the objects in the answer of a list method.
func setItems(m proto.Message, items []protoreflect.Message) {
	r := m.ProtoReflect()
	field := listField(r.Descriptor())
	list := r.NewField(field).List()
	for _, item := range items {
		list.Append(protoreflect.ValueOfMessage(item))
	}
	r.Set(field, protoreflect.ValueOfList(list))
}

// listField returns the field with the objects of the answer of a list method, nil for
// other messages.
func listField(d protoreflect.MessageDescriptor) protoreflect.FieldDescriptor {
	if d.Fields().ByName("next_page_token") == nil {
		return nil
	}
	for i := range d.Fields().Len() {
		if f := d.Fields().Get(i); f.IsList() && f.Message() != nil && nameField(f.Message()) != nil {
			return f
		}
	}
	return nil
}

// nameField returns the field that names an object, nil if there is none: its ID, or the
// part of a host or box that has it.
func nameField(d protoreflect.MessageDescriptor) protoreflect.FieldDescriptor {
	id := d.Fields().ByName("id")
	if id != nil && id.Kind() != protoreflect.StringKind {
		return nil
	}
	return cmp.Or[protoreflect.FieldDescriptor](id, d.Fields().ByName("node"))
}

// nameOf returns the name of an object.
func nameOf(m protoreflect.Message) string {
	f := nameField(m.Descriptor())
	if f.Kind() == protoreflect.MessageKind {
		return nameOf(m.Get(f).Message())
	}
	return m.Get(f).String()
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
