// Package cli is the command line of dxpu: one file for each command, text by
// default and JSON on request, errors with a hint.
package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"regexp"
	"slices"
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

// refusedError is a refusal that the manager did not put into words itself: the pool is not
// in the state that a command needs. The exit code is 3.
type refusedError struct{ error }

func (e *refusedError) Unwrap() error { return e.error }

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
		if err := checkFlags(cmd); err != nil {
			return err
		}
		started = true
		return nil
	}

	helped := helpErrors(root)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil && *helped != nil {
		err, started = *helped, true
	}
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

// helpErrors makes the help of all commands an error where it cannot be printed, which cobra
// ignores. The result points to the error.
func helpErrors(root *cobra.Command) *error {
	var failed error
	show := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) {
		var page bytes.Buffer
		out := cmd.OutOrStdout()
		cmd.SetOut(&page)
		show(cmd, args)
		cmd.SetOut(out)
		_, failed = out.Write(page.Bytes())
	})
	return &failed
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
	errors.As(err, &ce)
	fmt.Fprintf(w, "dxpu: %s %s\n", w.mark(red, "error:"), errorText(err, ce))
	if hint := hintFor(err, ce); hint != "" {
		fmt.Fprintf(w, "dxpu: %s %s\n", w.mark(bold, "hint:"), shortWords(hint))
	}
}

// maxWord bounds a word of an error, in bytes: no name that a pool has is as long, and a
// command line may have a word of 128 KiB.
const maxWord = 400

// shortWords leaves out the middle of words that are too long to read.
func shortWords(text string) string {
	if len(text) < maxWord {
		return text
	}
	longWord := regexp.MustCompile(fmt.Sprintf(`\S{%d,}`, maxWord)) // few errors need it
	return longWord.ReplaceAllStringFunc(text, func(w string) string {
		const part = maxWord / 4
		return fmt.Sprintf("%s...(%d bytes)...%s", strings.ToValidUTF8(w[:part], ""), len(w), strings.ToValidUTF8(w[len(w)-part:], ""))
	})
}

// errorText describes an error, with words of a bounded length. ce is the error of the manager
// in it, nil for none.
func errorText(err error, ce *connect.Error) string { return shortWords(wholeText(err, ce)) }

func wholeText(err error, ce *connect.Error) string {
	text := plainText(err, err.Error())
	if ce != nil {
		text = plainText(err, inFlags(ce.Message()))
		var about *aboutError
		if errors.As(err, &about) {
			text = about.what + ": " + text
		}
		switch code := ce.Code(); {
		case code == connect.CodeUnavailable, isNetwork(err):
			text = "the manager is unavailable: " + closedText(text)
		case code == connect.CodeUnauthenticated:
			text = strings.TrimSuffix(text, ": ask an admin for a new one") // the hint says it
			text = strings.Replace(text, "unknown node or wrong credential: enrol again with a join token", "the manager does not know this token", 1)
			if strings.HasPrefix(text, "no credential: ") {
				text = "the manager wants a token, and the command has none"
			}
		case code == connect.CodeUnimplemented, code == connect.CodeUnknown:
			text = "unexpected answer: " + text
		}
	}
	return text
}

// closedText says of a connection that ended early that the other end closed it.
func closedText(text string) string {
	return strings.Replace(text, "it ended early", "it closed the connection", 1)
}

