// Package ring carries the packets of a compute channel from a box to the process of an
// OpenCL device, and their events back, in shared memory. A socket beside the memory wakes
// the side that sleeps, and shows that the other one has ended.
//
// While both sides poll, a packet and its event take no system call. The memory, in bytes
// from its start:
//
//	   0  bytes of packets put since the start      written by the box
//	  64  bytes of packets taken since the start    written by the process
//	 128  1: the process sleeps                     set by the process, cleared by either
//	 192  events put since the start                written by the process
//	 256  1: the box sleeps                         set by the box, cleared by either
//	4096  packets, PacketBytes: whole packets, each with its size in front
//	      events, Events of reg.EventSize
//
// A side that is about to sleep sets its word and looks at the ring once more. A side that
// has put something and finds the word of the other set clears it and sends one byte over the
// socket. So none of both sleeps while something is there, and a byte may come late, for
// something that was taken already.
//
// The process runs programs of a tenant, so the box trusts nothing in the memory: it counts
// for itself, checks each count of the process against its own, and copies events out before
// it reads them.
package ring

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/internal/rawio/rights"
)

// Sizes of the parts. The events of all packets in flight fit, so the process never waits
// for room. Packets may fill their part; it holds more than a thousand launches.
const (
	PacketBytes = 1 << 20
	Events      = reg.MaxPacketsInFlight
)

// Places in the memory: each word has a cache line of its own.
const (
	packetsPut    = 0
	packetsTaken  = 64
	processSleeps = 128
	eventsPut     = 192
	boxSleeps     = 256

	packetsAt = 4096
	eventsAt  = packetsAt + PacketBytes

	// Size is the size of the memory in bytes.
	Size = eventsAt + Events*reg.EventSize
)

// memory is the shared memory, as one side has mapped it.
type memory []byte

// newMemory checks the size of the memory, and its alignment for atomic access.
func newMemory(b []byte) (memory, error) {
	if len(b) != Size || uintptr(unsafe.Pointer(unsafe.SliceData(b)))%8 != 0 {
		return nil, fmt.Errorf("ring: memory of %d bytes, want %d", len(b), Size)
	}
	return memory(b), nil
}

// count returns the counter at an offset.
func (m memory) count(at int) *uint64 { return (*uint64)(unsafe.Pointer(&m[at])) }

// word returns the word at an offset.
func (m memory) word(at int) *uint32 { return (*uint32)(unsafe.Pointer(&m[at])) }

func (m memory) packets() []byte { return m[packetsAt:eventsAt] }
func (m memory) events() []byte  { return m[eventsAt:Size] }

// woken clears the word of the other side, and reports whether it sleeps and was not woken.
func (m memory) woken(at int) bool {
	w := m.word(at)
	return atomic.LoadUint32(w) != 0 && atomic.SwapUint32(w, 0) != 0
}

// put copies p to a position of a ring, which may wrap.
func put(ring []byte, at uint64, p []byte) {
	n := copy(ring[at%uint64(len(ring)):], p)
	copy(ring, p[n:])
}

// get copies from a position of a ring, which may wrap, to p.
func get(p, ring []byte, at uint64) {
	n := copy(p, ring[at%uint64(len(ring)):])
	copy(p[n:], ring)
}

// Wake wakes the other side by its socket, without waiting: a full socket wakes it too.
func Wake(socket uintptr) error {
	err := unix.Sendto(int(socket), wakeUp[:], unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	if errors.Is(err, unix.EAGAIN) {
		return nil
	}
	return err
}

var wakeUp = [1]byte{1}

// errRights is the error of a side that breaks the rules.
var errRights = errors.New("ring: a wake-up came with descriptors")

// Await takes a wake-up from a socket, and waits for one with block. It returns
// reader.ErrNothing if none has come, and io.EOF after the end of the other side. trash closes
// what the other side sends beside it.
func Await(socket uintptr, block bool, trash *rights.Disposer) error {
	flags := unix.MSG_DONTWAIT
	if block {
		flags = 0
	}
	var b [8]byte
	n, carried, err := trash.Receive(int(socket), b[:], flags)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return reader.ErrNothing
	case err != nil:
		return fmt.Errorf("socket: %w", err)
	case carried:
		return errRights
	case n == 0:
		return io.EOF
	}
	return nil
}
