package cli

import (
	"encoding/csv"
	"fmt"
	"log/slog"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/reflect/protoreflect"
)

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
	typ   string
	set   func(string) error
	text  func() string
	words []string // all values, for completion; nil: any
}

// Set implements pflag.Value.
func (f flagValue) Set(s string) error { return f.set(s) }

// String implements pflag.Value.
func (f flagValue) String() string { return f.text() }

// Type implements pflag.Value.
func (f flagValue) Type() string { return f.typ }

// labelsVar adds a flag of labels, KEY=VALUE, several with commas or by repetition.
func labelsVar(f *pflag.FlagSet, into *map[string]string, name, usage string) {
	f.StringToStringVar(into, name, nil, usage)
	flag := f.Lookup(name)
	flag.Value = &labelsValue{flag.Value, into}
}

// labelsValue refuses a key that is given twice, of which the last one would count.
type labelsValue struct {
	pflag.Value
	labels *map[string]string
}

func (l *labelsValue) Set(text string) error {
	before, pairs := len(*l.labels), 1
	if fields, err := csv.NewReader(strings.NewReader(text)).Read(); err == nil {
		pairs = len(fields)
	}
	if err := l.Value.Set(text); err != nil {
		return err
	}
	if len(*l.labels) < before+pairs {
		return &twiceError{text}
	}
	return nil
}

// twiceError is about labels with a key that is given twice.
type twiceError struct{ labels string }

func (e *twiceError) Error() string { return fmt.Sprintf("a key of %q is given twice", e.labels) }

// enumVar adds a flag for a value of an enumeration as its word: one of only, or any but
// the unspecified one.
func enumVar[E enum](f *pflag.FlagSet, v *E, name, help string, only ...E) {
	if len(only) == 0 {
		values := E(0).Descriptor().Values()
		for i := 1; i < values.Len(); i++ {
			only = append(only, E(values.Get(i).Number()))
		}
	}
	words := make([]string, len(only))
	for i, e := range only {
		words[i] = enumWord(e)
	}
	f.Var(flagValue{typ: "string", set: func(s string) error {
		i := slices.Index(words, s)
		if i < 0 {
			return unknownWord(s, words)
		}
		*v = only[i]
		return nil
	}, text: func() string { return enumWord(*v) }, words: words}, name, help)
}

// sizeVar adds a flag for a number of bytes such as 4096, 64KiB or 16GiB. Its default
// is *v.
func sizeVar[T int | int64 | uint64](f *pflag.FlagSet, v *T, name, help string) {
	f.Var(flagValue{typ: "size", set: func(s string) error {
		n, err := parseSize(s)
		*v = T(n)
		return err
	}, text: func() string { return sizeDefault(uint64(*v)) }}, name, help)
}

// memoryVar adds a flag for the size of a memory. It refuses a number without a unit,
// which is rarely meant in bytes.
func memoryVar(f *pflag.FlagSet, v *uint64, name, help string) {
	f.Var(flagValue{typ: "size", set: func(s string) (err error) {
		if _, err := strconv.ParseFloat(s, 64); err == nil && s != "0" {
			return withHint(fmt.Errorf("%q has no unit", s), "write it like %sGiB or %sMiB; %sB if you mean bytes", s, s, s)
		}
		*v, err = parseSize(s)
		return err
	}, text: func() string { return sizeDefault(*v) }}, name, help)
}

func parseSize(s string) (uint64, error) {
	n, err := humanize.ParseBytes(s)
	if strings.Contains(s, ",") { // dropped by ParseBytes: 1,5GiB would be 15 GiB
		return 0, withHint(fmt.Errorf("%q has a comma", s), "write it with a decimal point, like 1.5GiB")
	}
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

// checkAddress returns a usage error if the value of a flag is not an address with a port.
func checkAddress(flag, address string) error {
	_, port, err := net.SplitHostPort(address)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if err != nil {
		return usage(withHint(fmt.Errorf("%s: %q is not an address with a port", flag, address), "write it like 127.0.0.1:7470, or with port 0 for any free port"))
	}
	return nil
}

// inRange returns a usage error if a value of a flag is not between from and to.
func inRange(flag string, from, to int, values ...int) error {
	for _, v := range values {
		if v < from || v > to {
			return usagef("%s %d: want %d to %d", flag, v, from, to)
		}
	}
	return nil
}

// logOptions are the flags of a daemon's log. The zero value logs text from level info.
type logOptions struct {
	level slog.Level
	json  bool
}

func (o *logOptions) register(f *pflag.FlagSet) {
	f.TextVar(&o.level, "log-level", o.level, "least `level` of log records: debug, info, warn or error")
	f.Var(flagValue{typ: "format", words: []string{"text", "json"}, set: func(s string) error {
		switch s {
		case "text", "json":
			o.json = s == "json"
			return nil
		}
		return withHint(fmt.Errorf("unknown format %q", s), "one of text, json")
	}, text: func() string {
		if o.json {
			return "json"
		}
		return "text"
	}}, "log-format", "`format` of log records: text, or json with one object a line")
}

// logger returns a logger that writes to the command's standard error.
func (o *logOptions) logger(cmd *cobra.Command) *slog.Logger {
	h := &slog.HandlerOptions{Level: o.level, ReplaceAttr: plainAttr}
	if o.json {
		return slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), h))
	}
	return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), h))
}
