package virtio

import (
	"encoding/binary"
	"fmt"
	"slices"
)

// segment is a buffer of a request in the memory of the host.
type segment struct {
	addr uint64
	n    uint32
}

// chainState is the progress of a request:
//
//	free → walking → loading → submitted → ended → free
//
// A request that lacks its back end, or room in the pool, waits in loading.
type chainState uint8

const (
	chainFree      chainState = iota
	chainWalking              // descriptors are read
	chainLoading              // data that the back end reads is copied into the pool
	chainSubmitted            // the back end has it
	chainEnded                // data that the back end has written is copied out of the pool
)

// chain is a request: a chain of descriptors, and its place in the pool.
type chain struct {
	state chainState
	head  uint16 // first descriptor: its number is the ID of the request for the driver
	order uint64 // of arrival

	table    uint64 // descriptors: those of the virtqueue, or an indirect table
	entries  int    // of table
	indirect bool
	window   []byte // descriptors from first on
	first    int
	issued   int // bytes of window that reads ask for
	seen     int // descriptors

	segments []segment // those that the back end reads, then those that it writes
	readable int       // number of the former
	out, in  int       // bytes of both
	at       int       // in the pool
	placed   bool
	segment  int // the next to read
	off      int // in it
	loaded   int // bytes asked for

	pending int // reads outstanding
	used    int // bytes that the back end has written
}

const (
	descSize = 16
	// Descriptors that one window holds. Linux takes neighbours for the descriptors of a
	// request where it can, so the first read brings most of them.
	directWindow   = 8
	indirectWindow = 128
)

// Flags of a descriptor (section 2.7.5).
const (
	descNext     = 1
	descWrite    = 2
	descIndirect = 4
)

// complete reports whether a chain in loading has its data in the pool.
func (c *chain) complete() bool { return c.placed && c.pending == 0 && c.loaded == c.out }

// begin starts the walk over the descriptors.
func (c *chain) begin(q *queue) {
	c.state = chainWalking
	c.indirect, c.seen = false, 0
	c.segments, c.readable, c.out, c.in = c.segments[:0], 0, 0, 0
	c.placed, c.pending = false, 0
	c.open(q.desc, int(q.size), int(c.head))
}

// open makes a window of descriptors to read.
func (c *chain) open(table uint64, entries, first int) {
	most := directWindow
	if c.indirect {
		most = indirectWindow
	}
	c.table, c.entries, c.first, c.issued = table, entries, first, 0
	n := min(most, entries-first) * descSize
	c.window = slices.Grow(c.window[:0], n)[:n]
}

// parse walks over the window. It reports whether it has reached the end of the chain;
// else another window is open.
func (c *chain) parse(pool int) (end bool, err error) {
	at := c.first
	for at >= c.first && at < c.first+len(c.window)/descSize {
		d := c.window[(at-c.first)*descSize:]
		addr, n := binary.LittleEndian.Uint64(d), binary.LittleEndian.Uint32(d[8:])
		flags, next := binary.LittleEndian.Uint16(d[12:]), int(binary.LittleEndian.Uint16(d[14:]))
		if addr+uint64(n) < addr {
			return false, fmt.Errorf("a buffer of %d bytes at %#x", n, addr)
		}
		if flags&descIndirect != 0 {
			if c.indirect || flags&descNext != 0 || n == 0 || n%descSize != 0 || n/descSize > maxQueueSize {
				return false, fmt.Errorf("an indirect table of %d bytes, flags %#x", n, flags)
			}
			c.indirect = true
			c.open(addr, int(n/descSize), 0)
			return false, nil
		}
		if err := c.add(addr, n, flags, pool); err != nil {
			return false, err
		}
		if flags&descNext == 0 {
			if c.out+c.in == 0 {
				return false, fmt.Errorf("a request without buffers")
			}
			return true, nil
		}
		if next >= c.entries {
			return false, fmt.Errorf("descriptor %d of %d", next, c.entries)
		}
		at = next
	}
	c.open(c.table, c.entries, at)
	return false, nil
}

// add takes one buffer. pool is the largest sum of the lengths.
func (c *chain) add(addr uint64, n uint32, flags uint16, pool int) error {
	// More descriptors than a table has are a loop.
	if c.seen++; c.seen > maxQueueSize {
		return fmt.Errorf("more than %d descriptors in a chain", maxQueueSize)
	}
	if uint64(n) > uint64(pool-c.out-c.in) {
		return fmt.Errorf("a request of more than %d bytes, the pool of a virtqueue", pool)
	}
	if flags&descWrite == 0 && c.readable < len(c.segments) {
		return fmt.Errorf("a buffer to read behind one to write")
	}
	if n == 0 {
		return nil
	}
	c.segments = append(c.segments, segment{addr, n})
	if flags&descWrite == 0 {
		c.readable++
		c.out += int(n)
	} else {
		c.in += int(n)
	}
	return nil
}
