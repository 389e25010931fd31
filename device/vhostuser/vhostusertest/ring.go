package vhostusertest

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Ring is a virtqueue of a Server. Its methods need the lock of the server, as in Work.
type Ring struct {
	Conn              *Conn
	Index             int
	desc, avail, used int // offsets in memory
	kick              int
	seen, done        uint16
	stop              chan struct{}
}

// run calls Work for each kick, until the front end stops the virtqueue.
func (q *Ring) run() {
	defer func() { _ = unix.Close(q.kick) }()
	for {
		select {
		case <-q.stop:
			return
		case <-q.Conn.stopped:
			return
		default:
		}
		fds := []unix.PollFd{{Fd: int32(q.kick), Events: unix.POLLIN}}
		if n, _ := unix.Poll(fds, 10); n == 0 {
			continue
		}
		var b [8]byte
		_, _ = unix.Read(q.kick, b[:])
		q.Conn.Set(func() {
			if q.Conn.rings[q.Index] == q {
				q.Conn.Work(q)
			}
		})
	}
}

func (q *Ring) u16(at int) uint16 { return binary.LittleEndian.Uint16(q.Conn.memory[at:]) }

// First returns the first request that has ever been available.
func (q *Ring) First() uint32 { return uint32(q.u16(q.avail + 4)) }

// Next takes a request: the buffers that the server reads, and those that it writes. Both
// are the memory of the front end.
func (q *Ring) Next() (head uint32, out, in [][]byte, ok bool) {
	if q.seen == q.u16(q.avail+2) {
		return 0, nil, nil, false
	}
	head = uint32(q.u16(q.avail + 4 + 2*int(q.seen%queueSize)))
	q.seen++
	for d := int(head); ; d = int(q.u16(q.desc + 16*d + 14)) {
		desc := q.Conn.memory[q.desc+16*d:]
		b := q.Conn.memory[int(binary.LittleEndian.Uint64(desc)-base):][:binary.LittleEndian.Uint32(desc[8:])]
		flags := binary.LittleEndian.Uint16(desc[12:])
		if flags&2 != 0 {
			in = append(in, b)
		} else {
			out = append(out, b)
		}
		if flags&1 == 0 {
			return head, out, in, true
		}
	}
}

// Serve ends each request that is available, with zeros: a status of success in the last
// byte.
func (q *Ring) Serve() {
	for {
		head, _, in, ok := q.Next()
		if !ok {
			return
		}
		q.Conn.Count++
		n := 0
		for _, b := range in {
			clear(b)
			n += len(b)
		}
		q.End(head, uint32(n))
	}
}

// End ends a request, or one that there is not.
func (q *Ring) End(id, n uint32) {
	q.Put(id, n)
	q.Publish(q.done)
}

// EndFirst ends the first request that is available, with a length.
func (q *Ring) EndFirst(n uint32) {
	q.seen++
	q.End(q.First(), n)
}

// Put writes a used element, which Publish shows.
func (q *Ring) Put(id, n uint32) {
	e := q.Conn.memory[q.used+4+8*int(q.done%queueSize):]
	binary.LittleEndian.PutUint32(e, id)
	binary.LittleEndian.PutUint32(e[4:], n)
	q.done++
}

// Publish sets the used index and signals the front end.
func (q *Ring) Publish(index uint16) {
	atomic.StoreUint32((*uint32)(unsafe.Pointer(&q.Conn.memory[q.used])), uint32(index)<<16)
	_, _ = unix.Write(q.Conn.call, word(1))
}
