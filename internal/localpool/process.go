// Package localpool runs the daemons of a pool on this machine, each as a child
// process: for the demonstration, and for a pool to try.
package localpool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Daemons are the child processes of a pool.
type Daemons struct {
	// Program is the dxpu binary.
	Program string
	// Dir has the log of each daemon.
	Dir string
	// JoinToken enrols the nodes.
	JoinToken string
	// Ended receives the name of each daemon that ends before Stop, which then is no
	// error of Stop. It has room for all daemons. nil: such an end is an error of Stop.
	Ended chan<- End

	list []*daemon
	pids []int // of all processes since the start, including those of Watch
}

// End is the end of a daemon before Stop.
type End struct {
	Name string
	Err  error // nil: exit code 0
}

type daemon struct {
	name     string
	cmd      *exec.Cmd
	stopping chan struct{}
	exited   chan struct{}
	err      error // read after exited
	told     bool  // read after exited: Ended has the end
}

// stopTimeout bounds the orderly end of a daemon.
const stopTimeout = 5 * time.Second

// Path returns the path of a file in the directory of the daemons.
func (d *Daemons) Path(name string) string { return filepath.Join(d.Dir, name) }

// Log returns the path of a daemon's log.
func (d *Daemons) Log(name string) string { return d.Path(name + ".log") }

// Start starts the dxpu binary as a daemon. The kernel kills the daemon when this
// process ends.
func (d *Daemons) Start(name string, args ...string) error {
	log, err := os.OpenFile(d.Log(name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	p := &daemon{name: name, cmd: exec.Command(d.Program, args...), stopping: make(chan struct{}), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "DXPU_JOIN_TOKEN="+d.JoinToken)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error, 1)
	go func() { // Stop waits for exited
		// The kernel sends the signal when the thread that forked ends (prctl(2)). The
		// thread stays locked to this goroutine, which waits for the process.
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err != nil {
			return
		}
		defer close(p.exited)
		p.err = p.cmd.Wait()
		select {
		case <-p.stopping:
			return
		default:
		}
		select {
		case d.Ended <- End{name, p.err}: // never, if it is nil
			p.told = true
		default:
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	d.list = append(d.list, p)
	d.Watch(p.cmd.Process.Pid)
	return nil
}

// Watch adds a process of another owner to those whose end Stop checks.
func (d *Daemons) Watch(pid int) { d.pids = append(d.pids, pid) }

// Count returns the number of processes so far.
func (d *Daemons) Count() int { return len(d.pids) }

// Stop ends the daemons, the last one first, and checks that no process is left.
func (d *Daemons) Stop() error {
	var errs []error
	for _, p := range slices.Backward(d.list) {
		errs = append(errs, p.stop())
	}
	for _, pid := range d.pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("process %d is still running", pid))
		}
	}
	return errors.Join(errs...)
}

// stop ends a process with SIGTERM, and with SIGKILL after stopTimeout.
func (p *daemon) stop() error {
	close(p.stopping)
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-p.exited:
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-p.exited
		return fmt.Errorf("%s did not end within %v", p.name, stopTimeout)
	}
	if p.err != nil && !p.told {
		return fmt.Errorf("%s: %w", p.name, p.err)
	}
	return nil
}

// AwaitFile returns the contents of a file that a daemon writes when it is ready.
func AwaitFile(ctx context.Context, path string) (string, error) {
	var text string
	err := Poll(ctx, func() (bool, error) {
		raw, err := os.ReadFile(path)
		text = strings.TrimSpace(string(raw))
		return err == nil && bytes.HasSuffix(raw, []byte("\n")), nil
	})
	return text, err
}

// Poll calls ask until it returns true or an error. The daemons are other processes, so
// their state can only be polled.
func Poll(ctx context.Context, ask func() (bool, error)) error {
	for {
		if ok, err := ask(); ok || err != nil {
			return err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}
