package vfiouser

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

const (
	// maxDMAChunk is the most data of one DMA message, in bytes. QEMU drops the
	// rest of a reply that it could send only in part, so a reply must fit the
	// socket's buffer; up to 32 KiB less headers never failed in tests.
	maxDMAChunk = 16 << 10
	// dmaWindow is how many DMA messages are under way at once: their replies
	// together stay below the default socket buffer (212992 bytes), which
	// counts about 1.3 bytes for each byte of data.
	dmaWindow = 8
)

// dmaOp is one call of DMARead, DMAWrite or SignalMSI that needs messages.
type dmaOp struct {
	addr    uint64
	buf     []byte
	write   bool
	msi     bool // an interrupt message: its address is no memory, so the table is not asked
	sent    int  // bytes for which a message is sent
	pending int  // messages without a reply
	err     error
	done    func(error)
	small   [4]byte
	place   element[dmaOp] // in dmaQueue.ops or a doneList
}

// over reports whether op has no open message and will send no more.
func (op *dmaOp) over() bool { return op.pending == 0 && (op.err != nil || op.sent == len(op.buf)) }

// dmaChunk is one message without a reply.
type dmaChunk struct {
	op     *dmaOp // nil: the place is free
	id     uint16
	off, n int
}

// dmaQueue holds the messages of one connection; Conn.mu guards it.
//
// Invariant: messages are sent in the order of the calls, each when no access
// is unanswered and fewer than dmaWindow are under way.
type dmaQueue struct {
	chunk   int // bytes
	id      uint16
	ops     list[dmaOp] // not yet sent to the end
	waiting int         // length of ops
	flight  [dmaWindow]dmaChunk
	free    freeList[dmaOp]
}

// pop removes the oldest operation.
func (q *dmaQueue) pop() {
	q.ops.remove(&q.ops.first().place)
	q.waiting--
}

// doneList holds operations whose done functions have yet to be called, without a lock.
type doneList struct {
	c   *Conn
	ops list[dmaOp]
}

func (l *doneList) add(op *dmaOp) { l.ops.push(op, &op.place) }

func (l *doneList) run() {
	for op := l.ops.first(); op != nil; op = l.ops.first() {
		l.ops.remove(&op.place)
		done, err := op.done, op.err
		l.c.mu.Lock()
		*op = dmaOp{}
		l.c.dma.free = append(l.c.dma.free, op)
		l.c.mu.Unlock()
		if done != nil {
			done(err)
		}
	}
}

// DMARead fills p from guest memory at addr and calls done. For mapped memory it
// calls done before it returns. Otherwise it calls done when the VMM has answered,
// from a goroutine of the connection or one that is inside another of its methods:
// done must not block, and must not take a lock that callers hold. The connection
// owns p until then. When DMARead itself returns an error, it does not call done:
// a *MemoryError, ErrQueueFull or ErrClosed.
func (c *Conn) DMARead(addr uint64, p []byte, done func(error)) error {
	return c.access(addr, p, false, done)
}

// DMAWrite copies p to guest memory at addr; see DMARead. Messages keep the
// order of the calls that made them. A write in place does not wait for
// messages, so it may become visible before an earlier write by message.
func (c *Conn) DMAWrite(addr uint64, p []byte, done func(error)) error {
	return c.access(addr, p, true, done)
}

func (c *Conn) access(addr uint64, p []byte, write bool, done func(error)) error {
	inPlace, err := c.mem.Check(addr, len(p), write)
	if err != nil {
		return err
	}
	if !inPlace {
		return c.enqueue(addr, p, nil, write, done)
	}
	if err := c.mem.counted(c.mem.copy(addr, p, write)); err != nil {
		return err
	}
	if done != nil {
		done(nil)
	}
	return nil
}

// SignalMSI writes the 4 bytes of an interrupt message (MSI, MSI-X) to addr, by
// a DMA message unless guest memory is mapped there, in order with the DMA
// messages before it. It does not check the address, which the guest has
// programmed. done may be nil; the connection still waits for the VMM's answer,
// which bounds the messages under way and counts the refused ones (QEMU refuses
// them with ENODEV while Bus Master Enable is clear).
func (c *Conn) SignalMSI(addr uint64, data uint32, done func(error)) error {
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], data)
	if c.mem.has(addr, len(b)) {
		return c.access(addr, append([]byte(nil), b[:]...), true, done)
	}
	return c.enqueue(addr, nil, &b, true, done)
}

// enqueue adds an operation of p, or of the message msi.
func (c *Conn) enqueue(addr uint64, p []byte, msi *[4]byte, write bool, done func(error)) error {
	c.mu.Lock()
	switch {
	case c.closed:
		c.mu.Unlock()
		return ErrClosed
	case c.dma.waiting >= c.cfg.MaxDMA:
		c.mu.Unlock()
		return ErrQueueFull
	}
	op := c.dma.free.take()
	*op = dmaOp{addr: addr, buf: p, write: write, done: done}
	if msi != nil {
		op.msi, op.small = true, *msi
		op.buf = op.small[:]
	}
	c.dma.ops.push(op, &op.place)
	c.dma.waiting++
	c.mu.Unlock()
	c.pump()
	return nil
}

