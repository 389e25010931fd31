package cl

import (
	"runtime"

	"github.com/ebitengine/purego"
)

const (
	memUseHostPointer = 1 << 3
	execInfoSVM       = 0x11b6
)

// NewSVM allocates shared virtual memory: kernels see it at the address that is returned.
func (l *Library) NewSVM(c Context, flags, size uint64) (uintptr, error) {
	for _, f := range []function{svmAlloc, svmFree, setKernelArgSVMPointer, setKernelExecInfo} {
		if l.fn[f] == 0 {
			return 0, InvalidOperation
		}
	}
	p, _, _ := purego.SyscallN(l.fn[svmAlloc], uintptr(c), uintptr(flags), uintptr(size), 0)
	if p == 0 {
		return 0, MemAllocationFailure
	}
	return p, nil
}

// FreeSVM frees memory of NewSVM.
func (l *Library) FreeSVM(c Context, p uintptr) {
	_, _, _ = purego.SyscallN(l.fn[svmFree], uintptr(c), p)
}

// NewBufferOver makes a buffer that lies in shared virtual memory.
func (l *Library) NewBufferOver(c Context, flags, size uint64, p uintptr) (Mem, error) {
	h, err := l.create(createBuffer, uintptr(c), uintptr(flags|memUseHostPointer), uintptr(size), p)
	return Mem(h), err
}

// SetArgSVM sets an argument to an address in shared virtual memory.
func (l *Library) SetArgSVM(k Kernel, i int, p uintptr) error {
	return l.call(setKernelArgSVMPointer, uintptr(k), uintptr(i), p)
}

// SetSVMPointers says which shared virtual memory a kernel uses beside its arguments.
func (l *Library) SetSVMPointers(k Kernel, list []uintptr) error {
	err := l.call(setKernelExecInfo, uintptr(k), execInfoSVM, uintptr(8*len(list)), data(list))
	runtime.KeepAlive(list)
	return err
}
