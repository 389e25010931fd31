package main

import (
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// rule refuses a system call, or some of its uses, with an error. Platforms do not need them.
type rule struct {
	call  uintptr
	arg   int // of which refuse decides
	match match
	value uint32
	errno unix.Errno
}

type match uint8

const (
	always match = iota
	equal        // the argument is the value
	other        // it is not
	bits         // it has one of the bits of the value
)

// rules are the system calls by which a tenant's program would reach beyond the life or the
// files of its process, to which Landlock holds it otherwise.
var rules = []rule{
	// The box would wait in its next access to the shared memory until the hole is there: as
	// long as a process likes that gives its thread no processor.
	{unix.SYS_FALLOCATE, 1, bits, unix.FALLOC_FL_PUNCH_HOLE, unix.EOPNOTSUPP},
	{unix.SYS_MADVISE, 2, equal, unix.MADV_REMOVE, unix.EINVAL},
	{unix.SYS_PROCESS_MADVISE, 0, always, 0, unix.ENOSYS},
	{unix.SYS_IO_URING_SETUP, 0, always, 0, unix.ENOSYS}, // has operations for both

	// On the same machine there may be what trusts all its callers, such as a manager that
	// is open to it, and back ends of other tenants. The sockets of the box come with the start.
	{unix.SYS_SOCKET, 0, other, unix.AF_NETLINK, unix.EAFNOSUPPORT},

	// What these make outlives the process, and other tenants' processes of the same user
	// reach it.
	{unix.SYS_SHMGET, 0, always, 0, unix.ENOSYS},
	{unix.SYS_SEMGET, 0, always, 0, unix.ENOSYS},
	{unix.SYS_MSGGET, 0, always, 0, unix.ENOSYS},
	{unix.SYS_MQ_OPEN, 0, always, 0, unix.ENOSYS},
	{unix.SYS_ADD_KEY, 0, always, 0, unix.ENOSYS},
	{unix.SYS_KEYCTL, 0, always, 0, unix.ENOSYS},
	{unix.SYS_REQUEST_KEY, 0, always, 0, unix.ENOSYS},

	// The box ends all processes of the group.
	{unix.SYS_SETSID, 0, always, 0, unix.EPERM},
	{unix.SYS_SETPGID, 0, always, 0, unix.EPERM},
}

// Offsets in struct seccomp_data (seccomp(2)).
const (
	dataCall = 0
	dataArch = 4
	dataArgs = 16
)

// x32 is the bit of the numbers of a second table of system calls of x86-64.
const x32 = 1 << 30

// architecture returns the name of this architecture for filters; 0: it is not known.
func architecture() uint32 {
	switch runtime.GOARCH {
	case "amd64":
		return unix.AUDIT_ARCH_X86_64
	case "arm64":
		return unix.AUDIT_ARCH_AARCH64
	}
	return 0
}

// program returns the filter: it refuses the calls of other architectures, and those of the
// rules.
func program(arch uint32, rules []rule) []unix.SockFilter {
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	jump := func(op uint16, k uint32, yes, no uint8) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_JMP | op | unix.BPF_K, Jt: yes, Jf: no, K: k}
	}
	fail := func(e unix.Errno) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(e)}
	}
	out := []unix.SockFilter{
		load(dataArch), jump(unix.BPF_JEQ, arch, 1, 0), fail(unix.ENOSYS),
		load(dataCall), jump(unix.BPF_JGE, x32, 0, 1), fail(unix.ENOSYS),
	}
	for _, r := range rules {
		if r.match == always {
			out = append(out, jump(unix.BPF_JEQ, uint32(r.call), 0, 1), fail(r.errno))
			continue
		}
		// The kernel takes the low half of these arguments, all of type int.
		out = append(out, jump(unix.BPF_JEQ, uint32(r.call), 0, 4), load(dataArgs+8*uint32(r.arg)))
		switch r.match {
		case equal:
			out = append(out, jump(unix.BPF_JEQ, r.value, 0, 1))
		case other:
			out = append(out, jump(unix.BPF_JEQ, r.value, 1, 0))
		default:
			out = append(out, jump(unix.BPF_JSET, r.value, 0, 1))
		}
		out = append(out, fail(r.errno), load(dataCall))
	}
	return append(out, unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW})
}

// errNoFilter means that the kernel cannot filter system calls.
var errNoFilter = errors.New("the kernel has no filters for system calls: a tenant's program can reach the network, and make the box wait")

// filter refuses system calls to this thread, and to the program that it executes.
func filter() error {
	arch := architecture()
	if arch == 0 {
		return fmt.Errorf("%w: %s", errNoFilter, runtime.GOARCH)
	}
	code := program(arch, rules)
	list := unix.SockFprog{Len: uint16(len(code)), Filter: unsafe.SliceData(code)}
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&list)), 0, 0)
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: %w", errNoFilter, err)
	}
	return err
}
