package vfiouser

import (
	"encoding/binary"
	"time"
)

// The client sends a posted write at once, unless it closely follows another:
// then the program writes in a row, and a system call for each write, on both
// sides, would cost more than all other work. Such writes gather while one
// goroutine sends the previous ones, as in a processor's posted-write buffer. Any
// other message takes the gathered writes along, which keeps the order.
const (
	// postGap is the longest time between two writes in a row: less than a system call takes.
	postGap = 4 * time.Microsecond
	// maxPosted bounds the gathered writes, in bytes. Beyond it the program sends
	// them itself, and waits for the server.
	maxPosted = 32 << 10
	// maxSmall is the most data of a write that gathers.
	maxSmall = 8
)

// posts holds the gathered posted writes; Client.mu guards it.
type posts struct {
	buf     []byte    // messages
	multi   int       // offset of the message that can take another write; -1: none
	last    time.Time // end of the newest write
	sending bool      // a goroutine sends them
}

// add appends a write, to the last message where that is possible.
func (q *posts) add(newID func() uint16, multi bool, region uint32, offset uint64, p []byte) {
	if !multi {
		h := Header{ID: newID(), Command: CmdRegionWrite, Flags: FlagNoReply, Size: uint32(dataOffset + len(p))}
		q.buf = h.Append(q.buf)
		q.buf = RegionAccess{Offset: offset, Region: region, Count: uint32(len(p))}.Append(q.buf)
		q.buf = append(q.buf, p...)
		return
	}
	const head = HeaderSize + multiCountSize
	if q.multi < 0 || len(q.buf)-q.multi >= head+MaxMulti*multiEntrySize {
		q.multi = len(q.buf)
		q.buf = Header{ID: newID(), Command: CmdRegionWriteMulti, Flags: FlagNoReply}.Append(q.buf)
		q.buf = append(q.buf, make([]byte, multiCountSize)...)
	}
	w := MultiWrite{Offset: offset, Region: region, Count: uint32(len(p))}
	copy(w.Data[:], p)
	q.buf = w.Append(q.buf)
	m := q.buf[q.multi:]
	putSize(m)
	binary.LittleEndian.PutUint64(m[HeaderSize:], uint64((len(m)-head)/multiEntrySize))
}

// postSmall posts a write of up to maxSmall bytes.
func (c *Client) postSmall(region uint32, offset uint64, p []byte) error {
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	q, now := &c.posts, time.Now()
	row := now.Sub(q.last) < postGap
	q.last = now
	if !row && len(q.buf) == 0 {
		c.mu.Unlock()
		err := c.postNow(region, offset, p)
		c.mu.Lock()
		q.last = time.Now()
		c.mu.Unlock()
		return err
	}
	q.add(c.nextIDLocked, c.caps.WriteMultiple, region, offset, p)
	if len(q.buf) >= maxPosted {
		c.mu.Unlock()
		return c.flushPosts()
	}
	if !q.sending {
		q.sending = true
		c.wg.Go(c.sendPosts)
	}
	c.mu.Unlock()
	return nil
}

// postNow posts a write at once.
func (c *Client) postNow(region uint32, offset uint64, p []byte) error {
	var b [regionAccessSize]byte
	head := RegionAccess{Offset: offset, Region: region, Count: uint32(len(p))}.Append(b[:0])
	return c.post(CmdRegionWrite, head, p)
}

// sendPosts sends gathered writes until there are none.
func (c *Client) sendPosts() {
	for {
		c.mu.Lock()
		if len(c.posts.buf) == 0 || c.err != nil {
			c.posts.sending = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		_ = c.flushPosts() // an error ends the client, and the next turn sees that
	}
}

// flushPosts sends the gathered writes.
func (c *Client) flushPosts() error {
	ch := c.main
	ch.wmu.Lock()
	ch.out = c.takePosts(ch.out[:0])
	var err error
	if len(ch.out) > 0 {
		err = ch.sock.send(ch.out)
	}
	ch.wmu.Unlock()
	if err != nil {
		return c.sendFailed(err)
	}
	c.reader.Attend()
	return nil
}

// takePosts moves the gathered writes to b. The write lock of the main socket is
// held, so no message overtakes them.
func (c *Client) takePosts(b []byte) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	b = append(b, c.posts.buf...)
	c.posts.buf, c.posts.multi = c.posts.buf[:0], -1
	return b
}
