package vfiouser

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/cfgspace"
)

// keepBuffer is the longest message whose buffer is kept for the next access:
// a read of the whole configuration space.
const keepBuffer = HeaderSize + regionAccessSize + 4096

// maxHeld bounds the bytes of messages that the handler holds: at the limit the server
// reads no further. A VMM with one long access under way does not get there.
const maxHeld = 8 << 20

// dataOffset is where the data of a region access begins in its message.
const dataOffset = HeaderSize + regionAccessSize

// Access is one access of the VMM to a region. The handler owns it and its Data
// until it calls Reply or Fail.
type Access struct {
	Region uint32
	Offset uint64 // in the region; Offset + len(Data) lies within its size
	// Data is the data of a write, or the buffer that a read fills.
	Data   []byte
	Write  bool
	Posted bool // the VMM expects no answer: none is sent, and no deadline applies
	// More reports that the VMM's next message has already arrived: a handler may
	// batch its work.
	More bool

	conn     *Conn
	cmd      Command
	id       uint16
	hide     bool   // the read by which QEMU decides on MSI-X
	buf      []byte // the message of the request, and then of the reply
	held     int    // bytes that count in Conn.held
	state    accessState
	deadline time.Duration   // since the connection began
	wait     element[Access] // in Conn.open
}

// accessState tells which side has to answer:
//
//	free --arrives--> open --answered--> free
//	                    \--deadline--> expired --late answer--> free
type accessState uint8

const (
	accessFree    accessState = iota
	accessOpen                // the handler has to answer, and so has the server unless it is posted
	accessExpired             // the server has answered and will drop the handler's answer
)

// Reply answers the access: on a read with Data, on a write with success. It
// writes to the socket and blocks while that is full.
func (a *Access) Reply() { a.conn.answer(a, nil) }

// Fail answers that the access did not work; see Config.ErrorReplies. err is
// sent as its error number, if it has one, else as EIO.
func (a *Access) Fail(err error) {
	if err == nil {
		err = unix.EIO
	}
	a.conn.answer(a, err)
}

// accept takes a free access, copies the request's headers into it and makes
// room for n bytes of data; lent is the number of bytes of a buffer that the access
// borrows instead. It waits while the handler holds too many accesses or bytes,
// and returns nil when the connection ends.
func (c *Conn) accept(m *message, n, lent int) *Access {
	held := dataOffset + n + lent
	c.mu.Lock()
	full := func() bool { return c.inUse >= c.cfg.MaxOpen || c.held > 0 && c.held+held > maxHeld }
	if full() && !m.NoReply() {
		c.journal.begin(m.ID, m.Command, m.body) // the wait may be a long one
	}
	for full() && !c.closed {
		c.room.Wait()
	}
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.inUse++
	c.held += held
	a := c.free.take()
	c.mu.Unlock()
	a.held = held
	if cap(a.buf) < dataOffset+n {
		a.buf = make([]byte, dataOffset+n, max(dataOffset+n, 64))
	}
	a.buf = a.buf[:dataOffset+n]
	copy(a.buf[HeaderSize:dataOffset], m.body)
	a.conn, a.cmd, a.id, a.hide = c, m.Command, m.ID, false
	a.Posted, a.More, a.Data = m.NoReply(), c.moreWrites || c.fr.more(), a.buf[dataOffset:]
	return a
}

// launch adds the access to the list of unanswered ones.
func (c *Conn) launch(a *Access) {
	c.mu.Lock()
	defer c.mu.Unlock()
	a.state = accessOpen
	if a.Posted {
		return
	}
	a.deadline = time.Since(c.start) + c.cfg.Deadline
	c.open.push(a, &a.wait)
	c.journal.begin(a.id, a.cmd, a.buf[HeaderSize:dataOffset])
	if !c.timerOn && !c.closed {
		c.timerOn = true
		c.timer.Reset(c.cfg.Deadline)
	}
}

