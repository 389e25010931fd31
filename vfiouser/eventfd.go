package vfiouser

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// NewEvent makes an event descriptor to arm an interrupt vector with. A read
// of it blocks its goroutine only, and ends when the file is closed.
func NewEvent() (*os.File, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("vfiouser: eventfd: %w", err)
	}
	return os.NewFile(uintptr(fd), "eventfd"), nil
}

// WaitEvent waits until the descriptor of NewEvent has been signalled and
// returns how often since the last time.
func WaitEvent(f *os.File) (uint64, error) {
	var b [8]byte
	if _, err := f.Read(b[:]); err != nil {
		return 0, err
	}
	return binary.NativeEndian.Uint64(b[:]), nil
}
