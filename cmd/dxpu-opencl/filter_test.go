package main

import (
	"errors"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tryCalls tries, in the confined process, what would make the box wait, reach other processes
// or outlive this one.
func tryCalls(t *testing.T) {
	const size = 1 << 20
	fd, err := unix.MemfdCreate("vram", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Fallocate(fd, 0, 0, size); err != nil {
		t.Errorf("memory of its own: %v", err)
	}
	memory, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Madvise(memory, unix.MADV_DONTNEED); err != nil {
		t.Errorf("madvise: %v", err)
	}
	socket := func(domain int) error {
		s, err := unix.Socket(domain, unix.SOCK_STREAM, 0)
		if err == nil {
			_ = unix.Close(s)
		}
		return err
	}
	call := func(number uintptr, args ...uintptr) error {
		var a [6]uintptr
		copy(a[:], args)
		if _, _, e := unix.Syscall6(number, a[0], a[1], a[2], a[3], a[4], a[5]); e != 0 {
			return e
		}
		return nil
	}
	pidfd, err := unix.PidfdOpen(unix.Getpid(), 0)
	if err != nil {
		t.Fatal(err)
	}
	part := unix.Iovec{Base: unsafe.SliceData(memory)}
	part.SetLen(size)
	var ring [120]byte
	name := []byte("/dxpu-test\x00")
	for what, c := range map[string]struct{ got, want error }{
		"a hole in shared memory":     {unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, size), unix.EOPNOTSUPP},
		"a hole by madvise":           {unix.Madvise(memory, unix.MADV_REMOVE), unix.EINVAL},
		"a hole by process_madvise":   {call(unix.SYS_PROCESS_MADVISE, uintptr(pidfd), uintptr(unsafe.Pointer(&part)), 1, unix.MADV_REMOVE), unix.ENOSYS},
		"io_uring":                    {call(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&ring))), unix.ENOSYS},
		"a socket of IPv4":            {socket(unix.AF_INET), unix.EAFNOSUPPORT},
		"a socket of IPv6":            {socket(unix.AF_INET6), unix.EAFNOSUPPORT},
		"a socket of UNIX":            {socket(unix.AF_UNIX), unix.EAFNOSUPPORT},
		"a socket of vsock":           {socket(unix.AF_VSOCK), unix.EAFNOSUPPORT},
		"a segment of shared memory":  {call(unix.SYS_SHMGET, 0, 4096, unix.IPC_CREAT|0o600), unix.ENOSYS},
		"a queue of messages":         {call(unix.SYS_MQ_OPEN, uintptr(unsafe.Pointer(&name[0])), unix.O_CREAT|unix.O_RDWR, 0o600), unix.ENOSYS},
		"a key":                       {call(unix.SYS_KEYCTL, unix.KEYCTL_GET_KEYRING_ID, ^uintptr(3), 1), unix.ENOSYS},
		"another session":             {call(unix.SYS_SETSID), unix.EPERM},
		"another group of processes":  {call(unix.SYS_SETPGID), unix.EPERM},
		"a call of the table for x32": {call(x32 | unix.SYS_GETPID), unix.ENOSYS},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: %v, want %v", what, c.got, c.want)
		}
	}
}
