// Package cli is the command line of dxpu: one file per command, text by
// default and JSON on request, errors with a hint.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
)

// Exit codes; "dxpu help exit-codes" explains them.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
	exitRefused = 3
)

// hinted is an error that knows what to do about it.
type hinted struct {
	err  error
	hint string
}

func (h *hinted) Error() string { return h.err.Error() }
func (h *hinted) Unwrap() error { return h.err }

// usageError is an error in the command line: the exit code is 2.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// usage marks an error as one in the command line.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

// usagef returns an error in the command line.
func usagef(format string, args ...any) error { return usage(fmt.Errorf(format, args...)) }

// withHint adds what the reader may do about an error.
func withHint(err error, format string, args ...any) error {
	return &hinted{err, fmt.Sprintf(format, args...)}
}

// Main runs a command line, without the name of the program, and returns the
// exit code. SIGINT and SIGTERM end the command in order, a second one at once.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // the second signal finds its default action

	root := newRootCommand()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	started := false
	root.PersistentPreRun = func(*cobra.Command, []string) { started = true }

	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	if !started { // flags or arguments were wrong: nothing has run
		var h *hinted
		if !errors.As(err, &h) {
			err = withHint(err, `"%s --help" shows how it is used`, cmd.CommandPath())
		}
		printError(stderr, err)
		return exitUsage
	}
	printError(stderr, err)
	return exitCode(err)
}

func printError(w io.Writer, err error) {
	var ce *connect.Error
	text := err.Error()
	if errors.As(err, &ce) {
		text = ce.Message()
		if ce.Code() == connect.CodeUnavailable || ce.Code() == connect.CodeUnimplemented || ce.Code() == connect.CodeUnknown {
			text = fmt.Sprintf("%s: %s", ce.Code(), ce.Message())
		}
	}
	_, _ = fmt.Fprintf(w, "dxpu: error: %s\n", text)
	if hint := hintFor(err, ce); hint != "" {
		_, _ = fmt.Fprintf(w, "dxpu: hint: %s\n", hint)
	}
}

func hintFor(err error, ce *connect.Error) string {
	var h *hinted
	if errors.As(err, &h) {
		return h.hint
	}
	switch {
	case ce == nil:
		return ""
	case ce.Code() == connect.CodeUnavailable:
		return `is a manager running there? "dxpu manager" starts one; --manager or DXPU_MANAGER says where it is`
	case ce.Code() == connect.CodeNotFound:
		return `"dxpu get" lists what there is`
	case ce.Code() == connect.CodeResourceExhausted && strings.Contains(ce.Message(), "spec.wait"):
		return `"dxpu get gpus" shows what is free; --queue waits for capacity`
	}
	return ""
}

// exitCode tells an answer of the manager from everything else that failed.
func exitCode(err error) int {
	var usage *usageError
	if errors.As(err, &usage) {
		return exitUsage
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
