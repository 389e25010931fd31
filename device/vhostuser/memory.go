package vhostuser

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/virtio"
)

// The shadow virtqueues. Request id uses the descriptors 2*id, for the bytes that the back
// end reads, and 2*id+1, for those that it writes, so no list of free descriptors is
// needed, and nothing that the back end can write is read but the used ring.
const (
	ringSize = 2 * virtio.MaxRequests

	// Offsets in the memory of a virtqueue; the pool follows on a page of its own.
	descAt  = 0
	availAt = descAt + 16*ringSize
	usedAt  = availAt + 4 + 2*ringSize + 2 + 506 // on a boundary of 1 KiB
	poolAt  = 8192

	// memoryBase is the address of the memory for the back end: not 0, which reads as
	// "not set" in some.
	memoryBase = 1 << 30
)

// memory is what a back end reaches: the shadow virtqueues with their pools, in a file
// without a name. Every connection has its own, so that a former back end that is not dead
// reaches nothing of the next.
type memory struct {
	fd     int
	bytes  []byte
	queues []ring
	pool   int
}

func newMemory(queues, pool int) (*memory, error) {
	size := queues * (poolAt + pool)
	fd, err := unix.MemfdCreate("dxpu-virtio", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	m := &memory{fd: fd, pool: pool}
	err = unix.Ftruncate(fd, int64(size))
	if err == nil {
		// A back end must not shrink the memory: the box would fault.
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		m.bytes, err = unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("shared memory: %w", err), unix.Close(fd))
	}
	for i := range queues {
		at := i * (poolAt + pool)
		m.queues = append(m.queues, ring{bytes: m.bytes[at:][:poolAt+pool], addr: memoryBase + uint64(at)})
	}
	return m, nil
}

// erase brings the memory back to zeros and gives its pages back to the system.
func (m *memory) erase() error {
	for i := range m.queues {
		m.queues[i].reset()
	}
	err := unix.Fallocate(m.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, int64(len(m.bytes)))
	if err != nil {
		return fmt.Errorf("erase shared memory: %w", err)
	}
	return nil
}

func (m *memory) close() error {
	return errors.Join(unix.Munmap(m.bytes), unix.Close(m.fd))
}

// ring is a shadow virtqueue.
type ring struct {
	bytes []byte
	addr  uint64 // of bytes, for the back end

	avail, used uint16 // indices
	given       int
	out         [virtio.MaxRequests]bool // the back end has the request
}

func (r *ring) reset() { r.avail, r.used, r.given, r.out = 0, 0, 0, [virtio.MaxRequests]bool{} }

// index returns the word with the flags and the index of a ring.
func (r *ring) index(at int) *uint32 { return (*uint32)(unsafe.Pointer(&r.bytes[at])) }

const (
	descNext  = 1
	descWrite = 2
)

func (r *ring) describe(i int, addr uint64, n int, flags, next uint16) {
	d, le := r.bytes[descAt+16*i:], binary.LittleEndian
	le.PutUint64(d, addr)
	le.PutUint32(d[8:], uint32(n))
	le.PutUint16(d[12:], flags)
	le.PutUint16(d[14:], next)
}

// submit makes a request available.
func (r *ring) submit(id uint16, at, out, in int) {
	pool := r.addr + poolAt
	head := 2 * int(id)
	if in > 0 {
		r.describe(head+1, pool+uint64(at+out), in, descWrite, 0)
	}
	switch {
	case out == 0:
		head++
	case in > 0:
		r.describe(head, pool+uint64(at), out, descNext, uint16(head+1))
	default:
		r.describe(head, pool+uint64(at), out, 0, 0)
	}
	binary.LittleEndian.PutUint16(r.bytes[availAt+4+2*(int(r.avail)%ringSize):], uint16(head))
	r.avail++
	r.given++
	r.out[id] = true
	atomic.StoreUint32(r.index(availAt), uint32(r.avail)<<16) // after the entry
}

// take returns a request that the back end has ended.
func (r *ring) take() (id uint16, n uint32, ok bool, err error) {
	index := uint16(atomic.LoadUint32(r.index(usedAt)) >> 16)
	ahead := index - r.used
	if ahead == 0 {
		return 0, 0, false, nil
	}
	if int(ahead) > r.given {
		return 0, 0, false, fmt.Errorf("the back end has ended %d requests of %d", ahead, r.given)
	}
	e := r.bytes[usedAt+4+8*(int(r.used)%ringSize):]
	head, n := binary.LittleEndian.Uint32(e), binary.LittleEndian.Uint32(e[4:])
	if head > math.MaxUint16 || head/2 >= virtio.MaxRequests || !r.out[head/2] {
		return 0, 0, false, fmt.Errorf("the back end has ended request %d, which it does not have", head/2)
	}
	id = uint16(head / 2)
	r.used++
	r.given--
	r.out[id] = false
	return id, n, true, nil
}
