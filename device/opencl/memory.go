package opencl

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// newMemory returns a file of size bytes, all zero, for memory that a process shares with the
// box. The process cannot shrink it: the box would fault.
func newMemory(what string, size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate("dxpu-"+what, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("shared memory for %s: %w", what, err)
	}
	f := os.NewFile(uintptr(fd), "dxpu-"+what)
	err = f.Truncate(size)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("shared memory for %s: %w", what, err), f.Close())
	}
	return f, nil
}
