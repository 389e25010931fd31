package cli

import (
	"fmt"
	"log/slog"
	"math"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/reflect/protoreflect"
)

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

// enumWords returns the words of all values but the unspecified one.
func enumWords[E enum]() (out []string) {
	values := E(0).Descriptor().Values()
	for i := 1; i < values.Len(); i++ {
		out = append(out, enumWord(E(values.Get(i).Number())))
	}
	return out
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

// enumVar adds a flag for a value of an enumeration as its word.
func enumVar[E enum](f *pflag.FlagSet, v *E, name, help string) {
	f.Var(flagValue{"string", func(s string) error {
		values := E(0).Descriptor().Values()
		for i := 1; i < values.Len(); i++ {
			if e := E(values.Get(i).Number()); enumWord(e) == s {
				*v = e
				return nil
			}
		}
		return withHint(fmt.Errorf("unknown word %q", s), "one of %s", strings.Join(enumWords[E](), ", "))
	}, func() string { return enumWord(*v) }}, name, help)
}

// sizeVar adds a flag for a number of bytes such as 4096, 64KiB or 16GiB. Its default
// is *v.
func sizeVar[T int | uint64](f *pflag.FlagSet, v *T, name, help string) {
	f.Var(flagValue{"size", func(s string) error {
		n, err := humanize.ParseBytes(s)
		if err != nil || n > math.MaxInt64 {
			return withHint(fmt.Errorf("%q is not a size", s), "write it like 16GiB or 512MiB")
		}
		*v = T(n)
		return nil
	}, func() string {
		if *v == 0 {
			return ""
		}
		return strings.ReplaceAll(size(uint64(*v)), " ", "")
	}}, name, help)
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
