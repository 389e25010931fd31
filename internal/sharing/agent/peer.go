//go:build linux

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// pidfd is a process that the agent watches. It names the process also when its process
// ID is used again.
type pidfd struct{ file *os.File }

func newPidfd(fd int) (*pidfd, error) {
	if err := unix.SetNonblock(fd, true); err != nil { // for the runtime's poller
		return nil, errors.Join(os.NewSyscallError("fcntl", err), unix.Close(fd))
	}
	return &pidfd{os.NewFile(uintptr(fd), "pidfd")}, nil
}

// openPidfd watches a process by its ID.
func openPidfd(pid int) (*pidfd, error) {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, os.NewSyscallError("pidfd_open", err)
	}
	return newPidfd(fd)
}

// ended reports whether the process has ended.
func (p *pidfd) ended() bool {
	var done bool
	raw, err := p.file.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { done = readable(int(fd)) })
	}
	return err != nil || done
}

func readable(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	return err == nil && n > 0
}

// wait waits until the process has ended. It returns false if close came first.
func (p *pidfd) wait() bool {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return false
	}
	return raw.Read(func(fd uintptr) bool { return readable(int(fd)) }) == nil
}

// close ends the watch, if there is one.
func (p *pidfd) close() {
	if p != nil {
		_ = p.file.Close()
	}
}

// kill ends the process.
func (p *pidfd) kill() error { return p.signal(unix.SIGKILL) }

func (p *pidfd) signal(sig unix.Signal) error {
	raw, err := p.file.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	return errors.Join(err, os.NewSyscallError("pidfd_send_signal", failed))
}

// peer is the process at the other end of a socket.
type peer struct {
	unix.Ucred
	process *pidfd        // nil: it is in another PID namespace, or has ended
	socket  *net.UnixConn // its connection
}

// errUnseen reports a process that has no ID here, so that the agent cannot watch or end it: its memory
// would count as free when it closes its socket.
var errUnseen = errors.New("the process is not in the agent's PID namespace, or has ended: run the agent in the PID namespace of the machine (podman run --pid=host, or hostPID: true of a pod)")

// stamp names the process as the owner of a share. Since it connected it may have ended, and another
// process may have its ID: Linux 6.16 and later know a peer that has ended, too.
func (p *peer) stamp() (*OwnerStamp, error) {
	if p.Pid <= 0 {
		return nil, errUnseen
	}
	stamp, err := stampOf(int(p.Pid))
	if err != nil {
		return nil, err
	}
	now, err := peerOf(p.socket)
	defer now.process.close()
	if err != nil || now.process == nil || now.process.ended() {
		return nil, errors.New("the process that asks has ended")
	}
	return stamp, nil
}

// seesMachine reports whether the agent is in the PID namespace of the machine.
func seesMachine() bool {
	const first = "pid:[4026531836]" // PROC_PID_INIT_INO of include/linux/proc_ns.h
	name, err := os.Readlink("/proc/self/ns/pid")
	return err != nil || name == first
}

// peerOf returns the process that connected a socket. The caller closes its pidfd.
func peerOf(c *net.UnixConn) (peer, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return peer{}, err
	}
	p := peer{socket: c}
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil {
			failed = os.NewSyscallError("getsockopt(SO_PEERCRED)", err)
			return
		}
		p.Ucred = *cred
		if p.Pid <= 0 {
			return
		}
		n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		switch {
		case err == nil:
			p.process, failed = newPidfd(n)
			return
		case !errors.Is(err, unix.ENOPROTOOPT):
			// It has ended, and another process may have its ID by now.
			failed = os.NewSyscallError("getsockopt(SO_PEERPIDFD)", err)
			return
		}
		// Before Linux 6.5. The peer waits for its answer, so its ID is its own.
		p.process, failed = openPidfd(int(p.Pid))
		if errors.Is(failed, unix.ESRCH) {
			failed = nil
		}
	})
	return p, errors.Join(err, failed)
}

// statOf returns the fields of /proc/PID/stat (proc_pid_stat(5)) from the third one on, which is
// the state.
func statOf(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // the name may have any bytes
	if len(fields) <= statStart {
		return nil, fmt.Errorf("/proc/%d/stat: has %d fields", pid, len(fields))
	}
	return fields, nil
}

// statStart is the place of the start time in the result of statOf.
const statStart = 22 - 3

// startOf returns the start time of a process in clock ticks since the boot of the machine.
func startOf(pid int) (uint64, error) {
	fields, err := statOf(pid)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(fields[statStart], 10, 64)
}

// isStopped reports whether a process is stopped by a signal, a debugger or a freezer.
func isStopped(pid int) bool {
	fields, err := statOf(pid)
	return err == nil && (fields[0] == "T" || fields[0] == "t" || isFrozen("/", pid))
}
