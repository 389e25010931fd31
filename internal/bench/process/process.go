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
	"runtime"
	"sync"
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

// childMark is the environment variable of a process that Start has started. Such a
// process starts no others: a program that ignores argv, such as a test binary, would
// start itself without end.
const childMark = "DXPU_BENCH_STARTED"

// Start runs this program as a child with the arguments argv; argv[0] is its name. The
// kernel kills the child when this process ends.
func Start(ctx context.Context, argv []string) (*Process, error) {
	if os.Getenv(childMark) != "" {
		return nil, errors.New("bench: this process was started by a benchmark, and may start no other one")
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Args = argv
	cmd.Env = append(os.Environ(), childMark+"=1")
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	started, end, ended := make(chan error, 1), make(chan struct{}), make(chan error, 1)
	go func() { // stop waits for ended
		// The kernel sends the signal when the thread that forked ends (prctl(2)). The
		// thread stays locked to this goroutine, which waits for the process.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err != nil {
			return
		}
		<-end // Wait closes the pipe of the replies, so it comes last
		ended <- cmd.Wait()
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return &Process{
		Requests: json.NewEncoder(in), Replies: json.NewDecoder(bufio.NewReader(out)),
		stop: sync.OnceValue(func() error {
			err := in.Close()
			close(end)
			return errors.Join(err, <-ended)
		}),
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
