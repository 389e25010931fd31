package demo

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
	"sync"
	"syscall"
	"time"
)

// processes are the daemons of a demonstration.
type processes struct {
	list []*process
	pids []int // of all processes since the start, including the VM
}

type process struct {
	name   string
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // read after exited
}

// stopTimeout bounds the orderly end of a daemon.
const stopTimeout = 5 * time.Second

// start starts the dxpu binary as a daemon. The kernel kills the daemon when this
// process ends.
func (d *demo) start(name string, args ...string) error {
	log, err := os.Create(d.path(name + ".log"))
	if err != nil {
		return err
	}
	defer log.Close()
	p := &process{name: name, cmd: exec.Command(d.cfg.Program, args...), exited: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "DXPU_JOIN_TOKEN="+d.token)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error, 1)
	go func() {
		// The kernel sends the signal when the thread that forked ends (prctl(2)). The
		// thread stays locked to this goroutine, which waits for the process.
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	d.procs.list = append(d.procs.list, p)
	d.procs.pids = append(d.procs.pids, p.cmd.Process.Pid)
	return nil
}

// stop ends a process with SIGTERM, and with SIGKILL after stopTimeout.
func (p *process) stop() error {
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
	if p.err != nil {
		return fmt.Errorf("%s: %w", p.name, p.err)
	}
	return nil
}

// tearDown ends everything and checks that no process is left.
func (d *demo) tearDown() error {
	at := time.Now()
	var errs []error
	if d.pc != nil {
		errs = append(errs, d.pc.close())
	}
	for _, p := range slices.Backward(d.procs.list) {
		errs = append(errs, p.stop())
	}
	for _, pid := range d.procs.pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			errs = append(errs, fmt.Errorf("process %d is still running", pid))
		}
	}
	err := errors.Join(errs...)
	if err == nil {
		d.say("%7.2f s  %7.2f s  all %d processes have ended",
			time.Since(d.began).Seconds(), time.Since(at).Seconds(), len(d.procs.pids))
	}
	return err
}

func (d *demo) path(name string) string { return filepath.Join(d.cfg.Dir, name) }

// awaitFile returns the contents of a file that a daemon writes when it is ready.
func awaitFile(ctx context.Context, path string) (string, error) {
	var text string
	err := poll(ctx, func() (bool, error) {
		raw, err := os.ReadFile(path)
		text = strings.TrimSpace(string(raw))
		return err == nil && bytes.HasSuffix(raw, []byte("\n")), nil
	})
	return text, err
}

// poll calls ask until it returns true or an error. The daemons are other processes, so
// their state can only be polled.
func poll(ctx context.Context, ask func() (bool, error)) error {
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

// progress collects the output of a program and reports when it contains a text.
type progress struct {
	until string        // the text
	seen  chan struct{} // closed when the output contains the text

	mu   sync.Mutex // guards the fields below
	text bytes.Buffer
	done bool
}

func (f *progress) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.text.Write(p)
	if !f.done && bytes.Contains(f.text.Bytes(), []byte(f.until)) {
		f.done = true
		close(f.seen)
	}
	return len(p), nil
}

func (f *progress) String() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.text.String()
}

// lastLine returns the last line of a program's output.
func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return s[strings.LastIndexByte(s, '\n')+1:]
}
