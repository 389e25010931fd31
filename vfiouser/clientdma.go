package vfiouser

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// DMAHandler serves the memory that a device server accesses by messages.
type DMAHandler interface {
	// DMA carries one request. The handler calls Reply or Fail exactly once,
	// during the call or later, from any goroutine. It must not wait for
	// answers of the same client during the call: it blocks their reader.
	DMA(c *Client, r *DMARequest)
}

// DMAFunc is a function that is a DMAHandler.
type DMAFunc func(c *Client, r *DMARequest)

// DMA implements DMAHandler.
func (f DMAFunc) DMA(c *Client, r *DMARequest) { f(c, r) }

// DMARequest is one DMA_READ or DMA_WRITE of the server. The handler owns it and
// its Data until it calls Reply or Fail.
type DMARequest struct {
	Addr   uint64 // bus address
	Data   []byte // the data of a write, or the buffer that a read fills
	Write  bool
	Posted bool // no answer is sent

	client *Client
	ch     *channel
	id     uint16
	held   bool
	buf    []byte
}

// Reply answers the request, a read with Data.
func (r *DMARequest) Reply() { r.client.answerDMA(r, nil) }

// Fail answers with an error: err's number, or EIO.
func (r *DMARequest) Fail(err error) {
	if err == nil {
		err = unix.EIO
	}
	r.client.answerDMA(r, err)
}

// maxRefusals bounds the refusals that wait for room in a socket. A server that sends
// more requests and does not read is given up.
const maxRefusals = 4096

// refusal is the error reply to a request of the server.
type refusal struct {
	ch *channel
	h  Header
}

// serve handles a request of the server. It does not wait for room in the socket: the
// caller may read for others, too, see Poll.
func (c *Client) serve(ch *channel, m *message) {
	err := c.startDMA(ch, m)
	if err == nil || m.NoReply() {
		return
	}
	c.mu.Lock()
	full := len(c.refusals) >= maxRefusals
	if !full && c.err == nil {
		c.refusals = append(c.refusals, refusal{ch, Header{ID: m.ID, Command: m.Command, Flags: FlagReply | FlagError, Errno: uint32(errnoOf(err))}})
		if !c.refusing {
			c.refusing = true
			c.wg.Go(c.sendRefusals)
		}
	}
	c.mu.Unlock()
	if full {
		c.shut(errNotReading)
	}
}

// sendRefusals sends the refusals that wait.
func (c *Client) sendRefusals() {
	for {
		c.mu.Lock()
		waiting := c.refusals
		c.refusals = nil
		if c.err != nil || len(waiting) == 0 {
			c.refusing = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		for _, r := range waiting {
			if err := r.ch.sendMessage(r.h, nil, nil, nil); err != nil {
				_ = c.sendFailed(err)
				break
			}
		}
	}
}

// startDMA hands a request to the handler; it returns the error for the reply.
func (c *Client) startDMA(ch *channel, m *message) error {
	write := m.Command == CmdDMAWrite
	if !write && m.Command != CmdDMARead {
		return unix.ENOSYS
	}
	req, n, err := ParseDMAAccess(m.body)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", err, unix.EINVAL)
	case req.Count > DefaultMaxData || write && req.Count > uint64(len(m.body)-n):
		return unix.E2BIG
	case c.cfg.DMA == nil:
		return unix.ENODEV
	}
	held, bytes := c.dmaHeld.Add(1), c.dmaBytes.Add(int64(req.Count))
	if held > int64(c.cfg.MaxDMA) || bytes > maxHeldDMA {
		c.dropDMA(int(req.Count))
		return unix.EBUSY
	}
	r := c.newDMA(int(req.Count))
	r.Addr, r.Write, r.Posted, r.ch, r.id = req.Addr, write, m.NoReply(), ch, m.ID
	if write {
		copy(r.Data, m.body[n:])
	}
	c.cfg.DMA.DMA(c, r)
	return nil
}

func (c *Client) dropDMA(n int) {
	c.dmaHeld.Add(-1)
	c.dmaBytes.Add(-int64(n))
}

// newDMA returns a request with n bytes of data.
func (c *Client) newDMA(n int) *DMARequest {
	c.mu.Lock()
	r := c.freeDMA.take()
	c.mu.Unlock()
	if cap(r.buf) < n {
		r.buf = make([]byte, n)
	}
	r.client, r.Data, r.held = c, r.buf[:n], true
	return r
}

func (c *Client) answerDMA(r *DMARequest, err error) {
	c.mu.Lock()
	if !r.held {
		c.mu.Unlock()
		panic("vfiouser: DMA request answered twice")
	}
	r.held = false
	open := c.err == nil
	c.mu.Unlock()
	n := len(r.Data)
	if open && !r.Posted {
		h := Header{ID: r.id, Command: CmdDMARead, Flags: FlagReply}
		data := r.Data
		if r.Write {
			h.Command, data = CmdDMAWrite, nil
		}
		var b [dmaAccessSize]byte
		payload := DMAAccess{Addr: r.Addr, Count: uint64(n)}.Append(b[:0])
		if err != nil {
			h.Flags, h.Errno = FlagReply|FlagError, uint32(errnoOf(err))
			payload, data = nil, nil
		}
		if err := r.ch.sendMessage(h, payload, data, nil); err != nil {
			_ = c.sendFailed(err)
		}
	}
	c.dropDMA(n)
	c.mu.Lock()
	defer c.mu.Unlock()
	if cap(r.buf) <= keepBuffer+maxDMAChunk && len(c.freeDMA) < c.cfg.MaxDMA {
		c.freeDMA = append(c.freeDMA, r)
	}
}
