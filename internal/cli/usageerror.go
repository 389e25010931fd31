package cli

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The libraries of the command line describe errors in their own words. The functions of
// this file describe them in those of the command: its flags and the arguments of its
// usage line.

// flagError describes an error in the flags of a command.
func flagError(cmd *cobra.Command, err error) error {
	var absent *pflag.NotExistError
	var bare *pflag.ValueRequiredError
	var bad *pflag.InvalidValueError
	help := fmt.Sprintf(`"%s --help" explains the command`, cmd.CommandPath())
	switch {
	case errors.As(err, &absent) && cmd.HasAvailableSubCommands() && cmd.Flags().NArg() > 0:
		// The flag is one of a command whose name is mistyped.
		return argumentError(cmd, fmt.Errorf("unknown command %q for %q", cmd.Flags().Arg(0), cmd.CommandPath()))
	case errors.As(err, &absent):
		name := "--" + absent.GetSpecifiedName()
		if absent.GetSpecifiedShortnames() != "" { // of one letter
			name = "-" + absent.GetSpecifiedName()
		}
		return withHint(fmt.Errorf("unknown flag: %s", name), "%s%s", flagHint(cmd, err), help)
	case errors.As(err, &bare):
		name := "--" + bare.GetSpecifiedName()
		if bare.GetSpecifiedShortnames() != "" {
			name = "-" + bare.GetSpecifiedName()
		}
		return withHint(fmt.Errorf("%s: the value is missing", name), "%s", help)
	case errors.As(err, &bad):
		err := valueError(err)
		var h *hintedError
		if errors.As(err, &h) {
			return err
		}
		return withHint(err, "%s", help)
	}
	return withHint(errors.New(strings.TrimPrefix(err.Error(), "bad flag syntax: ")+" is not a flag"), "%s", help)
}

// valueError describes a flag's bad value.
func valueError(err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return err
	}
	name := "--" + bad.GetFlag().Name
	if errors.Is(err, strconv.ErrRange) {
		return fmt.Errorf("%s: %q is out of range", name, bad.GetValue())
	}
	cause := errors.Unwrap(bad)
	want := ""
	switch typ := bad.GetFlag().Value.Type(); {
	case errors.As(err, new(*twiceError)):
		return fmt.Errorf("%s: %w", name, cause)
	case typ == "bool":
		want = "true or false"
	case strings.HasPrefix(cause.Error(), "slog: "):
		want = "debug, info, warn or error"
	case strings.HasPrefix(typ, "uint") && strings.HasPrefix(bad.GetValue(), "-"):
		want = "a whole number of 0 or more"
	case strings.HasPrefix(typ, "int"), strings.HasPrefix(typ, "uint"):
		want = "a whole number"
	case strings.HasPrefix(typ, "float"):
		want = "a number"
	case typ == "stringToString":
		want = "of the form KEY=VALUE"
	default:
		return fmt.Errorf("%s: %w", name, cause)
	}
	return fmt.Errorf("%s: %q is not %s", name, bad.GetValue(), want)
}

// checkFlags returns an error if a required flag is missing, or if flags exclude each
// other.
func checkFlags(cmd *cobra.Command) error {
	var missing []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Changed && slices.Contains(f.Annotations[cobra.BashCompOneRequiredFlag], "true") {
			missing = append(missing, "--"+f.Name)
		}
	})
	if len(missing) > 0 {
		return fmt.Errorf("%s is missing", strings.Join(missing, ", "))
	}
	// As of a script whose variable is not set: the command would not be safe to repeat.
	if f := cmd.Flags().Lookup("request-id"); f != nil && f.Changed && f.Value.String() == "" {
		return errors.New("--request-id: the name of the request is empty")
	}
	for _, name := range objectFlags {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed && (f.Value.String() == "" || f.Value.String() == "[]") {
			return fmt.Errorf("--%s: the value is empty; leave the flag out, or name one", name)
		}
	}
	err := cmd.ValidateFlagGroups()
	if err == nil {
		return nil
	}
	if m := exclusiveFlags.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("--%s exclude each other", strings.Join(strings.Fields(m[1]), " and --"))
	}
	if m := togetherFlags.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("--%s is missing: it belongs to --%s", m[2], strings.ReplaceAll(strings.TrimSpace(strings.Replace(" "+m[1]+" ", " "+m[2]+" ", " ", 1)), " ", " and --"))
	}
	if m := oneFlagOf.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("one of --%s is missing", strings.Join(strings.Fields(m[1]), ", --"))
	}
	return err
}

// objectFlags are flags that name an object. An empty one is that of a script whose
// variable is not set: the command would go to any host, or to the tenant default.
// Neither may it go to another pool, or with another token.
var objectFlags = []string{
	"host", "tenant", "gpu", "box", "lease", "to", "name", "manager", "context", "ca-file", "token-file", "model",
	// Without a directory a daemon keeps its state in memory, and loses it when it ends.
	"data-dir", "state-dir",
}

var (
	exclusiveFlags = regexp.MustCompile(`\[([^]]*)\] were all set$`)
	togetherFlags  = regexp.MustCompile(`in the group \[([^]]*)\] are set they must all be set; missing \[([^] ]*)\]$`)
	oneFlagOf      = regexp.MustCompile(`in the group \[([^]]*)\] is required$`)
)

// argumentError describes an error in the arguments of a command.
func argumentError(cmd *cobra.Command, err error) error {
	var h *hintedError
	if errors.As(err, &h) {
		return err
	}
	if described := commandError(cmd, err); described != nil {
		return described
	}
	if m := argumentCount.FindStringSubmatch(err.Error()); m != nil {
		return withHint(countError(cmd, m[1]), "usage: %s", cmd.UseLine())
	}
	return withHint(err, `"%s --help" explains the command`, cmd.CommandPath())
}

// argumentCount matches the errors of the argument checks of cobra.
var argumentCount = regexp.MustCompile(`arg\(s\), (?:only )?received (\d+)$`)

// countError describes a wrong number of arguments. The words of the usage line are the
// names of the arguments.
func countError(cmd *cobra.Command, received string) error {
	var names []string
	for _, w := range strings.Fields(cmd.Use)[1:] {
		if w != "[flags]" && w != "--" {
			names = append(names, w)
		}
	}
	n, _ := strconv.Atoi(received) // digits
	if n < len(names) && !strings.HasPrefix(names[n], "[") {
		return fmt.Errorf("the argument %s is missing", strings.TrimRight(names[n], "."))
	}
	if len(names) == 0 {
		return fmt.Errorf("%s takes no arguments", cmd.CommandPath())
	}
	return fmt.Errorf("too many arguments: %d instead of %d", n, len(names))
}

// checkWait returns an error if a limit for --wait is given without it.
func checkWait(cmd *cobra.Command, wait bool) error {
	if !wait && cmd.Flags().Changed("timeout") {
		return usage(withHint(errors.New("--timeout is the limit of --wait, which is missing"), "add --wait"))
	}
	return nil
}
