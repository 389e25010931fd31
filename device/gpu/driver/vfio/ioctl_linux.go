package vfio

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Numbers and structures of the kernel's user interface, from the description
// in Documentation/driver-api/vfio.rst and linux/vfio.h. All ioctls are
// _IO(';', 100 + n): the size is not encoded but stands in argsz.
const (
	ioGetAPIVersion     = 0x3b64
	ioSetIOMMU          = 0x3b66
	ioGroupGetStatus    = 0x3b67
	ioGroupSetContainer = 0x3b68
	ioGroupGetDeviceFD  = 0x3b6a
	ioGetRegionInfo     = 0x3b6c
	ioGetIRQInfo        = 0x3b6d
	ioSetIRQs           = 0x3b6e
	ioDeviceReset       = 0x3b6f
	ioMapDMA            = 0x3b71
	ioUnmapDMA          = 0x3b72

	apiVersion = 0

	iommuType1v2 = 3
	iommuNone    = 8

	groupViable = 1 << 0

	regionWrite  = 1 << 1
	regionMmap   = 1 << 2
	regionConfig = 7

	irqMSIX    = 2
	irqRequest = 4 // the kernel asks for the device back

	irqSetEventFD = 1 << 2
	irqSetTrigger = 1 << 5

	dmaRead  = 1 << 0
	dmaWrite = 1 << 1
)

type groupStatus struct{ argsz, flags uint32 }

type regionInfo struct {
	argsz, flags, index uint32
	_                   uint32 // offset of the capabilities
	size, offset        uint64
}

type irqInfo struct {
	argsz        uint32
	_            uint32 // flags
	index, count uint32
}

// maxVectors bounds irqSet; the GPU has at most 64.
const maxVectors = 64

type irqSet struct {
	argsz, flags, index uint32
	_                   uint32 // first vector
	count               uint32
	fds                 [maxVectors]int32
}

const irqSetHeader = 20

type dmaMap struct {
	argsz, flags       uint32
	vaddr, iova, bytes uint64
}

type dmaUnmap struct {
	argsz       uint32
	_           uint32 // flags
	iova, bytes uint64
}

// ioctl calls with a pointer argument.
func ioctl[T any](fd int, request uintptr, name string, arg *T) (int, error) {
	return ioctlValue(fd, request, name, uintptr(unsafe.Pointer(arg)))
}

// ioctlValue calls with a plain argument.
//
//go:uintptrescapes
func ioctlValue(fd int, request uintptr, name string, arg uintptr) (int, error) {
	for {
		r, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, arg)
		switch errno {
		case 0:
			return int(r), nil
		case unix.EINTR:
		default:
			return 0, fmt.Errorf("%s: %w", name, errno)
		}
	}
}
