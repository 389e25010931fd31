package vfiouser

import (
	"fmt"
	"math"
	"os"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"
)

// mmap maps a part of the file. The file must be long enough now; when the VMM
// shortens it later, guard catches the fault.
func (m *mapped) mmap(fd int) error {
	refuse := func(why any, errno error) error {
		return fmt.Errorf("vfiouser: dma map: %d bytes at offset %#x: %v: %w", m.Size, m.Offset, why, errno)
	}
	slack := m.Offset & uint64(os.Getpagesize()-1)
	if m.Offset > math.MaxInt64 || m.Size > math.MaxInt-slack || m.Offset > math.MaxInt64-m.Size {
		return refuse("too large", unix.EINVAL)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return refuse("fstat", err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFREG && uint64(st.Size) < m.Offset+m.Size {
		return refuse(fmt.Sprintf("the file has %d bytes", st.Size), unix.EINVAL)
	}
	prot := unix.PROT_READ
	if m.Writable {
		prot |= unix.PROT_WRITE
	}
	b, err := unix.Mmap(fd, int64(m.Offset-slack), int(m.Size+slack), prot, unix.MAP_SHARED)
	if err != nil {
		return refuse("mmap", err)
	}
	m.mmapped, m.memory = b, b[slack:]
	return nil
}

func (m *mapped) munmap() {
	if m.mmapped != nil {
		_ = unix.Munmap(m.mmapped) // fails only for a slice that is not mapped
		m.mmapped, m.memory = nil, nil
	}
}

// guardedCopy copies src to dst, of the same length, one of which is guest
// memory, and reports whether there was no fault.
func guardedCopy(dst, src []byte) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer recoverFault()
	copy(dst, src)
	return true
}

// guard runs f and reports whether it ended without a memory fault.
func guard(f func()) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer recoverFault()
	f()
	return true
}

// recoverFault stops the panic of a fault: a runtime error that names an
// address, which no other runtime error does.
func recoverFault() {
	switch r := recover().(type) {
	case nil:
	case interface {
		runtime.Error
		Addr() uintptr
	}:
	default:
		panic(r)
	}
}