// plainAttr writes the errors in a daemon's log as commands do, with the advice about the
// connection, and leaves out what has no value.
func plainAttr(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindString && a.Value.String() == "" {
		return slog.Attr{}
	}
	if a.Value.Kind() != slog.KindAny {
		return a
	}
	err, ok := a.Value.Any().(error)
	if a.Value.Any() == nil {
		return slog.Attr{}
	}
	if !ok {
		return a
	}
	var ce *connect.Error
	errors.As(err, &ce)
	text := errorText(err, ce)
	if hint := connectionHint(err); hint != "" {
		text += ". " + hint
	}
	return slog.String(a.Key, text)
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
	case ce.Code() == connect.CodeUnauthenticated && strings.HasPrefix(ce.Message(), "the token is not valid"):
		return `"dxpu login" signs you in again, where you got the token by it; an admin makes another with "dxpu token create"`
	case ce.Code() == connect.CodeUnauthenticated:
		return `--token-file or DXPU_TOKEN names your token; "dxpu token create" makes one`
	case ce.Code() == connect.CodePermissionDenied && deniedCall.MatchString(ce.Message()):
		return `"dxpu whoami" shows your role; "dxpu token --help" explains the roles`
	case ce.Code() == connect.CodeUnavailable && connect.IsWireError(ce):
		return "" // the manager runs, and has said what it lacks
	case ce.Code() == connect.CodeUnavailable && webPort.MatchString(ce.Message()):
		return `a URL without a port has that of a web server; the port of a manager is 7470, unless its --listen names another`
	case ce.Code() == connect.CodeUnavailable, isNetwork(err):
		return `is a manager running at this address? "dxpu manager" starts one; --manager or DXPU_MANAGER names another`
	case ce.Code() == connect.CodeNotFound && strings.HasPrefix(ce.Message(), "maintenance \""):
		return `"dxpu get maintenance" lists all`
	case ce.Code() == connect.CodeNotFound && strings.HasPrefix(ce.Message(), "maintenance.target: rack "):
		return `"dxpu get boxes" shows the racks`
	case ce.Code() == connect.CodeNotFound && strings.Contains(ce.Message(), "there is no taint "):
		return `"dxpu describe" shows the taints of a gpu, box or host`
	case ce.Code() == connect.CodeResourceExhausted && strings.HasPrefix(ce.Message(), noCapacity) && absentLabel.MatchString(ce.Message()):
		return `"dxpu describe host" and "dxpu describe box" show the labels of a node; --queue waits until one with these labels joins the pool`
	case ce.Code() == connect.CodeResourceExhausted && strings.HasPrefix(ce.Message(), noCapacity) && absentGPU.MatchString(ce.Message()):
		return `"dxpu get gpus" lists the GPUs of the pool; --queue waits until this one joins it`
	case ce.Code() == connect.CodeResourceExhausted && strings.HasPrefix(ce.Message(), noCapacity) && otherModel.MatchString(ce.Message()):
		return `"dxpu get gpus" shows the model of each GPU; leave --model out, or name other GPUs with --gpu`
	case ce.Code() == connect.CodeNotFound:
		return `"dxpu get" lists what the pool has`
	case ce.Code() == connect.CodeResourceExhausted && strings.HasPrefix(ce.Message(), noCapacity) && strings.Contains(ce.Message(), noSuchGPU):
		return `"dxpu get gpus" shows the models, and their memory; --queue waits until such a GPU joins the pool`
	case ce.Code() == connect.CodeResourceExhausted && strings.HasPrefix(ce.Message(), noCapacity) && closedHost.MatchString(ce.Message()):
		return `"dxpu get hosts" shows the state of the hosts; --queue waits until one can serve`
	case ce.Code() == connect.CodeResourceExhausted && strings.HasPrefix(ce.Message(), noCapacity):
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
	var refused *refusedError
	switch {
	case errors.As(err, &refused):
		return exitRefused
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
	"spec.host_labels": "--host-label", "spec.labels": "--label", "spec.tolerations": "--toleration", "spec.box_labels": "--box-label", "spec.gpu_ids": "--gpu", "spec.tenant": "--tenant", "spec.priority": "--priority",
	"spec.part": "--gpu-memory", "spec.part.memory_bytes": "--gpu-memory", "spec.part.compute": "--compute", "spec.part.class": "--class", "spec.part.share": "--share",
	"spec.part_rules": "--affinity", "spec.part_rules.affinity": "--affinity", "spec.part_rules.anti_affinity": "--anti-affinity",
	"spec.part_rules.exclusion": "--exclusion", "spec.part_rules.workload": "--workload", "part": "", "part.share": "--share",
	"spec.expires_after": "--expires", "spec.ttl": "--ttl", "spec.wait": "--queue", "spec.gang": "--gang", "spec.gang.name": "--gang", "spec.gang.size": "--gang-size", "spec.preemptible": "--preemptible", "spec.wait_timeout": "--queue-timeout",
	"spec.start_time": "--start", "spec.start_after": "--start", "maintenance.target": "", "maintenance.start_time": "--start", "maintenance.end_time": "--for", "maintenance.drain_before": "--drain-before",
	"request_id": "--request-id", "max_gpus": "--max-gpus", "count": "--count", "reason": "--reason", "deadline": "--deadline",
	"role": "--role", "tenant": "--tenant", "description": "--description", "expires_after": "--expires",
	"tenant.id": "", "tenant.description": "--description", "tenant.quota.max_gpus": "--max-gpus",
	"tenant.quota.max_gpus_by_model": "--max-gpus-of", "tenant.quota.max_leases": "--max-leases",
	"tenant.quota.guaranteed_gpus": "--guaranteed-gpus", "tenant.quota.max_priority": "--max-priority", "tenant.quota.weight": "--weight",
	"join_token": "join token", "name": "--name",
	"to_gpu_id": "--to", "after_revision": "--after", "resource_version": "",
	"live": "--live", "set": "", "remove": "", "step": "",
	"gpu_id": "", "lease_id": "", "token_id": "", "tenant_id": "", "node_id": "", "host_id": "", "box_id": "", "target": "",
}

var (
	leadingField = regexp.MustCompile(`^([a-z_]+(?:\.[a-z_]+)*): `)
	previewField = regexp.MustCompile(`^changes\.[a-z_]+\.`) // of a dry run
	innerField   = regexp.MustCompile(`\b(?:spec\.[a-z_]+|request_id|max_gpus)\b`)
	setForce     = regexp.MustCompile(`\bset force\b`)
	waitSentence = regexp.MustCompile(`\s+[A-Z][^.]*\bspec\.wait\b.*$`) // of earlier managers; our hint says it
	deniedCall   = regexp.MustCompile(`may not call /dxpu\.v1\.\w+/(\w+)`)
	callWord     = regexp.MustCompile(`[A-Z]+[a-z]*`)
	roleName     = regexp.MustCompile(`\bROLE_[A-Z]+\b`)
)

var (
	// webPort is in the error of a connection to a URL without a port.
	webPort = regexp.MustCompile(`:(?:80|443): connect: connection refused`)
	// absentLabel and absentGPU are in the refusal of a lease for which there is no node, or
	// no GPU, whatever is free.
	absentLabel = regexp.MustCompile(`\bNo host that has the labels?\b|\bGPU with the box's labels?\b`)
	absentGPU   = regexp.MustCompile(`\bGPU \S+ is not in the pool\b`)
	// otherModel and closedHost are in the refusal of a lease for GPUs that it excludes itself,
	// and of one that no host can serve, however many GPUs are free.
	otherModel = regexp.MustCompile(`\bGPU \S+ is of model\b`)
	closedHost = regexp.MustCompile(`\bNo host is reachable and not cordoned\b|\bHost \S+ is unreachable, cordoned\b`)
)

// noCapacity begins the manager's refusal of a lease that could wait in the queue.
const noCapacity = "no capacity for this lease now:"

// noSuchGPU is in the refusal of a lease that would not fit into the empty pool either.
const noSuchGPU = "The pool has no usable GPU with "

// inFlags replaces the names of API fields in an error of the manager by those of
// the flags.
func inFlags(message string) string {
	message = previewField.ReplaceAllString(message, "")
	message = waitSentence.ReplaceAllString(message, "")
	if m := leadingField.FindStringSubmatch(message); m != nil {
		if flag, ok := fieldFlags[m[1]]; ok {
			message = message[len(m[0]):]
			if flag != "" {
				message = flag + ": " + message
			}
		}
	}
	message = setForce.ReplaceAllString(message, "use --force")
	message = innerField.ReplaceAllStringFunc(message, func(f string) string {
		if flag := fieldFlags[f]; flag != "" {
			return flag
		}
		return f
	})
	if m := deniedCall.FindStringSubmatch(message); m != nil {
		message = strings.Replace(message, m[0], "may not "+callWords(m[1]), 1)
	}
	return roleName.ReplaceAllStringFunc(message, func(r string) string { return strings.ToLower(r[len("ROLE_"):]) })
}

// oddCalls are the words for methods whose names make none.
var oddCalls = map[string]string{
	"Backup": "back up the pool", "ListAudit": "read the audit log", "GetAuthority": "see the pool's authority", "RotateAuthority": "rotate the pool's authority",
	"GetPoolHistory": "see the history of the pool", "ReplaceMember": "replace a manager",
}

// callWords returns a method of the API in words: "list tokens", "create a token".
func callWords(method string) string {
	if words, ok := oddCalls[method]; ok {
		return words
	}
	words := callWord.FindAllString(method, -1)
	if len(words) == 0 {
		return method
	}
	words[0] = strings.ToLower(words[0])
	if words[0] == "put" {
		words[0] = "set"
	}
	if len(words) == 1 {
		return words[0]
	}
	noun := words[len(words)-1]
	if !strings.HasSuffix(noun, "s") && noun != "Maintenance" {
		words[0] += " a"
	}
	for i := range words[1:] {
		if w := words[i+1]; w != strings.ToUpper(w) {
			words[i+1] = strings.ToLower(w)
		}
	}
	return strings.Join(words, " ")
}

// isNetwork reports whether an error is one of the network.
func isNetwork(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}
