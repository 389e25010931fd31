// Package cli is the command line of dxpu: one file for each command, text by
// default and JSON on request, errors with a hint.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Exit codes; "dxpu help exit-codes" explains them.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitRefused = 3
	exitTimeout = 4
	// exitInterrupted is that of a shell for a command that SIGINT has ended.
	exitInterrupted = 128 + int(syscall.SIGINT)
)

// errInterrupted is the cause of the end of a command by SIGINT or SIGTERM.
var errInterrupted = errors.New("interrupted")

// hintedError is an error with advice for the user.
type hintedError struct {
	err  error
	hint string
}

func (h *hintedError) Error() string { return h.err.Error() }
func (h *hintedError) Unwrap() error { return h.err }

// withHint adds advice to an error.
func withHint(err error, format string, args ...any) error {
	return &hintedError{err, fmt.Sprintf(format, args...)}
}

// aboutError is an error with the object that it is about, of several in a command.
type aboutError struct {
	what string
	err  error
}

func (a *aboutError) Error() string { return a.what + ": " + a.err.Error() }
func (a *aboutError) Unwrap() error { return a.err }

// usageError is an error in the command line: the exit code is 2.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// programError is the failure of a program that "dxpu run" ran.
type programError struct {
	code int
	text string
}

func (e *programError) Error() string { return e.text }

// usage marks an error as one in the command line.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

// usagef returns an error in the command line.
func usagef(format string, args ...any) error { return usage(fmt.Errorf(format, args...)) }

// Main runs a command line, without the name of the program, and returns the exit
// code. SIGINT and SIGTERM cancel the command; a second signal ends the process.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // restores the default action of the signals

	conn := &connection{}
	root := newRootCommand(conn)
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(flagError)
	started := false
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error {
		// Before started, so that these errors have the exit code of wrong usage.
		if err := cmp.Or(cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups()); err != nil {
			return err
		}
		started = true
		return nil
	}

	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if ctx.Err() != nil && !errors.Is(err, errInterrupted) && (errors.Is(err, context.Canceled) || connect.CodeOf(err) == connect.CodeCanceled) {
		err = errInterrupted // without the words of Go's contexts
	}
	if !started { // cobra found an error in the flags or arguments
		err = usage(argumentError(cmd, err))
	}
	if started {
		err = suggestName(ctx, conn, err)
	}
	printError(stderr, err)
	return exitCode(err)
}

