package vfiouser

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Mapping is a range of bus addresses that the VMM lets the device access.
type Mapping struct {
	Addr, Size uint64 // bytes
	Offset     uint64 // into the descriptor
	Readable   bool   // by the device
	Writable   bool   // by the device
	InPlace    bool   // came with a descriptor and is mapped in this process
}

// mapped is a mapping of the table. Without a descriptor memory and in are nil.
type mapped struct {
	Mapping
	memory []byte // the range
	in     *view  // that holds it
}

func (m *Mapping) last() uint64 { return m.Addr + (m.Size - 1) }

// Memory is the memory of the VMM that one connection has mapped. All methods
// may be called from any goroutine. After the end of the connection it is empty.
//
// Invariant: maps is sorted by address and no two mappings overlap.
type Memory struct {
	refused atomic.Uint64
	// shared returns an error if the VMM has mapped a file privately.
	shared func(fileID) error

	// mu is held for reading during an access in place and for writing
	// while the table changes, so an unmap waits for the accesses.
	mu    sync.RWMutex
	maps  []*mapped
	max   int
	files files
}

func newMemory(maxMaps int, maxBytes uint64) *Memory {
	return &Memory{max: maxMaps, files: newFiles(maxBytes), shared: func(fileID) error { return nil }}
}

// Read fills p from guest memory at bus address addr. It checks the whole range
// before it copies; errors are *MemoryError.
func (m *Memory) Read(addr uint64, p []byte) error { return m.counted(m.copy(addr, p, false)) }

// Write copies p to guest memory at bus address addr. It checks the whole range
// before it copies; errors are *MemoryError.
func (m *Memory) Write(addr uint64, p []byte) error { return m.counted(m.copy(addr, p, true)) }

// TryRead is Read for a caller with another way to the memory: it reports whether it has
// filled p, and a refusal does not count.
func (m *Memory) TryRead(addr uint64, p []byte) bool { return m.copy(addr, p, false) == nil }

// TryWrite is Write for a caller with another way to the memory: it reports whether it has
// copied p, and a refusal does not count.
func (m *Memory) TryWrite(addr uint64, p []byte) bool { return m.copy(addr, p, true) == nil }

func (m *Memory) copy(addr uint64, p []byte, write bool) error {
	if len(p) == 0 {
		return nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	i, reason := m.findLocked(addr, len(p), write, true)
	if reason != nil {
		return memoryError(addr, len(p), write, reason)
	}
	for at, rest := addr, p; len(rest) > 0; i++ {
		part := m.maps[i].memory[at-m.maps[i].Addr:]
		n := min(len(part), len(rest))
		ok := false
		if write {
			ok = guardedCopy(part[:n], rest[:n])
		} else {
			ok = guardedCopy(rest[:n], part[:n])
		}
		if !ok {
			return memoryError(addr, len(p), write, ErrFault)
		}
		at, rest = at+uint64(n), rest[n:]
	}
	return nil
}

// View calls f with the memory itself: one slice for each mapping that the n
// bytes at addr lie in. The slices are valid during the call. f must not call
// methods of m or of the connection. A fault inside f, which the VMM causes, ends
// f and becomes an ErrFault.
func (m *Memory) View(addr uint64, n int, write bool, f func(parts [][]byte) error) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if n <= 0 {
		return f(nil)
	}
	i, reason := m.findLocked(addr, n, write, true)
	if reason != nil {
		return m.counted(memoryError(addr, n, write, reason))
	}
	var parts [][]byte
	for at, rest := addr, n; rest > 0; i++ {
		off := at - m.maps[i].Addr
		k := min(uint64(rest), m.maps[i].Size-off)
		parts = append(parts, m.maps[i].memory[off:off+k:off+k])
		at, rest = at+k, rest-int(k)
	}
	ok := guard(func() { reason = f(parts) })
	if !ok {
		return m.counted(memoryError(addr, n, write, ErrFault))
	}
	return reason
}

// Check reports whether the device may access n bytes at addr, and whether in
// place: for a mapping without a descriptor, inPlace is false and err nil.
func (m *Memory) Check(addr uint64, n int, write bool) (inPlace bool, err error) {
	if n == 0 {
		return true, nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	i, reason := m.findLocked(addr, n, write, false)
	if reason != nil {
		return false, m.counted(memoryError(addr, n, write, reason))
	}
	for last := addr + uint64(n-1); i < len(m.maps) && m.maps[i].Addr <= last; i++ {
		if !m.maps[i].InPlace {
			return false, nil
		}
	}
	return true, nil
}

// has reports whether the device may write n bytes at addr. It counts no refusal.
func (m *Memory) has(addr uint64, n int) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	_, reason := m.findLocked(addr, n, true, false)
	return reason == nil
}

// Mappings returns a copy of the table, in the order of addresses.
func (m *Memory) Mappings() []Mapping {
	m.mu.RLock()
	defer m.mu.RUnlock()
	out := make([]Mapping, len(m.maps))
	for i, x := range m.maps {
		out[i] = x.Mapping
	}
	return out
}

// Refused counts the accesses that ended in a MemoryError, except those for which a
// message can ask (ErrNoDescriptor).
func (m *Memory) Refused() uint64 { return m.refused.Load() }

// counted counts an access that was refused.
func (m *Memory) counted(err error) error {
	if err != nil && !errors.Is(err, ErrNoDescriptor) {
		m.refused.Add(1)
	}
	return err
}