// pump sends the messages that may be sent now.
func (c *Conn) pump() {
	c.wmu.Lock()
	done := c.pumpLocked()
	c.wmu.Unlock()
	done.run()
}

// pumpLocked is pump with the write lock held; the caller runs the list after
// it has released the lock.
func (c *Conn) pumpLocked() doneList {
	done := doneList{c: c}
	for {
		b := c.nextDMA(&done)
		if b == nil {
			return done
		}
		c.srv.stats.dmaMessages.Add(1)
		c.sendLocked(b)
	}
}

// nextDMA builds the next message, or returns nil when none may be sent now.
// It ends operations whose memory has been unmapped meanwhile.
func (c *Conn) nextDMA(done *doneList) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := &c.dma
	for {
		op, slot := q.ops.first(), q.slot()
		if op == nil || slot == nil || c.closed || !c.open.empty() {
			return nil
		}
		n := min(len(op.buf)-op.sent, q.chunk)
		at := op.addr + uint64(op.sent)
		if !op.msi {
			if _, err := c.mem.Check(at, n, op.write); err != nil {
				op.err = err
				q.pop()
				if op.over() {
					done.add(op)
				}
				continue
			}
		}
		q.id++
		*slot = dmaChunk{op: op, id: q.id, off: op.sent, n: n}
		op.pending++
		c.dmaOut = appendDMA(c.dmaOut[:0], q.id, at, op.buf[op.sent:op.sent+n], op.write)
		op.sent += n
		if op.sent == len(op.buf) {
			q.pop()
		}
		return c.dmaOut
	}
}

// slot returns a free place for a message under way, or nil.
func (q *dmaQueue) slot() *dmaChunk {
	for i := range q.flight {
		if q.flight[i].op == nil {
			return &q.flight[i]
		}
	}
	return nil
}

func appendDMA(b []byte, id uint16, addr uint64, data []byte, write bool) []byte {
	h := Header{ID: id, Command: CmdDMARead}
	if write {
		h.Command = CmdDMAWrite
	}
	b = DMAAccess{Addr: addr, Count: uint64(len(data))}.Append(h.Append(b))
	if write {
		b = append(b, data...)
	}
	putSize(b)
	return b
}

// dmaReply takes the VMM's answer to a DMA message.
func (c *Conn) dmaReply(m *message) {
	done := doneList{c: c}
	c.mu.Lock()
	x := c.dma.find(m)
	if x == nil {
		c.mu.Unlock()
		c.srv.stats.unsolicited.Add(1)
		return
	}
	op := x.op
	if err := takeDMA(m, op.buf[x.off:x.off+x.n], op.write); err != nil {
		c.srv.stats.dmaErrors.Add(1)
		if op.err == nil {
			op.err = err
		}
		if c.dma.ops.first() == op { // the rest is not sent
			c.dma.pop()
		}
	}
	*x = dmaChunk{}
	op.pending--
	if op.over() {
		done.add(op)
	}
	c.mu.Unlock()
	c.pump()
	done.run()
}

// find returns the open message that m answers, or nil.
func (q *dmaQueue) find(m *message) *dmaChunk {
	for i := range q.flight {
		if x := &q.flight[i]; x.op != nil && x.id == m.ID && (m.Command == CmdDMAWrite) == x.op.write {
			return x
		}
	}
	return nil
}

// takeDMA copies the data of a reply into p.
func takeDMA(m *message, p []byte, write bool) error {
	if m.Flags&FlagError != 0 {
		return &RemoteError{Command: m.Command, Errno: unix.Errno(m.Errno)}
	}
	if write {
		return nil
	}
	_, n, err := ParseDMAAccess(m.body)
	if err == nil && len(m.body)-n != len(p) {
		err = fmt.Errorf("vfiouser: dma read: %d bytes instead of %d", len(m.body)-n, len(p))
	}
	if err == nil {
		copy(p, m.body[n:])
	}
	return err
}

// failDMA ends all operations. The connection is closed, so none is added.
func (c *Conn) failDMA(err error) {
	done := doneList{c: c}
	c.wmu.Lock() // no goroutine copies from a buffer now
	c.mu.Lock()
	q := &c.dma
	for i := range q.flight {
		op := q.flight[i].op
		q.flight[i] = dmaChunk{}
		if op == nil {
			continue
		}
		if op.pending--; op.pending == 0 && op != q.ops.first() {
			op.err = err
			done.add(op)
		}
	}
	for op := q.ops.first(); op != nil; op = q.ops.first() {
		q.pop()
		op.err = err
		done.add(op)
	}
	c.mu.Unlock()
	c.wmu.Unlock()
	done.run()
}