// flagError describes an unknown flag, or a flag's bad value without the words of Go's
// parsers.
func flagError(cmd *cobra.Command, err error) error {
	var bad *pflag.InvalidValueError
	if !errors.As(err, &bad) {
		return withHint(err, `%s"%s --help" explains the command`, flagHint(cmd, err), cmd.CommandPath())
	}
	return valueError(err)
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

// argumentError adds a hint to an error that cobra found before the command ran.
func argumentError(cmd *cobra.Command, err error) error {
	var h *hintedError
	if errors.As(err, &h) {
		return err
	}
	if described := commandError(cmd, err); described != nil {
		return described
	}
	if strings.Contains(err.Error(), "arg(s)") {
		return withHint(errors.New("wrong number of arguments"), "usage: %s", cmd.UseLine())
	}
	return withHint(err, `"%s --help" explains the command`, cmd.CommandPath())
}

// severalErrors returns the first error with the texts of the others, nil for none.
func severalErrors(errs []error) error {
	errs = slices.DeleteFunc(errs, func(err error) bool { return err == nil })
	if len(errs) == 0 {
		return nil
	}
	return &manyErrors{errs}
}

// manyErrors are the errors of a command with several arguments. The first decides on the
// exit code.
type manyErrors struct{ all []error }

func (m *manyErrors) Error() string { return errors.Join(m.all...).Error() }
func (m *manyErrors) Unwrap() error { return m.all[0] }

func printError(out io.Writer, err error) {
	var many *manyErrors
	if errors.As(err, &many) && len(many.all) > 1 {
		for _, err := range many.all {
			printError(out, err)
		}
		return
	}
	w := newPage(out, false)
	defer func() { _ = w.Flush() }()
	var ce *connect.Error
	text := err.Error()
	if errors.As(err, &ce) {
		text = inFlags(ce.Message())
		var about *aboutError
		if errors.As(err, &about) {
			text = about.what + ": " + text
		}
		switch ce.Code() {
		case connect.CodeUnauthenticated:
			text = strings.Replace(text, "unknown node or wrong credential: enrol again with a join token", "the manager does not know this token", 1)
		case connect.CodeUnavailable:
			text = "the manager is unavailable: " + text
		case connect.CodeUnimplemented, connect.CodeUnknown:
			text = "unexpected answer: " + text
		}
	}
	fmt.Fprintf(w, "dxpu: %s %s\n", w.mark(red, "error:"), text)
	if hint := hintFor(err, ce); hint != "" {
		fmt.Fprintf(w, "dxpu: %s %s\n", w.mark(bold, "hint:"), hint)
	}
}

func hintFor(err error, ce *connect.Error) string {
	var h *hintedError
	if errors.As(err, &h) {
		return h.hint
	}
	if hint := connectionHint(err); hint != "" {
		return hint
	}
	switch {
	case ce == nil:
		return ""
	case ce.Code() == connect.CodeUnauthenticated && strings.HasPrefix(ce.Message(), "join_token: "):
		return `--join-token-file or DXPU_JOIN_TOKEN names the join token; "dxpu manager --join-token-file" writes it`
	case ce.Code() == connect.CodeUnauthenticated:
		return `--token-file or DXPU_TOKEN names your token; "dxpu token create" makes one`
	case ce.Code() == connect.CodeUnavailable:
		return `is a manager running at this address? "dxpu manager" starts one; --manager or DXPU_MANAGER names another`
	case ce.Code() == connect.CodeNotFound:
		return `"dxpu get" lists what the pool has`
	case ce.Code() == connect.CodeResourceExhausted && strings.Contains(ce.Message(), "spec.wait"):
		return `"dxpu get gpus" shows the free GPUs; --queue waits for capacity`
	}
	return ""
}

// exitCode separates refusals by the manager from other failures.
func exitCode(err error) int {
	var usage *usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	var program *programError
	if errors.As(err, &program) {
		return program.code
	}
	switch {
	case errors.Is(err, errInterrupted):
		return exitInterrupted
	case errors.Is(err, errTimeout):
		return exitTimeout
	}
	switch connect.CodeOf(err) {
	case connect.CodeNotFound, connect.CodeAlreadyExists, connect.CodeResourceExhausted, connect.CodeFailedPrecondition,
		connect.CodeAborted, connect.CodePermissionDenied, connect.CodeUnauthenticated, connect.CodeOutOfRange:
		return exitRefused
	case connect.CodeInvalidArgument:
		return exitUsage
	default:
		return exitFailure
	}
}

// fieldFlags are the flags that set the fields of requests, "" for fields that are
// arguments. The manager's errors name the fields.
var fieldFlags = map[string]string{
	"spec.count": "--count", "spec.model": "--model", "spec.min_memory_bytes": "--memory", "spec.box_kind": "--kind",
	"spec.nvlink": "--nvlink", "spec.same_box": "--same-box", "spec.host_id": "--host", "spec.host_domain": "--host-domain",
	"spec.host_labels": "--host-label", "spec.box_labels": "--box-label", "spec.gpu_ids": "--gpu", "spec.tenant": "--tenant", "spec.priority": "--priority",
	"spec.expires_after": "--expires", "spec.wait": "--queue", "spec.gang.name": "--gang", "spec.gang.size": "--gang-size", "spec.preemptible": "--preemptible", "spec.wait_timeout": "--queue-timeout",
	"request_id": "--request-id", "count": "--count", "reason": "--reason", "deadline": "--deadline",
	"role": "--role", "tenant": "--tenant", "description": "--description", "expires_after": "--expires",
	"tenant.id": "", "tenant.description": "--description", "tenant.quota.max_gpus": "--max-gpus",
	"tenant.quota.max_gpus_by_model": "--max-gpus-of", "tenant.quota.max_leases": "--max-leases",
	"tenant.quota.guaranteed_gpus": "--guaranteed-gpus", "tenant.quota.max_priority": "--max-priority", "tenant.quota.weight": "--weight",
	"join_token": "join token", "name": "--name",
	"gpu_id": "", "lease_id": "", "token_id": "", "tenant_id": "", "node_id": "", "host_id": "", "box_id": "", "target": "",
}

var (
	leadingField = regexp.MustCompile(`^([a-z_]+(?:\.[a-z_]+)*): `)
	innerField   = regexp.MustCompile(`\b(?:spec\.[a-z_]+|request_id)\b`)
	waitSentence = regexp.MustCompile(`\s+[A-Z][^.]*\bspec\.wait\b.*$`) // our hint says it
	roleName     = regexp.MustCompile(`\bROLE_[A-Z]+\b`)
)

// inFlags replaces the names of API fields in an error of the manager by those of
// the flags.
func inFlags(message string) string {
	message = waitSentence.ReplaceAllString(message, "")
	if m := leadingField.FindStringSubmatch(message); m != nil {
		if flag, ok := fieldFlags[m[1]]; ok {
			message = message[len(m[0]):]
			if flag != "" {
				message = flag + ": " + message
			}
		}
	}
	message = innerField.ReplaceAllStringFunc(message, func(f string) string {
		if flag := fieldFlags[f]; flag != "" {
			return flag
		}
		return f
	})
	return roleName.ReplaceAllStringFunc(message, func(r string) string { return strings.ToLower(r[len("ROLE_"):]) })
}
