// Package nvidia runs the programs that manage NVIDIA GPUs, nvidia-smi and
// nvidia-cuda-mps-control, and drives the Multi-Process Service of a GPU with them.
package nvidia

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

const (
	maxOutput = 4 << 20          // bytes; nvidia-smi -q -x writes some 100 KiB for each GPU
	pipeDelay = time.Second      // for the output of a program that was killed
	runLimit  = 10 * time.Second // for a command of the control program
	smiLimit  = time.Minute      // for nvidia-smi: without the persistence daemon it initializes the GPUs first
)

// Programs names the programs. An empty name stands for the usual one, in $PATH.
type Programs struct {
	SMI     string // nvidia-smi
	Control string // nvidia-cuda-mps-control

	runs func(context.Context, command) (string, error) // in tests, in place of a process
}

func (p Programs) smi() string     { return cmp.Or(p.SMI, "nvidia-smi") }
func (p Programs) control() string { return cmp.Or(p.Control, "nvidia-cuda-mps-control") }

// ExitError is the failure of a program.
type ExitError struct {
	Command string
	Code    int    // status; -1: ended by a signal
	Output  string // standard output and error, the first part
}

func (e *ExitError) Error() string {
	text := strings.TrimSpace(e.Output)
	if text == "" {
		text = "no output"
	}
	return fmt.Sprintf("%s: exit status %d: %s", e.Command, e.Code, clip(text))
}

// ErrTimeout: a program did not end in time, and was killed.
var ErrTimeout = errors.New("did not end in time")

// command is one run of a program.
type command struct {
	name  string
	args  []string
	env   []string // beside the environment of this process
	stdin string
	limit time.Duration
}

func (c command) String() string { return strings.Join(append([]string{c.name}, c.args...), " ") }

// run returns the output, standard error included. It bounds the output and the time,
// and ends the program's process group.
func (c command) run(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.limit, ErrTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, c.name, c.args...)
	cmd.Env = append(os.Environ(), c.env...)
	cmd.Env = append(cmd.Env, "LC_ALL=C")
	cmd.Stdin = strings.NewReader(c.stdin)
	var out bounded
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = pipeDelay
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return "", fmt.Errorf("%s: %w", c, context.Cause(ctx))
	case errors.Is(err, exec.ErrWaitDelay): // a daemon that it started keeps the pipe
		err = nil
	default:
	}
	if out.over {
		return "", fmt.Errorf("%s: more than %d bytes of output", c, maxOutput)
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return out.b.String(), &ExitError{c.String(), exit.ExitCode(), out.b.String()}
	}
	if err != nil {
		// The error names the program. Its arguments explain nothing where it did not start.
		return "", fmt.Errorf("%w; install NVIDIA's driver, or name the program", err)
	}
	return out.b.String(), nil
}

// bounded keeps the first maxOutput bytes.
type bounded struct {
	b    bytes.Buffer
	over bool
}

// Write implements io.Writer.
func (w *bounded) Write(p []byte) (int, error) {
	if w.b.Len()+len(p) > maxOutput {
		w.over = true
		return 0, io.ErrShortWrite
	}
	return w.b.Write(p)
}

// clip bounds what an error repeats of a program's output.
func clip(text string) string {
	const most = 400
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "?")
}
