// Package virtiotest is a small driver of virtio devices, for tests.
package virtiotest

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Host reaches the registers of a device (BAR 0) and has memory that the device reaches.
type Host interface {
	Read(off uint64, n int) uint64
	Write(off uint64, n int, v uint64)
	// Memory returns memory of the host and its bus address.
	Memory() (b []byte, addr uint64)
}

// Offsets of registers in BAR 0: the common configuration, the device configuration and the
// notification addresses.
const (
	deviceSelect = 0
	features     = 4
	driverSelect = 8
	accept       = 12
	configVector = 16
	numQueues    = 18
	Status       = 20
	queueSelect  = 22
	queueSize    = 24
	queueVector  = 26
	queueEnable  = 28
	queueDesc    = 32
	queueDriver  = 40
	queueDevice  = 48

	DeviceConfig = 0x2000
	Notify       = 0x3000
)

// Bits of the status register.
const (
	DriverOK   = 4
	FeaturesOK = 8
	NeedsReset = 0x40
)

// Version1 is VIRTIO_F_VERSION_1.
const Version1 = 1 << 32

// Driver drives one device.
type Driver struct {
	Host   Host
	Queues []*Queue
	Late   bool // enables the virtqueues after DRIVER_OK, which the specification does not permit
	next   int  // free memory
}

// Memory of each virtqueue: its rings, and its buffers.
const (
	ringBytes = 16 << 10
)

// Features returns the features that the device offers.
func (d *Driver) Features() uint64 {
	d.Host.Write(deviceSelect, 4, 0)
	low := d.Host.Read(features, 4)
	d.Host.Write(deviceSelect, 4, 1)
	return low | d.Host.Read(features, 4)<<32
}

// Start resets the device, accepts features, and starts its virtqueues with size entries.
func (d *Driver) Start(accepted uint64, size int) error {
	h := d.Host
	h.Write(Status, 1, 0)
	if s := h.Read(Status, 1); s != 0 {
		return fmt.Errorf("status %#x after a reset", s)
	}
	h.Write(Status, 1, 3)
	for i := range uint64(2) {
		h.Write(driverSelect, 4, i)
		h.Write(accept, 4, accepted>>(32*i)&0xffffffff)
	}
	h.Write(Status, 1, 3|FeaturesOK)
	if h.Read(Status, 1)&FeaturesOK == 0 {
		return errors.New("the device refuses the features")
	}
	h.Write(configVector, 2, 0)
	d.Queues, d.next = nil, 0
	if d.Late {
		h.Write(Status, 1, 3|FeaturesOK|DriverOK)
	}
	for i := range int(h.Read(numQueues, 2)) {
		q := d.queue(i, size)
		h.Write(queueSelect, 2, uint64(i))
		h.Write(queueSize, 2, uint64(size))
		h.Write(queueVector, 2, uint64(i+1))
		h.Write(queueDesc, 8, q.addr)
		h.Write(queueDriver, 8, q.addr+q.avail)
		h.Write(queueDevice, 8, q.addr+q.used)
		h.Write(queueEnable, 2, 1)
		d.Queues = append(d.Queues, q)
	}
	h.Write(Status, 1, 3|FeaturesOK|DriverOK)
	return nil
}

func (d *Driver) queue(i, size int) *Queue {
	b, addr := d.Host.Memory()
	q := &Queue{driver: d, index: i, size: size, Ring: b[d.next:][:ringBytes], addr: addr + uint64(d.next)}
	clear(q.Ring)
	q.avail = uint64(16 * size)
	q.used = (q.avail + 6 + 2*uint64(size) + 3) &^ 3
	d.next += ringBytes
	return q
}

// Addr returns the bus address of the rings.
func (q *Queue) Addr() uint64 { return q.addr }

// Alloc returns memory for buffers, until the next Start.
func (d *Driver) Alloc(n int) (b []byte, addr uint64) {
	all, base := d.Host.Memory()
	at := d.next
	d.next += (n + 63) &^ 63
	return all[at:][:n], base + uint64(at)
}

// Queue is a virtqueue.
type Queue struct {
	driver      *Driver
	index, size int
	Ring        []byte // descriptors, available and used ring
	addr        uint64
	avail, used uint64 // offsets in Ring
	next        uint16 // available index
	seen        uint16 // used index
}

// Buffer is a part of a request.
type Buffer struct {
	Addr  uint64
	Len   int
	Write bool // by the device
}

// Flags of a descriptor.
const (
	FlagNext     = 1
	FlagWrite    = 2
	FlagIndirect = 4
)

// Describe writes a descriptor.
func (q *Queue) Describe(i int, addr uint64, n uint32, flags, next uint16) {
	d := q.Ring[16*i:]
	binary.LittleEndian.PutUint64(d, addr)
	binary.LittleEndian.PutUint32(d[8:], n)
	binary.LittleEndian.PutUint16(d[12:], flags)
	binary.LittleEndian.PutUint16(d[14:], next)
}

// Submit writes the descriptors of a request from first on and makes it available.
func (q *Queue) Submit(first int, buffers ...Buffer) {
	for i, b := range buffers {
		var flags uint16
		if b.Write {
			flags |= FlagWrite
		}
		if i+1 < len(buffers) {
			flags |= FlagNext
		}
		q.Describe(first+i, b.Addr, uint32(b.Len), flags, uint16(first+i+1))
	}
	q.Offer(uint16(first))
}

// Offer makes a head available and notifies the device.
func (q *Queue) Offer(head uint16) {
	q.Put(head)
	q.notify()
}

// Put makes a head available without a notification.
func (q *Queue) Put(head uint16) {
	binary.LittleEndian.PutUint16(q.Ring[q.avail+4+2*uint64(int(q.next)%q.size):], head)
	q.putIndex(q.next + 1)
}

// SetIndex sets the available index and notifies the device.
func (q *Queue) SetIndex(index uint16) {
	q.putIndex(index)
	q.notify()
}

func (q *Queue) putIndex(index uint16) {
	q.next = index
	binary.LittleEndian.PutUint16(q.Ring[q.avail+2:], q.next)
}

func (q *Queue) notify() {
	q.driver.Host.Write(Notify+4*uint64(q.index), 2, uint64(q.index))
}

// Used returns the next request that the device has ended.
func (q *Queue) Used() (head, n uint32, ok bool) {
	if binary.LittleEndian.Uint16(q.Ring[q.used+2:]) == q.seen {
		return 0, 0, false
	}
	e := q.Ring[q.used+4+8*uint64(int(q.seen)%q.size):]
	q.seen++
	return binary.LittleEndian.Uint32(e), binary.LittleEndian.Uint32(e[4:]), true
}
