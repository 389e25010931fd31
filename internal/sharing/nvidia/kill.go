package nvidia

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// mpsName is the beginning of the names of the control daemon and the servers, as
// long as the kernel keeps it in /proc/PID/comm.
const mpsName = "nvidia-cuda-mps"

// killByPipes kills the control daemon and the servers that work with a folder of
// pipes. It finds them by their names and their environment, because a daemon that
// does not answer cannot say its process ID.
func killByPipes(pipes string) error {
	err := eachByPipes(pipes, func(p *os.Process) error {
		if err := p.Kill(); !errors.Is(err, os.ErrProcessDone) {
			return err
		}
		return nil
	})
	for _, name := range []string{"control", "control_privileged", "control_lock"} {
		if e := os.Remove(filepath.Join(pipes, name)); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// eachByPipes calls a function with the control daemon and the servers of a folder of pipes.
func eachByPipes(pipes string, f func(*os.Process) error) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// The handle is taken before the check, so that a new process with the same
		// ID is not meant.
		p, err := os.FindProcess(pid)
		if err != nil {
			continue
		}
		serves, err := servesPipes(filepath.Join("/proc", e.Name()), pipes)
		if serves {
			err = f(p)
		}
		errs = append(errs, err)
		_ = p.Release()
	}
	return errors.Join(errs...)
}

// servesPipes reports whether a process is a daemon or server of MPS for these pipes.
func servesPipes(proc, pipes string) (bool, error) {
	comm, err := os.ReadFile(filepath.Join(proc, "comm"))
	if err != nil || !strings.HasPrefix(string(comm), mpsName) {
		return false, unreadable(err)
	}
	environ, err := os.ReadFile(filepath.Join(proc, "environ"))
	if err != nil {
		return false, unreadable(err)
	}
	for e := range bytes.SplitSeq(environ, []byte{0}) {
		if string(e) == "CUDA_MPS_PIPE_DIRECTORY="+pipes {
			return true, nil
		}
	}
	return false, nil
}

// unreadable returns the error of a process that was not read, unless it has ended or is another
// user's: the daemon of the pipes runs as the user who started it.
func unreadable(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	return err
}
