package opencl

import (
	"bytes"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// saidRoom is how much of a process's standard error is kept, and maxSaid how much of its
// end goes into the log, in bytes.
const (
	saidRoom = 64 << 10
	maxSaid  = 512
)

// newSaid returns a file for the standard error of a process: a platform that ends its
// process says why. The file has a fixed size, and the box reads it at the end: a
// program of a tenant that writes without end costs the box nothing.
func newSaid() (*os.File, error) {
	fd, err := unix.MemfdCreate("dxpu-stderr", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("standard error of the process: %w", err)
	}
	f := os.NewFile(uintptr(fd), "stderr")
	err = f.Truncate(saidRoom)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("standard error of the process: %w", err), f.Close())
	}
	return f, nil
}

// lastWords returns the end of what a process wrote.
func lastWords(f *os.File) string {
	b := make([]byte, saidRoom)
	n, _ := f.ReadAt(b, 0) // a part is better than nothing
	b = bytes.TrimRight(b[:n], "\x00")
	return string(b[max(0, len(b)-maxSaid):])
}