func memoryError(addr uint64, n int, write bool, reason error) error {
	return &MemoryError{Addr: addr, Len: n, Write: write, Reason: reason}
}

// findLocked returns the index of the first mapping of a range of n > 0 bytes
// after checking that mappings without a gap cover it and permit it.
func (m *Memory) findLocked(addr uint64, n int, write, inPlace bool) (int, error) {
	if addr > math.MaxUint64-uint64(n-1) {
		return 0, ErrUnmapped
	}
	last := addr + uint64(n-1)
	first := sort.Search(len(m.maps), func(i int) bool { return m.maps[i].last() >= addr })
	for i, at := first, addr; ; i++ {
		if i == len(m.maps) || m.maps[i].Addr > at {
			return 0, ErrUnmapped
		}
		switch x := m.maps[i]; {
		case write && !x.Writable, !write && !x.Readable:
			return 0, ErrPermission
		case inPlace && !x.InPlace:
			return 0, ErrNoDescriptor
		case x.last() >= last:
			return first, nil
		default:
			at = x.last() + 1
		}
	}
}

// add maps the range of the message; fd is -1 without a descriptor, and stays
// the caller's. The error holds the number for the reply.
func (m *Memory) add(req DMAMap, fd int) (Mapping, error) {
	x := &mapped{Mapping: req.mapping(fd)}
	if !x.Readable && !x.Writable {
		return Mapping{}, fmt.Errorf("vfiouser: dma map: neither readable nor writable: %w", unix.EINVAL)
	}
	var part filePart
	if x.InPlace {
		var err error
		if part, err = m.inspect(req, fd, x.Writable); err != nil {
			return Mapping{}, fmt.Errorf("vfiouser: dma map: %d bytes at offset %#x: %w", x.Size, x.Offset, err)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.maps) >= m.max {
		return Mapping{}, fmt.Errorf("vfiouser: dma map: the table is full with %d mappings: %w", m.max, unix.ENOSPC)
	}
	i := sort.Search(len(m.maps), func(i int) bool { return m.maps[i].last() >= x.Addr })
	if i < len(m.maps) && m.maps[i].Addr <= x.last() {
		return Mapping{}, fmt.Errorf("vfiouser: dma map: %d bytes at %#x overlap a mapping: %w", x.Size, x.Addr, unix.EEXIST)
	}
	if x.InPlace {
		var err error
		if x.in, x.memory, err = m.files.take(&part); err != nil {
			return Mapping{}, fmt.Errorf("vfiouser: dma map: %d bytes at offset %#x: %w", x.Size, x.Offset, err)
		}
	}
	m.maps = slices.Insert(m.maps, i, x)
	return x.Mapping, nil
}

// mapping describes the range of the message; fd is -1 without a descriptor.
func (req DMAMap) mapping(fd int) Mapping {
	return Mapping{
		Addr: req.Addr, Size: req.Size, Offset: req.Offset, InPlace: fd >= 0,
		Readable: req.Flags&DMAFlagRead != 0, Writable: req.Flags&DMAFlagWrite != 0,
	}
}

// inspect checks the file of a mapping. Devices use the memory meanwhile: the list of the
// VMM's own mappings has thousands of lines behind an emulated IOMMU.
func (m *Memory) inspect(req DMAMap, fd int, writable bool) (filePart, error) {
	part, err := newPart(fd, req.Offset, req.Size, writable)
	if err != nil {
		return part, err
	}
	m.mu.RLock()
	known := m.files.find(&part) != nil
	m.mu.RUnlock()
	if known {
		return part, nil
	}
	return part, m.shared(part.file)
}

// remove removes and returns the mappings that lie in the range, or all of them.
// It waits for accesses in flight. As with VFIO's own type 1 containers there may
// be none or many: behind an emulated IOMMU QEMU unmaps whole power-of-two ranges
// of its address space, mapped or not. remove refuses a range that cuts a mapping
// in two, since QEMU and Linux never send one.
func (m *Memory) remove(req DMAUnmap) ([]Mapping, error) {
	if req.Flags&^DMAUnmapAll != 0 {
		return nil, fmt.Errorf("vfiouser: dma unmap: flags %#x: %w", req.Flags, unix.EINVAL)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	lo, hi := 0, len(m.maps)
	if req.Flags&DMAUnmapAll != 0 {
		if req.Addr != 0 || req.Size != 0 {
			return nil, fmt.Errorf("vfiouser: dma unmap: a range and all: %w", unix.EINVAL)
		}
	} else {
		if req.Size == 0 {
			return nil, fmt.Errorf("vfiouser: dma unmap: no size: %w", unix.EINVAL)
		}
		last := req.Addr + (req.Size - 1)
		lo = sort.Search(len(m.maps), func(i int) bool { return m.maps[i].last() >= req.Addr })
		hi = sort.Search(len(m.maps), func(i int) bool { return m.maps[i].Addr > last })
		if lo < hi && (m.maps[lo].Addr < req.Addr || m.maps[hi-1].last() > last) {
			return nil, fmt.Errorf("vfiouser: dma unmap: %d bytes at %#x cut a mapping: %w", req.Size, req.Addr, unix.EINVAL)
		}
	}
	var gone []Mapping
	for _, x := range m.maps[lo:hi] {
		m.files.release(x.in)
		gone = append(gone, x.Mapping)
	}
	m.maps = slices.Delete(m.maps, lo, hi)
	return gone, nil
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
