package qemu

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/vm/qmp"
)

// A VM is a running QEMU with a guest that is ready.
type VM struct {
	*Control // commands in the guest

	cmd    *exec.Cmd
	qmp    *qmp.Client
	dir    string
	boot   time.Duration
	exited chan struct{} // closed when the process has been waited for
	err    error         // of the process; read after exited
}

// Start boots the machine and returns when its guest takes commands. When ctx ends before
// that, Start undoes its work. QEMU dies with this process in any case.
func Start(ctx context.Context, spec Spec) (*VM, error) {
	spec, err := spec.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("qemu: %w", err)
	}
	began := time.Now()
	vm := &VM{dir: spec.Dir, exited: make(chan struct{})}
	initrd := filepath.Join(spec.Dir, "initramfs.cpio")
	if err := createInitramfs(initrd, spec); err != nil {
		return nil, fmt.Errorf("qemu: initramfs: %w", err)
	}
	defer func() { _ = os.Remove(initrd) }() // QEMU has read it by the time the guest is up

	control, qmpConn, err := vm.launch(spec, initrd)
	if err != nil {
		return nil, fmt.Errorf("qemu: %w", err)
	}
	if vm.qmp, err = qmp.New(ctx, qmpConn); err == nil {
		vm.Control, err = NewControl(ctx, control)
	} else {
		_ = control.Close()
	}
	if err != nil {
		_ = vm.Close()
		return nil, vm.explain(err)
	}
	vm.boot = time.Since(began)
	return vm, nil
}

// QMP is the VM's own QMP connection.
func (vm *VM) QMP() *qmp.Client { return vm.qmp }

// BootTime is the time from Start to a guest that takes commands.
func (vm *VM) BootTime() time.Duration { return vm.boot }

// PID is the process id of QEMU.
func (vm *VM) PID() int { return vm.cmd.Process.Pid }

// ConsoleLog is the path of the output of the guest's serial console.
func (vm *VM) ConsoleLog() string { return filepath.Join(vm.dir, "console.log") }

// Log is the path of QEMU's own output.
func (vm *VM) Log() string { return filepath.Join(vm.dir, "qemu.log") }

// Exited is closed when the QEMU process has ended.
func (vm *VM) Exited() <-chan struct{} { return vm.exited }

// Reset resets the machine as its button does, and returns when the guest takes commands
// again. Commands that still run end with [ErrGuestReset]; wait for their end before, because
// half a line of output would meet the first word of the next boot.
func (vm *VM) Reset(ctx context.Context) error {
	booted := vm.nextBoot()
	// With -no-reboot alone, QEMU would exit on the reset.
	onReboot := func(action string) error {
		return vm.qmp.Execute(ctx, "set-action", map[string]string{"reboot": action}, nil)
	}
	if err := errors.Join(onReboot("reset"), vm.qmp.Execute(ctx, "system_reset", nil, nil)); err != nil {
		return fmt.Errorf("qemu: reset: %w", err)
	}
	select {
	case <-booted:
	case <-vm.done:
		return vm.cause()
	case <-ctx.Done():
		return fmt.Errorf("qemu: reset: %w", context.Cause(ctx))
	}
	return onReboot("shutdown")
}

// Close kills QEMU and waits for it. It may be called more than once.
func (vm *VM) Close() error {
	if err := vm.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("qemu: kill: %w", err)
	}
	<-vm.exited
	if vm.Control != nil {
		_ = vm.Control.Close()
	}
	if vm.qmp != nil {
		_ = vm.qmp.Close()
	}
	return nil
}

// launch starts the process with one end of two socket pairs, and keeps the other ends.
func (vm *VM) launch(spec Spec, initrd string) (control, monitor net.Conn, err error) {
	control, controlEnd, err := socketPair("control")
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = controlEnd.Close() }()
	monitor, monitorEnd, err := socketPair("qmp")
	if err != nil {
		_ = control.Close()
		return nil, nil, err
	}
	defer func() { _ = monitorEnd.Close() }()
	log, err := os.Create(vm.Log())
	if err == nil {
		defer func() { _ = log.Close() }()
		vm.cmd = exec.Command(spec.Install.QEMU, spec.argv(vm.ConsoleLog(), initrd)...)
		vm.cmd.Stdout, vm.cmd.Stderr = log, log
		vm.cmd.ExtraFiles = []*os.File{controlEnd, monitorEnd} // controlFD, qmpFD
		vm.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
		err = vm.spawn()
	}
	if err != nil {
		return nil, nil, errors.Join(err, control.Close(), monitor.Close())
	}
	return control, monitor, nil
}

// spawn starts the process from a thread that lives as long as it: the parent-death signal
// comes when the thread that forked ends (prctl(2), PR_SET_PDEATHSIG).
func (vm *VM) spawn() error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := vm.cmd.Start()
		started <- err
		if err == nil {
			vm.err = vm.cmd.Wait()
			close(vm.exited)
		}
	}()
	return <-started
}

// explain adds the last output of QEMU or the guest to an error of Start. The process has ended.
func (vm *VM) explain(err error) error {
	for _, log := range []string{vm.Log(), vm.ConsoleLog()} {
		if line := reason(log); line != "" {
			err = fmt.Errorf("%w; %s says: %s", err, log, line)
		}
	}
	return fmt.Errorf("qemu: start: %w (process: %v)", err, vm.err)
}

// reason returns the line of a log that says why it ends: that of a kernel's panic,
// which a list of calls follows, or else the last line.
func reason(name string) string {
	text, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	text = bytes.TrimSpace(text)
	at := bytes.Index(text, []byte("Kernel panic"))
	if at < 0 {
		at = len(text)
	}
	line, _, _ := bytes.Cut(text[bytes.LastIndexByte(text[:at], '\n')+1:], []byte("\n"))
	return string(bytes.TrimSpace(line))
}

func createInitramfs(name string, spec Spec) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	err = errors.Join(writeInitramfs(w, spec.Install.Initrd, spec.Files), w.Flush(), f.Close())
	if err != nil {
		return errors.Join(err, os.Remove(name))
	}
	return nil
}

// socketPair makes two connected stream sockets, the second one for the child.
func socketPair(name string) (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name)
	conn, err := net.FileConn(ours) // a duplicate
	if err = errors.Join(err, ours.Close()); err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return conn, theirs, nil
}
