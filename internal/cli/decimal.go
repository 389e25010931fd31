package cli

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// decimalFlags makes the flags for whole numbers of a command and its subcommands read
// decimal numbers only. Go's syntax has other ones: 010 would be eight.
func decimalFlags(cmd *cobra.Command) {
	for _, set := range []*pflag.FlagSet{cmd.Flags(), cmd.PersistentFlags()} {
		set.VisitAll(func(f *pflag.Flag) {
			switch f.Value.Type() {
			case "int", "int32", "int64", "uint", "uint32", "uint64":
				f.Value = decimalValue{f.Value}
			}
		})
	}
	for _, sub := range cmd.Commands() {
		decimalFlags(sub)
	}
}

// decimalValue is a flag for a decimal number.
type decimalValue struct{ pflag.Value }

var decimalNumber = regexp.MustCompile(`^-?[0-9]+$`)

// Set implements pflag.Value.
func (d decimalValue) Set(s string) error {
	if !decimalNumber.MatchString(s) {
		return strconv.ErrSyntax
	}
	digits, negative := strings.CutPrefix(s, "-")
	if digits = strings.TrimLeft(digits, "0"); digits == "" {
		digits = "0"
	}
	if negative {
		digits = "-" + digits
	}
	return d.Value.Set(digits)
}
