package hostproxy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/hostproxy/controller"
	"github.com/dxpu-project/dxpu/internal/vm/qmp"
)

// faultError is an error of an action with the side that it belongs to.
type faultError struct {
	fault controller.Fault
	err   error
}

func (e *faultError) Error() string { return e.err.Error() }
func (e *faultError) Unwrap() error { return e.err }

// hostFault marks an error as the host's: another device would not help.
func hostFault(err error) error { return &faultError{controller.HostFault, err} }

// faultOf returns the side that an error belongs to: that of the device, unless the
// error says otherwise.
func faultOf(err error) controller.Fault {
	var f *faultError
	if errors.As(err, &f) {
		return f.fault
	}
	return controller.DeviceFault
}

// greetingTimeout bounds the wait for QEMU's greeting. A QEMU that runs sends it at
// once; one that serves another client sends it when that client has gone.
const greetingTimeout = 2 * time.Second

// reach returns the connection to QEMU and a function that returns it. A VM that does
// not run, or that talks to another client, is absent.
func (f *VM) reach(ctx context.Context) (*qmp.Client, func(), error) {
	ctx, cancel := context.WithTimeout(ctx, greetingTimeout)
	defer cancel()
	client, done, err := f.control.use(ctx, f.QMP)
	switch {
	case err == nil:
		return client, done, nil
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ECONNREFUSED):
		err = fmt.Errorf("no VM runs: no QEMU listens at %s", f.QMP)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, unix.EAGAIN): // EAGAIN: more clients wait than may
		err = fmt.Errorf("QEMU does not answer at %s: it serves one client at a time, and another program may be connected, or QEMU is stopped", f.QMP)
	case errors.Is(err, qmp.ErrNotQMP), errors.Is(err, fs.ErrPermission):
		return nil, nil, hostFault(err)
	}
	return nil, nil, &faultError{controller.VMAbsent, err}
}

// check reports what is wrong with the configured QMP socket when the proxy starts. A
// socket that does not exist yet is not wrong.
func (f *VM) check() error {
	if f.QMP == "" {
		return nil
	}
	if n := len(f.QMP); n > maxSocketPath {
		return fmt.Errorf("hostproxy: the path of the QMP socket has %d bytes; a socket's path has at most %d", n, maxSocketPath)
	}
	fi, err := os.Stat(f.QMP)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.Logger.Warn("no VM runs yet: GPUs are attached when its QEMU listens", "qmp", f.QMP)
	case err != nil:
		return fmt.Errorf("hostproxy: QMP socket: %w", err)
	case fi.Mode()&fs.ModeSocket == 0:
		return fmt.Errorf("hostproxy: %s is not a socket; QEMU makes one with -qmp unix:%s,server=on,wait=off", f.QMP, f.QMP)
	}
	return nil
}

// maxSocketPath is the longest path of a UNIX socket, in bytes (sun_path without its
// final zero).
const maxSocketPath = 107
