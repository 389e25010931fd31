package vfiouser

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Errors that callers branch on.
var (
	// ErrClosed is what calls on an ended connection return.
	ErrClosed = errors.New("vfiouser: connection closed")
	// ErrServerClosed is what Serve returns after Close.
	ErrServerClosed = errors.New("vfiouser: server closed")
	// ErrTimeout says that the peer did not answer in time.
	ErrTimeout = errors.New("vfiouser: no answer in time")
	// ErrQueueFull says that too many DMA messages wait to be sent.
	ErrQueueFull = errors.New("vfiouser: queue of DMA messages is full")
	// ErrNotArmed says that the VMM has given no descriptor for the vector.
	ErrNotArmed = errors.New("vfiouser: interrupt vector is not armed")

	// ErrUnmapped, ErrPermission, ErrNoDescriptor and ErrFault are the
	// reasons of a MemoryError.

	// ErrUnmapped: the VMM has not mapped all of the range.
	ErrUnmapped = errors.New("not mapped")
	// ErrPermission: the mapping does not allow the direction.
	ErrPermission = errors.New("not permitted by the mapping")
	// ErrNoDescriptor: mapped without a descriptor; only messages reach it.
	ErrNoDescriptor = errors.New("mapped without a file descriptor")
	// ErrFault: the VMM has taken the memory behind the mapping away.
	ErrFault = errors.New("no memory behind the mapping")
)

// MemoryError says why guest memory was not accessed.
type MemoryError struct {
	Addr   uint64 // bus address of the whole access
	Len    int    // bytes
	Write  bool   // by the device
	Reason error  // ErrUnmapped, ErrPermission, ErrNoDescriptor or ErrFault
}

func (e *MemoryError) Error() string {
	op := "read"
	if e.Write {
		op = "write"
	}
	return fmt.Sprintf("vfiouser: dma %s of %d bytes at %#x: %v", op, e.Len, e.Addr, e.Reason)
}

// Unwrap returns Reason.
func (e *MemoryError) Unwrap() error { return e.Reason }

// RemoteError is an error reply of the peer.
type RemoteError struct {
	Command Command
	Errno   syscall.Errno // 0 where the peer gave none, as rust-vmm's server does
}

func (e *RemoteError) Error() string {
	if e.Errno == 0 {
		return fmt.Sprintf("vfiouser: %v: refused by the peer", e.Command)
	}
	return fmt.Sprintf("vfiouser: %v: refused by the peer: %v", e.Command, e.Errno)
}

// Unwrap returns the error number, or nil where there is none.
func (e *RemoteError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// ProtocolError says that the peer broke the protocol in a way that leaves the
// stream without a known position; the connection ends.
type ProtocolError struct{ Reason string }

func (e *ProtocolError) Error() string { return "vfiouser: protocol: " + e.Reason }

// errnoOf is the error number that goes into a reply: the one in err's chain,
// or EIO.
func errnoOf(err error) syscall.Errno {
	var n syscall.Errno
	switch {
	case errors.As(err, &n) && n != 0:
		return n
	case errors.Is(err, ErrTimeout):
		return unix.ETIMEDOUT
	case errors.Is(err, ErrUnmapped):
		return unix.ENODEV
	case errors.Is(err, ErrPermission):
		return unix.EACCES
	}
	return unix.EIO
}
