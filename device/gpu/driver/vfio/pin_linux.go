package vfio

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
)

// physical is the DMA memory of a device without an IOMMU: it reaches memory by physical
// addresses. The zero value is ready.
type physical struct {
	pins map[*byte]int // descriptor of the ring that holds the pages, by their first byte
}

// mapDMA returns the addresses of pages, which stay where they are until unmapDMA.
func (p *physical) mapDMA(mem []byte) ([]driver.Segment, error) {
	ring, err := pin(mem)
	if err != nil {
		return nil, err
	}
	segments, err := pagemap(mem)
	if err != nil {
		return nil, errors.Join(err, unix.Close(ring))
	}
	if p.pins == nil {
		p.pins = map[*byte]int{}
	}
	p.pins[unsafe.SliceData(mem)] = ring
	return segments, nil
}

func (p *physical) unmapDMA(mem []byte) error {
	ring, ok := p.pins[unsafe.SliceData(mem)]
	if !ok {
		return nil
	}
	delete(p.pins, unsafe.SliceData(mem))
	return errors.Join(register(ring, unregisterBuffers, nil), unix.Close(ring))
}

// Operations of io_uring_register(2), and the longest buffer that it takes.
const (
	registerBuffers   = 0
	unregisterBuffers = 1
	longestBuffer     = 1 << 30
)

// uringParams is struct io_uring_params of the kernel, of which nothing is used.
type uringParams [120]byte

// errNoRing means that the kernel gives this process no io_uring.
var errNoRing = errors.New("pin memory: io_uring_setup is refused")

// pin keeps pages where they are until the ring is closed. Locked pages are always present,
// but the kernel moves them: to the node of the processor that uses them, or to make room
// for larger ones. A device would go on with pages that belong to others by then. Buffers of
// an io_uring are the one way for a process to have pages pinned without a device.
func pin(mem []byte) (ring int, err error) {
	var params uringParams
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		return 0, fmt.Errorf("%w (%w); without an IOMMU the kernel must not move the memory of the device: "+
			"allow it (sysctl kernel.io_uring_disabled=0), or give the machine an IOMMU", errNoRing, errno)
	}
	ring = int(fd)
	var buffers []unix.Iovec
	for len(mem) > 0 {
		b := unix.Iovec{Base: unsafe.SliceData(mem)}
		n := min(len(mem), longestBuffer)
		b.SetLen(n)
		buffers, mem = append(buffers, b), mem[n:]
	}
	if err := register(ring, registerBuffers, buffers); err != nil {
		return 0, errors.Join(fmt.Errorf("pin memory (see ulimit -l): %w", err), unix.Close(ring))
	}
	return ring, nil
}

func register(ring int, operation uintptr, buffers []unix.Iovec) error {
	_, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(ring), operation,
		uintptr(unsafe.Pointer(unsafe.SliceData(buffers))), uintptr(len(buffers)), 0, 0)
	if errno != 0 {
		return fmt.Errorf("io_uring_register: %w", errno)
	}
	return nil
}
