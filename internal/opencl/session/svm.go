package session

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/opencl/cl"
)

// Shared virtual memory, coarse-grained: a tenant's program has memory at the address at which the
// kernels see it. Its pages are in no other object, so that the tenant learns no other address of
// this process. The program and the device exchange its content by the packets of buffers: the
// memory is a buffer too.

// shared is the place of a buffer in shared virtual memory.
type shared struct {
	base uintptr // of what the platform has allocated
	at   uintptr // of the buffer: the first byte of a page
	cost uint64  // bytes of what the platform has allocated
}

// pageSize is the unit in which a program reserves addresses, in bytes.
const pageSize = 4096

// svmFlags are the flags that say what kernels do.
const svmFlags = 1<<0 | 1<<1 | 1<<2

// errShared is why a context with shared virtual memory does not move.
var errShared = errors.New("the context has shared virtual memory, which another device does not have at the same addresses")

// newShared makes a buffer in shared virtual memory, and returns its address (8).
func (s *Session) newShared(c *cursor) result {
	handle := c.u32()
	c.u32()
	flags, size := c.u64(), c.u64()
	if err := s.free(handle, c); err != nil {
		return result{err: err}
	}
	if size == 0 || size > 1<<48 {
		return result{err: cl.InvalidBufferSize}
	}
	cost := (size+pageSize-1)&^(pageSize-1) + pageSize
	if cost > s.Memory-min(s.used, s.Memory) {
		return result{err: cl.MemAllocationFailure}
	}
	base, err := s.Library.NewSVM(s.context, flags&svmFlags, cost)
	if err != nil {
		return result{err: err}
	}
	place := &shared{base: base, at: (base + pageSize - 1) &^ (pageSize - 1), cost: cost}
	m, err := s.Library.NewBufferOver(s.context, 1, size, place.at)
	if err != nil {
		s.Library.FreeSVM(s.context, base)
		return result{err: err}
	}
	s.used += cost
	s.shared++
	s.serial++
	s.objects[handle] = &buffer{birth: s.birth(), mem: m, flags: flags, serial: s.serial, size: size, shared: place, users: 1}
	return result{data: binary.LittleEndian.AppendUint64(nil, uint64(place.at))}
}

// newOver makes a buffer that is a part of one in shared virtual memory.
func (s *Session) newOver(c *cursor) error {
	handle, of := c.u32(), c.u32()
	flags, origin, size := c.u64(), c.u64(), c.u64()
	if err := s.free(handle, c); err != nil {
		return err
	}
	in, err := s.buffer(of, origin, size)
	if err != nil {
		return err
	}
	if in.shared == nil {
		return cl.InvalidValue
	}
	m, err := s.Library.NewBufferOver(s.context, flags&bufferFlags, size, in.shared.at+uintptr(origin))
	if err != nil {
		return err
	}
	in.users++
	s.serial++
	s.objects[handle] = &buffer{birth: s.birth(), mem: m, flags: flags, origin: origin, serial: s.serial, size: size, parent: in, over: true, users: 1}
	return nil
}

// sharedArg returns the buffer of an argument in shared virtual memory, and the address.
func (s *Session) sharedArg(a argument) (b *buffer, p uintptr, err error) {
	if len(a.value) != 16 {
		return nil, 0, cl.InvalidArgSize
	}
	b, err = object[*buffer](s, binary.LittleEndian.Uint32(a.value), cl.InvalidArgValue)
	offset := binary.LittleEndian.Uint64(a.value[8:])
	if err != nil || b.shared == nil || offset >= b.size {
		return nil, 0, cl.InvalidArgValue
	}
	return b, b.shared.at + uintptr(offset), nil
}

// useShared tells the platform which shared virtual memory a kernel uses beside its arguments.
func (s *Session) useShared(k *kernel, handles []uint32) error {
	var serials []uint64
	var bases []uintptr
	for _, h := range handles {
		b, err := object[*buffer](s, h, cl.InvalidValue)
		if err != nil || b.shared == nil {
			return cl.InvalidValue
		}
		serials, bases = append(serials, b.serial), append(bases, b.shared.base)
		s.mark(b, 0, b.size)
	}
	if slices.Equal(serials, k.shared) {
		return nil
	}
	k.shared = nil
	err := s.Library.SetSVMPointers(k.kernel, bases)
	if err != nil && len(bases) > 0 { // a platform may refuse an empty list
		return err
	}
	k.shared = serials
	return nil
}

// sharedList reads the handles of what a kernel uses beside its arguments.
func (c *cursor) sharedList(n uint32) (list []uint32) {
	if n > reg.MaxShared {
		c.bad = true
	}
	for i := uint32(0); i < n && !c.bad; i++ {
		list = append(list, c.u32())
	}
	if n%2 == 1 {
		c.u32()
	}
	if c.bad {
		return nil
	}
	return list
}
