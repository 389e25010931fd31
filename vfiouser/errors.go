package vfiouser

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Errors that callers branch on.
var (
	// ErrClosed is returned by calls on an ended connection.
	ErrClosed = errors.New("vfiouser: connection closed")
	// ErrServerClosed is returned by Serve after Close.
	ErrServerClosed = errors.New("vfiouser: server closed")
	// ErrTimeout means that the peer did not answer in time.
	ErrTimeout = errors.New("vfiouser: no answer in time")
	// ErrQueueFull means that too many DMA messages wait to be sent.
	ErrQueueFull = errors.New("vfiouser: queue of DMA messages is full")
	// ErrNotArmed means that the VMM has given no descriptor for the vector.
	ErrNotArmed = errors.New("vfiouser: interrupt vector is not armed")

	// ErrUnmapped, ErrPermission, ErrNoDescriptor and ErrFault are the
	// reasons of a MemoryError.

	// ErrUnmapped: the VMM has not mapped all of the range.
	ErrUnmapped = errors.New("not mapped")
	// ErrPermission: the mapping does not allow the direction.
	ErrPermission = errors.New("not permitted by the mapping")
	// ErrNoDescriptor: mapped without a descriptor; only messages reach it.
	ErrNoDescriptor = errors.New("mapped without a file descriptor")
	// ErrFault: the VMM has removed the memory behind the mapping.
	ErrFault = errors.New("no memory behind the mapping")
)

// MemoryError is a refused access to guest memory.
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

// ProtocolError means that the peer broke the protocol and the position in the
// stream is lost; the connection ends.
type ProtocolError struct{ Reason string }

func (e *ProtocolError) Error() string { return "vfiouser: protocol: " + e.Reason }

// errnoOf returns the error number for a reply: the one in err's chain,
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