// answer ends an access on the handler's behalf: it sends the reply and then
// the DMA messages that waited for it.
func (c *Conn) answer(a *Access, err error) {
	if err != nil {
		c.srv.stats.failed.Add(1)
	}
	if !a.Posted {
		c.wmu.Lock()
		c.mu.Lock()
		reply := a.state == accessOpen
		if reply {
			c.open.remove(&a.wait)
			c.journal.end(a.id)
		}
		late := a.state == accessExpired
		reply = reply && !c.closed
		c.mu.Unlock()
		if late {
			c.srv.stats.late.Add(1)
		}
		if reply {
			c.sendLocked(a.reply(err))
		}
		done := c.pumpLocked()
		c.wmu.Unlock()
		done.run()
	}
	c.release(a)
}

// reply turns the access into its answer; the result aliases a.buf.
func (a *Access) reply(err error) []byte {
	n := dataOffset
	switch {
	case a.cmd == CmdDeviceReset && err == nil:
		n = HeaderSize // exactly: QEMU breaks on a payload
	case err != nil && (a.cmd == CmdDeviceReset || a.conn.cfg.ErrorReplies):
		return appendErrorReply(a.buf[:0], a.id, a.cmd, errnoOf(err))
	case a.cmd == CmdRegionRead:
		n = len(a.buf)
		if err != nil {
			allOnes(a.Data)
		} else if a.hide {
			hideMSIX(a.Data)
		}
	}
	Header{ID: a.id, Command: a.cmd, Size: uint32(n), Flags: FlagReply}.Append(a.buf[:0])
	return a.buf[:n]
}

// hideMSIX turns the MSI-X capability in an image of the configuration space
// into a vendor-specific one; see Config.HideMSIXAtRealize.
func hideMSIX(cfg []byte) {
	if at := cfgspace.Find(cfg, cfgspace.CapMSIX); at != 0 {
		cfg[at] = cfgspace.CapVendor
	}
}

// release returns the access to the free list.
func (c *Conn) release(a *Access) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch a.state {
	case accessFree:
		panic("vfiouser: access answered twice")
	case accessOpen:
		c.inUse--
	case accessExpired: // it still held its bytes
	}
	c.held -= a.held
	c.room.Signal()
	a.state = accessFree
	if cap(a.buf) <= keepBuffer && len(c.free) < c.cfg.MaxOpen {
		c.free = append(c.free, a)
	}
}

// expire answers the accesses whose deadline has passed. The handler still
// holds them and may be filling their buffers, so the answers use another buffer.
func (c *Conn) expire() {
	c.wmu.Lock()
	for {
		b := c.nextExpired()
		if b == nil {
			break
		}
		c.srv.stats.expired.Add(1)
		c.sendLocked(b)
	}
	done := c.pumpLocked()
	c.wmu.Unlock()
	done.run()
}

// nextExpired takes the oldest access from the list if its deadline has passed and
// returns the answer; otherwise it sets the timer and returns nil. The write
// lock is held.
func (c *Conn) nextExpired() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.open.first()
	if c.closed || a == nil {
		c.timerOn = false
		return nil
	}
	if left := a.deadline - time.Since(c.start); left > 0 {
		c.timer.Reset(left)
		return nil
	}
	c.open.remove(&a.wait)
	c.journal.end(a.id)
	a.state = accessExpired
	c.inUse--
	c.room.Signal()
	if a.cmd == CmdDeviceReset || c.cfg.ErrorReplies {
		return appendErrorReply(c.scratch[:0], a.id, a.cmd, unix.ETIMEDOUT)
	}
	n := dataOffset
	if a.cmd == CmdRegionRead {
		n = len(a.buf)
	}
	if cap(c.scratch) < n {
		c.scratch = make([]byte, n)
	}
	b := Header{ID: a.id, Command: a.cmd, Size: uint32(n), Flags: FlagReply}.Append(c.scratch[:0])
	b = append(b, a.buf[HeaderSize:dataOffset]...)
	allOnes(b[dataOffset:n])
	return b[:n]
}

func allOnes(b []byte) {
	for i := range b {
		b[i] = 0xff
	}
}
