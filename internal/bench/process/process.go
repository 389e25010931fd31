// Package process starts the processes and background functions of benchmarks, and
// measures the use of resources of the current process.
package process

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// Process is a child that answers requests: it reads a JSON value each from its
// standard input and writes the replies to its standard output, until the input ends.
type Process struct {
	Requests *json.Encoder
	Replies  *json.Decoder
	stop     func() error
}

// Start runs this program as a child with the arguments argv; argv[0] is its name.
func Start(ctx context.Context, argv []string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Args = argv
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return &Process{
		Requests: json.NewEncoder(in), Replies: json.NewDecoder(bufio.NewReader(out)),
		stop: func() error { return errors.Join(in.Close(), cmd.Wait()) },
	}, nil
}

// Stop closes the input of the process and waits for its end.
func (p *Process) Stop() error { return p.stop() }

// Resident returns the resident memory of the current process in bytes.
func Resident() (uint64, error) {
	raw, err := os.ReadFile("/proc/self/statm") // proc(5): size, resident, ... in pages
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	var size, resident uint64
	if _, err := fmt.Sscan(string(raw), &size, &resident); err != nil {
		return 0, fmt.Errorf("bench: /proc/self/statm: %w", err)
	}
	return resident * uint64(os.Getpagesize()), nil
}

// Time returns the processor time of all threads of the current process.
func Time() (time.Duration, error) {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0, fmt.Errorf("bench: getrusage: %w", err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano()), nil
}
