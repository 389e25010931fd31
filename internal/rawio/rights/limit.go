package rights

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Spare is the number of descriptors, below the limit of the process, that those made for a peer
// leave to the sockets and files of the process itself.
const Spare = 64

// LimitError reports that the process may have no more descriptors.
type LimitError struct {
	Limit uint64 // of open files
}

// Error names the limit and the remedy.
func (e *LimitError) Error() string {
	return fmt.Sprintf("the process may have %d open files, and has them: raise LimitNOFILE of its unit, or ulimit -n", e.Limit)
}

// Unwrap returns the error number of a system call at the limit.
func (e *LimitError) Unwrap() error { return unix.EMFILE }

// Limit returns a LimitError with the limit of the process.
func Limit() *LimitError {
	var r unix.Rlimit
	_ = unix.Getrlimit(unix.RLIMIT_NOFILE, &r) // cannot fail
	return &LimitError{r.Cur}
}

// Allowed returns a LimitError if fd lies in the spare part of the limit. The kernel gives out
// the lowest descriptor that is free.
func Allowed(fd int) error {
	if l := Limit(); uint64(fd)+Spare >= l.Limit {
		return l
	}
	return nil
}

var errForbidden = errors.New("a security module of this machine, such as SELinux or AppArmor, may forbid the process to have them")

// Lost returns why the kernel has dropped descriptors of a message (MSG_CTRUNC) for which the
// receiver had room. It is for the time before those that came are closed.
func Lost() error {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	switch {
	case errors.Is(err, unix.EMFILE):
		return Limit()
	case err != nil:
		return err
	}
	_ = unix.Close(fd)
	return errForbidden
}
