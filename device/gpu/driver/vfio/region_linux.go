package vfio

import (
	"encoding/binary"
	"fmt"
	"io"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
)

const (
	allOnes32 = 0xffff_ffff
	allOnes64 = 0xffff_ffff_ffff_ffff
)

// mapped is a BAR in the address space of this process. Each access is one load
// or store of 1, 4 or 8 bytes: a hypervisor that emulates the device splits
// or refuses wider ones, so that copy must not be used.
//
// When the device is taken away, the pages are replaced by inaccessible ones:
// an access faults, and the fault is turned into all ones. The address range
// stays reserved for the life of the process, because another goroutine may be
// about to access it; it costs no memory.
type mapped struct {
	mem []byte
}

var _ driver.Region = (*mapped)(nil)

// mapRegion maps size bytes at offset of a file.
func mapRegion(fd int, offset int64, size uint64) (*mapped, error) {
	mem, err := unix.Mmap(fd, offset, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("map: %w", err)
	}
	return &mapped{mem: mem}, nil
}

// revoke takes the pages away.
func (r *mapped) revoke() error {
	p := unsafe.Pointer(unsafe.SliceData(r.mem))
	_, err := unix.MmapPtr(-1, 0, p, uintptr(len(r.mem)), unix.PROT_NONE,
		unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_FIXED|unix.MAP_NORESERVE)
	return err
}

// guard runs an access and reports whether it went without a fault.
func guard(access func()) (ok bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if e := recover(); e != nil {
			if _, fault := e.(interface{ Addr() uintptr }); !fault {
				panic(e)
			}
		}
	}()
	access()
	return true
}

func (r *mapped) Size() uint64 { return uint64(len(r.mem)) }

func (r *mapped) inside(off, n uint64) bool {
	return off <= uint64(len(r.mem)) && n <= uint64(len(r.mem))-off && off%n == 0
}

func (r *mapped) word32(off uint64) *uint32 { return (*uint32)(unsafe.Pointer(&r.mem[off])) }
func (r *mapped) word64(off uint64) *uint64 { return (*uint64)(unsafe.Pointer(&r.mem[off])) }

func (r *mapped) Read32(off uint64) uint32 {
	v := uint32(allOnes32)
	if r.inside(off, 4) {
		guard(func() { v = atomic.LoadUint32(r.word32(off)) })
	}
	return v
}

func (r *mapped) Write32(off uint64, v uint32) {
	if r.inside(off, 4) {
		guard(func() { atomic.StoreUint32(r.word32(off), v) })
	}
}

func (r *mapped) Read64(off uint64) uint64 {
	v := uint64(allOnes64)
	if r.inside(off, 8) {
		guard(func() { v = atomic.LoadUint64(r.word64(off)) })
	}
	return v
}

func (r *mapped) Write64(off uint64, v uint64) {
	if r.inside(off, 8) {
		guard(func() { atomic.StoreUint64(r.word64(off), v) })
	}
}

func (r *mapped) check(p []byte, off int64) error {
	if off < 0 || off > int64(len(r.mem)) || len(p) > len(r.mem)-int(off) {
		return fmt.Errorf("vfio: %d bytes at %#x of a region of %#x bytes: %w", len(p), off, len(r.mem), io.ErrUnexpectedEOF)
	}
	return nil
}

func (r *mapped) ReadAt(p []byte, off int64) (int, error) {
	if err := r.check(p, off); err != nil {
		return 0, err
	}
	return bulk(p, off, func(at uint64, word []byte) {
		binary.LittleEndian.PutUint64(word, atomic.LoadUint64(r.word64(at)))
	}, func(at uint64, b *byte) { *b = r.mem[at] })
}

func (r *mapped) WriteAt(p []byte, off int64) (int, error) {
	if err := r.check(p, off); err != nil {
		return 0, err
	}
	return bulk(p, off, func(at uint64, word []byte) {
		atomic.StoreUint64(r.word64(at), binary.LittleEndian.Uint64(word))
	}, func(at uint64, b *byte) { r.mem[at] = *b })
}

// bulk calls word for each aligned word of p, and single for the other bytes.
func bulk(p []byte, off int64, word func(at uint64, word []byte), single func(at uint64, b *byte)) (n int, err error) {
	if !guard(func() {
		for n < len(p) {
			if at := uint64(off) + uint64(n); at%8 == 0 && len(p)-n >= 8 {
				word(at, p[n:])
				n += 8
			} else {
				single(at, &p[n])
				n++
			}
		}
	}) {
		return n, driver.ErrDeviceLost
	}
	return n, nil
}
