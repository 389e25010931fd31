// Package kubetest runs a Kubernetes cluster on this machine for tests: the real
// programs, with ports, directories and certificates of their own. scripts/build-cluster.sh
// builds the programs.
package kubetest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Process is a child that ends with this process at the latest.
type Process struct {
	name   string
	log    string
	cmd    *exec.Cmd
	exited chan struct{}
	err    error // read after exited
}

// StartProcess starts a program whose output goes to NAME.log in a directory.
func StartProcess(dir, name, program string, args ...string) (*Process, error) {
	return startProcess(dir, name, nil, program, args...)
}

func startProcess(dir, name string, env []string, program string, args ...string) (*Process, error) {
	p := &Process{name: name, log: filepath.Join(dir, name+".log"), cmd: exec.Command(program, args...), exited: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Dir = log, log, dir
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	started := make(chan error, 1)
	go func() { // Stop waits for exited
		// The kernel sends the signal when the thread that forked ends (prctl(2)): the
		// thread stays locked to this goroutine.
		runtime.LockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// Stop ends the process in order, after ten seconds by force.
func (p *Process) Stop() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(10 * time.Second):
		p.Kill()
	}
}

// Kill ends the process at once.
func (p *Process) Kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	<-p.exited
}

// Wait waits for the end of the process by itself.
func (p *Process) Wait() error {
	<-p.exited
	if p.err != nil {
		return fmt.Errorf("%s: %w: %s", p.name, p.err, p.Tail(5))
	}
	return nil
}

// Pause makes the process stand still until Resume.
func (p *Process) Pause() error { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGSTOP) }

// Resume lets a process go on after Pause.
func (p *Process) Resume() error { return syscall.Kill(-p.cmd.Process.Pid, syscall.SIGCONT) }

// ended returns an error with the end of the log if the process has ended.
func (p *Process) ended() error {
	select {
	case <-p.exited:
		return fmt.Errorf("%s ended (%v): %s", p.name, p.err, p.Tail(5))
	default:
		return nil
	}
}

// Tail returns the last lines of the log.
func (p *Process) Tail(lines int) string {
	if p == nil {
		return "" // it has not been started
	}
	raw, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(raw)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// freePort returns a port of the loopback address that no one uses now. It is for a program that
// starts at once: another one may get the port until then.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
